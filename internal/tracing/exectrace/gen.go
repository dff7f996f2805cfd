package exectrace

// The object is for little-endian machines and mcpu v3, with atomic exchange (Linux 5.12).
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -tags linux -no-global-types -type event -type counts -type state -type flags -type reader exectrace bpf/exectrace.bpf.c -- -O2 -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
