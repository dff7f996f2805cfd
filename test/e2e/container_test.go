package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"tare/internal/scale/host/cgroup"
)

// inContainer is a script that enters the control group in its first argument and runs the command in the others with
// separate namespaces of control groups, mounts and PIDs, as a container has them.
const inContainer = `
group=$1; shift
# A new group of cpuset cannot be entered.
awk '$3 == "cgroup" && $4 !~ /cpuset/ || $3 == "cgroup2" {print $2}' /proc/self/mounts |
while read -r at; do mkdir "$at/$group" && echo $$ > "$at/$group/cgroup.procs" || kill $$; done
exec unshare --cgroup --mount --pid --fork --kill-child --mount-proc sh -c '
awk "\$3 == \"cgroup\" || \$3 == \"cgroup2\" {sub(/^rw,[a-z]*,?/, \"\", \$4); print \$2, \$3, \$4}" /proc/self/mounts |
while read -r at kind options; do
	umount -l "$at" && mount -t "$kind" ${options:+-o "$options"} none "$at" || exit 1
done
exec "$@"' sh "$@"
`

// TestCleanSparesContainers: 'tare clean' on the machine removes nothing of a run in a container, which continues to
// its end.
func TestCleanSparesContainers(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	for _, tool := range []string{"unshare", "awk"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("needs " + tool)
		}
	}
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	group := "test-container-" + strconv.Itoa(os.Getpid())
	t.Cleanup(func() {
		for _, h := range l.Hierarchies {
			if _, err := os.Stat(filepath.Join(h.Mount, group)); err == nil {
				removeGroup(t, filepath.Join(h.Mount, group))
			}
		}
	})
	dir := filepath.Join(t.TempDir(), "out")
	p := command{binary: "/bin/sh", args: []string{"-c", inContainer, "sh", group, bin, "run", specFile(t, shortSpec),
		"--out", dir}}.start(t)
	for running := true; running; {
		select {
		case <-p.done:
			running = false
		default:
			if o := tare(t, "clean"); o.code != 0 || strings.Contains(o.stdout, "-n40") {
				t.Errorf("it did not leave the run in the container alone: %s", o)
			}
		}
	}
	if o := p.wait(t); o.code != 0 {
		t.Errorf("the run in the container: %s", o)
	}
}
