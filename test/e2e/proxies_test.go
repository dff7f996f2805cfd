package e2e

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/record"
	"tare/internal/scale/host/proc"
	"tare/test/long"
)

// proxiesSpec is a run of one block with an arm of sidecar proxies, in which nothing is run twice.
const proxiesSpec = `
name: proxies
question: What is left of proxies that are killed?
blocks: 1
warmup: 100ms
duration: 2s
statistics: false
repeat: 0%
applications:
  server: {kind: http}
loads:
  client: {kind: http, to: server, rate: 50, connections: 2}
arms:
  mine: {subject: SUBJECT}
gates: {rate: 0, errors: 1, lag: 60s, drift: 1000, generator_cpu: 1, throttled: 1h, connections: 0, invalid: 1}
`

// proxiesRun starts a run of proxiesSpec, and returns it with one of its two proxies, once both have run for a while.
// subject is the kind of the proxies, and may have settings after a comma.
func proxiesRun(t *testing.T, subject, temporary, out string) (*process, proc.Process) {
	t.Helper()
	kind, _, _ := strings.Cut(subject, ",")
	p := command{
		args: []string{"run", specFile(t, strings.ReplaceAll(proxiesSpec, "SUBJECT", subject)), "--out", out, "--seed", "1"},
		env:  []string{"TMPDIR=" + temporary}, timeout: 2 * time.Minute,
	}.start(t)
	for {
		var proxies []proc.Process
		all, err := (proc.FS{}).PIDs()
		if err != nil {
			t.Fatal(err)
		}
		for _, pid := range all {
			if q, err := (proc.FS{}).Process(pid); err == nil && q.PPID == p.pid && q.Comm == kind && q.Alive() {
				proxies = append(proxies, q)
			}
		}
		if len(proxies) == 2 {
			time.Sleep(700 * time.Millisecond) // until requests go through them, as a rule
			return p, proxies[0]
		}
		select {
		case <-p.done:
			t.Fatalf("it ended without proxies: %s", p.wait(t))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// needsProxy skips a test if a proxy is not installed.
func needsProxy(t *testing.T, name string) {
	t.Helper()
	if _, err := os.Stat("/usr/sbin/" + name); err != nil {
		t.Skipf("needs %s: %v", name, err)
	}
}

// TestSidecarsMissing: where no proxy is installed, an experiment with sidecars ends before it begins, with exit code
// 3, and names what to install.
func TestSidecarsMissing(t *testing.T) {
	needsRoot(t)
	dir := t.TempDir()
	without := filepath.Join(dir, "tare")
	script := "#!/bin/sh\nexec unshare --mount sh -c 'for f in /usr/sbin/haproxy /usr/local/sbin/haproxy " +
		"/usr/local/bin/haproxy /usr/local/sbin/envoy /usr/local/bin/envoy; do [ ! -e $f ] || mount --bind /dev/null $f || " +
		"exit 9; done; exec " +
		bin +
		` "$@"' tare "$@"` + "\n"
	if err := os.WriteFile(without, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	const envoy, haproxy = "make envoy", "apt-get install haproxy"
	needs := map[string][]string{"mesh-redirect": {haproxy}, "controlplane-certs": {envoy}}
	for _, name := range []string{"connections", "kernel", "policy", "protocol", "rate", "size"} {
		needs["mesh-"+name] = []string{envoy, haproxy}
	}
	for name, hints := range needs {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			o := command{args: []string{"run", name, "--quick", "--out", out}, binary: without,
				env: []string{"PATH=/usr/bin:/bin"}}.start(t).wait(t)
			if o.code != 3 {
				t.Error(o)
			}
			for _, hint := range hints {
				if !strings.Contains(o.stderr, hint) {
					t.Errorf("it does not say %q: %s", hint, o)
				}
			}
			if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("there is a run directory: %v", err)
			}
		})
	}
}

// TestProxyKilled: a proxy that is killed fails its trial, with the cause, and the run goes on to its end.
func TestProxyKilled(t *testing.T) {
	long.Test(t, "6 s: proxies killed while trials run")
	needsRoot(t)
	needsProxy(t, "haproxy")
	leavesNothing(t)
	temporary, out := t.TempDir(), filepath.Join(t.TempDir(), "out")
	p, proxy := proxiesRun(t, "haproxy", temporary, out)
	if err := unix.Kill(proxy.PID, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	o := p.wait(t)
	c, err := record.Read(out)
	if err != nil {
		t.Fatalf("%v: %s", err, o)
	}
	i := slices.IndexFunc(c.Trials, func(tr record.Trial) bool { return tr.Arm == "mine" })
	if i < 0 || len(c.Trials) != 3 {
		t.Fatalf("%d trials: %s", len(c.Trials), o)
	}
	if failed := c.Trials[i].Validity.Failed; !strings.Contains(failed, "proxy.") || !strings.Contains(failed, "killed") {
		t.Errorf("the trial failed because of %q", failed)
	}
	noScratch(t, temporary)
}

// TestProxiesOrphaned: when tare is killed, 'tare clean' ends the proxies, workers that outlive their parents among
// them, and removes the directory with their keys. With the last process their network namespaces go, and what is in
// them: interfaces, rules and programs.
func TestProxiesOrphaned(t *testing.T) {
	needsRoot(t)
	for _, subject := range []string{
		"nginx", "nginx, network: pods, redirect: ebpf", "haproxy, network: pods, redirect: tproxy",
	} {
		t.Run(subject, func(t *testing.T) {
			kind, pods, _ := strings.Cut(subject, ",")
			needsProxy(t, kind)
			leavesNothing(t)
			temporary := t.TempDir()
			p, proxy := proxiesRun(t, subject, temporary, filepath.Join(t.TempDir(), "out"))
			network, err := os.Readlink(filepath.Join("/proc", strconv.Itoa(proxy.PID), "ns/net"))
			if err != nil {
				t.Fatal(err)
			}
			if own, err := os.Readlink("/proc/self/ns/net"); err != nil || (own == network) != (pods == "") {
				t.Errorf("the proxies are in %s, and this process in %s, %v", network, own, err)
			}
			p.signal(t, unix.SIGKILL)
			p.wait(t)
			if left, err := filepath.Glob(filepath.Join(temporary, "tare-scratch-sidecar-*", "*", "identity.pem")); err != nil ||
				len(left) != 2 {
				t.Errorf("there were keys in %v, %v", left, err)
			}
			if o := (command{args: []string{"clean"}, env: []string{"TMPDIR=" + temporary}}).start(t).wait(t); o.code != 0 {
				t.Error(o)
			}
			noScratch(t, temporary)
			if who := processesIn(t, network); pods != "" && len(who) > 0 {
				t.Errorf("%s still has %q", network, who)
			}
		})
	}
}

// processesIn returns the processes that are in a network namespace, or have it open.
func processesIn(t *testing.T, network string) (who []string) {
	t.Helper()
	pids, err := (proc.FS{}).PIDs()
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range pids {
		dir := filepath.Join("/proc", strconv.Itoa(pid))
		files, _ := filepath.Glob(filepath.Join(dir, "fd/*"))
		for _, file := range append(files, filepath.Join(dir, "ns/net")) {
			if to, err := os.Readlink(file); err == nil && to == network {
				who = append(who, file)
			}
		}
	}
	return who
}

func noScratch(t *testing.T, temporary string) {
	t.Helper()
	if left, err := filepath.Glob(filepath.Join(temporary, "tare-scratch-*")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}
