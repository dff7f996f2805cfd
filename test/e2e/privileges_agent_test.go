package e2e

import (
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tare/internal/scale/ledger"
	"tare/test/binary"
)

// agentRights tests tare-agent by the ledgers that it serves.
func agentRights(t *testing.T) rightsTest {
	t.Helper()
	build := sync.OnceValue(func() string { return agentProgram(t) }) // it is removed when all rows are tested
	serving := regexp.MustCompile(`address=(127\.0\.0\.1:\d+)`)
	x := ledgerRights("agent", func(t *testing.T, a actor, limited ...string) *ledger.Ledger {
		t.Helper()
		args := append(slices.Clone(limited), build(), "--listen", "127.0.0.1:0")
		p := command{binary: args[0], args: args[1:], dir: a.dir, user: a.user, has: a.has}.start(t)
		var address []string
		whileItRuns(t, p, func() bool {
			address = serving.FindStringSubmatch(p.stderr.String())
			return address != nil
		})
		l := readLedger(t, get(t, "http://"+address[1]+"/v1/ledger?for=1s"))
		text := get(t, "http://"+address[1]+"/metrics")
		for part, known := range map[string]bool{"cpu": true, "programs": l.Programs != nil,
			"samples": l.Host.Sampler != ""} {
			worked := strings.Contains(text, `tare_agent_collector_success{collector="`+part+`"} 1`)
			if worked != known && warning(&l, "group-unread") == "" {
				t.Errorf("with %v the part %s worked: %v, and the ledger has it: %v", a.has, part, worked, known)
			}
		}
		p.signal(t, syscall.SIGTERM)
		if o := p.wait(t); o.code != 0 {
			t.Errorf("with %v: %s", a.has, o)
		}
		return &l
	})
	x.more[cap.SYS_PTRACE] = func(t *testing.T, with, lacks actor) {
		// These may hide attachments: a program of a type that can be attached to network interfaces, and a network namespace
		// of another process.
		p, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "tare_rights", Type: ebpf.SchedCLS, License: "GPL",
			Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 0), asm.Return()}})
		if err != nil {
			t.Fatal(err)
		}
		defer p.Close()
		defer startTied(t, exec.Command("unshare", "--net", "sleep", "1000"))()
		const targets = "bpf-targets"
		if l := x.weighed(t, with); warning(l, targets) != "" {
			t.Errorf("with CAP_SYS_PTRACE: %+v", l.Warnings)
		}
		if l := x.weighed(t, lacks); warning(l, targets) == "" {
			t.Errorf("that attachments may be missing is not said: %+v", l.Warnings)
		}
	}
	return x.rightsTest
}

// agentProgram builds tare-agent, for as long as the test runs.
func agentProgram(t *testing.T) string {
	t.Helper()
	path := filepath.Join(ownDir(t), "tare-agent")
	if err := binary.Program(path, "./cmd/tare-agent"); err != nil {
		t.Fatal(err)
	}
	return path
}

// get returns the body of a page.
func get(t *testing.T, url string) string {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s, %v: %s", url, r.Status, err, text)
	}
	return string(text)
}
