// Package weight holds weight.bpf.o, a BPF object with a known cost for tests of the ledger. bpftool loads it, not
// Tare:
//
//	mount -t bpf none DIR
//	bpftool prog load weight.bpf.o DIR/weight
//	bpftool cgroup attach CGROUP connect4 pinned DIR/weight multi
//	...
//	bpftool cgroup detach CGROUP connect4 pinned DIR/weight
//	rm DIR/weight; umount DIR
//
// The command in the directory connect makes connections in CGROUP, and so makes the program run.
package weight

// The object carries no path and no compiler version, so every checkout makes the same.
//go:generate clang -g -O2 -mcpu=v3 -target bpfel -Wall -Wextra -Werror -Wno-unused-parameter -fno-ident -fdebug-compilation-dir . -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu -c bpf/weight.bpf.c -o weight.bpf.o
//go:generate llvm-strip -g weight.bpf.o
