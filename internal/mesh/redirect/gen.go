package redirect

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -tags linux -no-global-types redirect bpf/redirect.c -- -O2 -mcpu=v3 -Wall -Wextra -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu
