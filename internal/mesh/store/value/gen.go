package value

// The object is for little-endian machines and mcpu v3 (32-bit jumps, from Linux 5.1).
//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -tags linux -type value_key -type value_rule -type value_choice -type value_endpoint -type value_of_small -type value_of_short ask ../bpf/ask.c -- -O2 -g -mcpu=v3 "-DSTORE=\"value.h\"" -I../bpf -Ibpf -Wall -Wextra -Werror -Wno-unused-parameter -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -tags linux -output-suffix _test torn bpf/torn.c -- -O2 -mcpu=v3 -I../bpf -Wall -Wextra -Werror -Wno-unused-parameter -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
