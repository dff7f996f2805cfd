package vm

import (
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestUserMode boots a kernel in user mode, in which two threads check that they keep their vector registers.
// c/xstate.c saves these.
func TestUserMode(t *testing.T) {
	if _, _, err := userKernel(); errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	program := filepath.Join(t.TempDir(), "vectors")
	flags := []string{"-O2", "-pthread", "-mavx2", "-o", program, "c/vectors.c"}
	if strings.Contains(readAll("/proc/cpuinfo"), "avx512f") {
		flags = append(flags, "-mavx512f")
	}
	if said, err := exec.Command("clang", flags...).CombinedOutput(); err != nil {
		t.Skipf("cannot compile a program: %v\n%s", err, said)
	}
	from, err := linked(program)
	if err != nil {
		t.Fatal(err)
	}
	from["/vectors"] = program
	files, err := readFiles(from)
	if err != nil {
		t.Fatal(err)
	}
	r := Run(t, Options{UserMode: true, Files: files, MemoryMiB: 512, Timeout: 2 * time.Minute}, `
cat /sys/fs/cgroup/cgroup.controllers | tr ' ' '\n' | grep -c -x -e cpu -e memory -e pids
grep -c . /proc/self/cgroup
/vectors 2 || echo "vectors: $?"
exit 5`)
	if r.Output != "3\n1\n" || r.ExitCode != 5 {
		t.Errorf("exit code %d, output:\n%s\nend of the console:\n%s", r.ExitCode, r.Output, tail(r.Console))
	}
	t.Logf("%s from start to power-off", r.Took)
}
