package kernelmesh

// The object is for little-endian machines, with mcpu v3 (Linux 5.1): atomic adds and 32-bit jumps.
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -tags linux -type address -type service_key -type slot -type endpoint -type connections -type service_counters -type program_counters kernelmesh bpf/kernelmesh.c -- -O2 -mcpu=v3 -Wall -Wextra -Werror -Wno-unused-parameter -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
