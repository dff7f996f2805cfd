package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/sandboxes/oci"
	"tare/internal/sandboxes/subject"
	"tare/test/long"
)

// runtimeFor returns the path of a runtime, built by make or installed. Without it the test is skipped.
func runtimeFor(t *testing.T, name string) string {
	t.Helper()
	built, err := filepath.Abs("../../bin/" + name)
	if err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{built, name} {
		if path, err := exec.LookPath(at); err == nil {
			return path
		}
	}
	t.Skipf("needs %s", name)
	return ""
}

// sandboxSpec is an experiment of one block with one arm beside the baseline.
func sandboxSpec(runtime, parts string) string {
	return fmt.Sprintf(`name: sandboxed
question: Does it work inside?
blocks: 1
warmup: 500ms
duration: 500ms
statistics: false
repeat: 100%%
baseline: {subject: sandbox, runtime: none}
%s
arms:
  inside: {subject: sandbox, runtime: %q}
gates: {rate: 0, errors: 1, lag: 60s, drift: 1000, generator_cpu: 1, throttled: 1h, connections: 0, invalid: 1}
`, parts, runtime)
}

// runSandboxed runs an experiment from sandboxSpec, and returns the last attempt at each trial, by arm.
func runSandboxed(t *testing.T, spec string) map[string]record.Trial {
	t.Helper()
	needsRoot(t)
	leavesNothing(t)
	dir := filepath.Join(t.TempDir(), "out")
	o := command{args: []string{"run", specFile(t, spec), "--out", dir}, timeout: 5 * time.Minute}.start(t).wait(t)
	if o.code != 0 && o.code != 4 { // on a busy machine everything that noise can void may be void
		t.Fatal(o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	trials := map[string]record.Trial{}
	for _, tr := range c.Trials {
		if tr.Validity.Failed != "" {
			t.Errorf("%s failed: %s", tr.Arm, tr.Validity.Failed)
		}
		trials[tr.Arm] = tr
	}
	return trials
}

// TestGVisor: inside the sandbox, gVisor's kernel answers system calls, and the sandbox's processes are those that
// gVisor has. The load falls into the window although gVisor's clock is not this machine's.
func TestGVisor(t *testing.T) {
	trials := runSandboxed(t, sandboxSpec(runtimeFor(t, "runsc"), "loads:\n  ladder: {kind: syscalls}\n"))
	plain, inside := trials[record.Direct], trials["inside"]
	if a, b := plain.Metrics["syscall_getpid_seconds"], inside.Metrics["syscall_getpid_seconds"]; a <= 0 || b <= 2*a {
		t.Errorf("getpid takes %g s outside and %g s inside", a, b)
	}
	for _, c := range []string{subject.Sentry, subject.Gofer, subject.Shim, subject.Workload} {
		if inside.Metrics[c+"_pss_bytes"] <= 0 {
			t.Errorf("the component %s has no memory: %v", c, inside.Metrics)
		}
	}
}

// TestRedisInside: redis serves from inside a sandbox at the sandbox's address, with each kind of kernel, and the
// output of redis-benchmark is read.
func TestRedisInside(t *testing.T) {
	runtimeFor(t, "redis-server")
	runtimeFor(t, "redis-benchmark")
	for _, runtime := range []string{"runc", "runsc", "microvm"} {
		t.Run(runtime, func(t *testing.T) {
			at := runtime
			if runtime == "microvm" {
				long.Test(t, "10 s: virtual machines are booted, and redis in one")
				for _, v := range microvm(t).env {
					name, value, _ := strings.Cut(v, "=")
					t.Setenv(name, value)
				}
			} else {
				at = runtimeFor(t, runtime)
			}
			trials := runSandboxed(t, strings.Replace(sandboxSpec(at, `
applications:
  redis: {kind: command, command: "redis-server --port {port} --save '' --protected-mode no"}
loads:
  bench:
    kind: command
    to: redis
    drain: 30s
    command: redis-benchmark -h {host} -p {port} -t get,set -n 500 --csv
`), "repeat: 100%", "repeat: 0%", 1))
			for arm, tr := range trials {
				own := string(tr.Loads["bench"].Own)
				if !strings.Contains(own, `"said":{`) || tr.Metrics["tool_rate_per_second"] <= 0 {
					t.Errorf("%s: redis-benchmark said nothing: %s", arm, own)
				}
				if inside := strings.Contains(own, "-h 198.1"); inside != (arm == "inside") {
					t.Errorf("%s: %s", arm, own)
				}
			}
		})
	}
}

// TestRuntimeRefuses: if a runtime refuses to work on the machine, the run ends with the runtime's own error. If its
// arm is optional, the arm is left out, with that error as the reason.
func TestRuntimeRefuses(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	script := filepath.Join(t.TempDir(), "refuses")
	if err := os.WriteFile(script, []byte("#!/bin/sh\necho 'not on this machine' >&2\nexit 1\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	const load = "loads:\n  ladder: {kind: syscalls}\n"
	spec := sandboxSpec(script, load)
	o := tare(t, "run", specFile(t, spec), "--out", filepath.Join(t.TempDir(), "out"))
	if o.code != 3 || !strings.Contains(o.stderr, "not on this machine") {
		t.Error(o)
	}
	spec = strings.Replace(spec, `refuses"}`, `refuses", optional: true}`, 1)
	o = tare(t, "run", specFile(t, spec), "--out", filepath.Join(t.TempDir(), "out"))
	if o.code != 0 || !strings.Contains(o.stderr, "the arm inside is left out") ||
		!strings.Contains(o.stderr, "not on this machine") {
		t.Error(o)
	}
}

// TestSandboxesOfAKilledRun: whenever a run is killed, 'tare clean' removes its containers, and all that they had.
func TestSandboxesOfAKilledRun(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	for _, name := range []string{"runc", "runsc"} {
		t.Run(name, func(t *testing.T) {
			spec := sandboxSpec(runtimeFor(t, name), `
applications:
  server: {kind: http, count: 2}
loads:
  client: {kind: http, to: server, mode: open, rate: 100, connections: 2, count: 2}
`)
			spec = strings.Replace(spec, "duration: 500ms", "duration: 2s", 1)
			for _, reached := range long.Some(2, []struct{ file, line string }{
				{"job.json", "."}, {"times.json", `"create_ns":[1-9]`}, {"times.json", `"started_ns":[1-9]`},
			}) {
				killedWhile(t, spec, reached.file, regexp.MustCompile(reached.line))
			}
		})
	}
}

// killedWhile kills a run a moment after a file of a container has a line that matches.
func killedWhile(t *testing.T, spec, file string, line *regexp.Regexp) {
	t.Helper()
	args := []string{"run", specFile(t, spec), "--out", filepath.Join(t.TempDir(), "out")}
	p := command{args: args, timeout: 3 * time.Minute}.start(t)
	mine := filepath.Join(oci.StateDir, fmt.Sprintf("tare-*-p%d-*", p.pid))
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(time.Millisecond) {
		if grep(t, filepath.Join(mine, "*", file), line) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("no container came so far")
		}
	}
	time.Sleep(time.Duration(rand.Int64N(int64(50 * time.Millisecond))))
	p.signal(t, syscall.SIGKILL)
	p.wait(t)
	if o := tare(t, "clean"); o.code != 0 {
		t.Error(o)
	}
	if left, _ := filepath.Glob(mine); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	links, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if strings.HasPrefix(l.Name, fmt.Sprintf("tare%ds", p.pid)) {
			t.Errorf("left behind: the interface %s", l.Name)
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil || strings.Contains(string(mounts), fmt.Sprintf("-p%d-t", p.pid)) {
		t.Errorf("left behind: a mount, %v", err)
	}
}

// grep reports whether any file whose name matches a pattern has a line that matches line.
func grep(t *testing.T, files string, line *regexp.Regexp) bool {
	t.Helper()
	names, err := filepath.Glob(files)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		text, err := os.ReadFile(n)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
		if line.Match(text) {
			return true
		}
	}
	return false
}
