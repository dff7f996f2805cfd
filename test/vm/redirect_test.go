package vm

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"tare/internal/sandboxes/microvm"
	"tare/test/binary"
	"tare/test/long"
)

// redirectModules are the modules that redirection needs if nothing is built into the kernel: for interfaces between
// pods, for rules, and for the program at an interface.
var redirectModules = []string{
	"veth", "nf_tables", "nft_chain_nat", "nft_redir", "nft_tproxy", "sch_ingress", "cls_bpf",
}

// TestRedirect: on a kernel without netfilter, tare says what is missing, with exit code 3, before anything runs. With
// the modules, an older kernel with only cgroup v2 redirects in every way.
func TestRedirect(t *testing.T) {
	long.Test(t, "30 s: a second emulated machine")
	t.Parallel()
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	const dir = "internal/mesh/redirect"
	files := testFiles(t, root, []string{dir})
	kit, err := prepare()
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := microvm.FindKernel(kit.kernel)
	if err != nil {
		t.Fatal(err)
	}
	modules, err := kernel.ReadModules(redirectModules)
	if err != nil {
		t.Fatal(err)
	}
	veth := ""
	for i, m := range modules {
		at := fmt.Sprintf("%s/%02d-%s.ko", modulesDir, i, m.Name)
		files[at] = m.Data
		if m.Name == "veth" {
			veth = at
		}
	}
	files["/bin/haproxy"] = []byte("#!/bin/sh\n") // no run gets far enough to start it
	r := Run(t, Options{Files: files, Timeout: 6 * time.Minute}, `
missing() { # what is said, before rules can be made
	tare run mesh-redirect --quick --out /out$1 >/dev/null 2>/said; code=$?
	cat /said >&2
	test $code = 3 && grep -q "$2" /said || { echo "exit code $code, not $2" >&2; exit 1; }
}
missing 1 'load the module veth'
insmod `+veth+` || exit 1
missing 2 CONFIG_NET_SCH_INGRESS
tare doctor >/said
grep -q "^? *redirect-tproxy .*not tried" /said && ! grep -q nf_tables /proc/modules || { cat /said >&2; exit 1; }
tare doctor --load-modules >/said
for way in iptables tproxy ebpf; do
	grep -q "^NO .*redirect-$way" /said || { cat /said >&2; exit 1; }
done
rm `+veth+`
`+LoadModules+`cd /src/`+dir+` && ./test -test.v -test.run '^(TestWays|TestCheck)$'`)
	ok(t, r)
	if !strings.Contains(r.Output, "--- PASS: TestWays/ebpf") || strings.Contains(r.Output, "SKIP") {
		t.Errorf("not every way was tried:\n%s", tail(r.Output))
	}
}
