package sized

// The object is for little-endian machines and mcpu v3 (32-bit jumps, from Linux 5.1).
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -tags linux ask ../bpf/ask.c -- -O2 -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter "-DSTORE=\"sized.h\"" -Ibpf -I../bpf -I../records/bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
