package snapshot

// The objects are for little-endian machines and mcpu v3 (32-bit jumps, from Linux 5.1). The second is only for tests:
// the same program, made slow.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -tags linux ask ../bpf/ask.c -- "-DSTORE=\"snapshot.h\"" -Ibpf -I../bpf -O2 -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -tags linux -output-suffix _test slow bpf/slow.c -- "-DSTORE=\"snapshot.h\"" -Ibpf -I../bpf -O2 -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
