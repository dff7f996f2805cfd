package sized

// The object is for little-endian machines, with mcpu v3 (Linux 5.1): 32-bit jumps.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -tags linux ask ../bpf/ask.c -- -O2 -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter "-DSTORE=\"sized.h\"" -Ibpf -I../bpf -I../records/bpf -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
