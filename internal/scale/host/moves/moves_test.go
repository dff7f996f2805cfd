package moves

import (
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/scale/host/cgroup"
)

// makeGroups creates groups with the given names in a hierarchy and returns their directories.
func makeGroups(t *testing.T, h *cgroup.Hierarchy, names ...string) (dirs []string) {
	t.Helper()
	for _, name := range names {
		dir := filepath.Join(h.Mount, fmt.Sprintf("tare-test-moves-%s-%d", name, os.Getpid()))
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			var err error
			for range 100 { // a process that has just ended may still be in it
				if err = os.Remove(dir); err == nil {
					return
				}
				time.Sleep(10 * time.Millisecond)
			}
			t.Error(err)
		})
		dirs = append(dirs, dir)
	}
	return dirs
}

// hierarchies returns the hierarchies that can count CPU time.
func hierarchies(t *testing.T) (all []*cgroup.Hierarchy) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: BPF and control groups")
	}
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	if h, ok := l.Controller("cpuacct"); ok && !h.V2 {
		all = append(all, h)
	}
	if h, ok := l.V2(); ok {
		all = append(all, h)
	}
	return all
}

func open(t *testing.T, h *cgroup.Hierarchy, homes ...string) *Watch {
	t.Helper()
	began := time.Now()
	w, err := Open(h, homes)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("opened in %v", time.Since(began))
	t.Cleanup(func() {
		if err := w.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// burn is a shell function that uses 0.3 s of CPU time (USER_HZ is 100), however long that takes on a busy machine.
const burn = `burn() {
	local s until=0
	while read -r -a s </proc/$BASHPID/stat; do
		((until > 0)) || until=$((s[13] + s[14] + 30))
		((s[13] + s[14] < until)) || return 0
	done
}
go() { echo $BASHPID >$1/cgroup.procs; }
go $HOME_DIR; `

// TestLeft: a process that leaves its group is reported, with where it went and how much CPU time it used there, even
// if it has ended and no parent waited for it. One that stays, comes back or moves to a group below is not reported.
func TestLeft(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("needs bash")
	}
	for _, h := range hierarchies(t) {
		for _, c := range []struct {
			name, does string
			leave      int // number of processes that leave
		}{
			{"stay", `(burn)`, 0},
			{"move", `(go $AWAY; burn)`, 1},
			{"orphan", `((go $AWAY; burn; echo done >&3) & ); read -u 3`, 1},
			{"grandchild", `(go $AWAY; (burn); (:))`, 3},
			{"back", `(go $AWAY; burn; go $HOME_DIR)`, 0},
			{"below", `(go $HOME_DIR/below; burn; go $HOME_DIR)`, 0},
			{"itself", `go $AWAY; burn`, 1},
		} {
			t.Run(fmt.Sprintf("%s/v2=%v", c.name, h.V2), func(t *testing.T) {
				dirs := makeGroups(t, h, "home", "away")
				below := filepath.Join(dirs[0], "below")
				if err := os.Mkdir(below, 0o755); err != nil {
					t.Fatal(err)
				}
				defer os.Remove(below)
				w := open(t, h, dirs[0])
				fifo := filepath.Join(t.TempDir(), "fifo")
				if err := unix.Mkfifo(fifo, 0o600); err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command("/bin/bash", "-c", "exec 3<>"+fifo+"; "+burn+c.does+"; true")
				cmd.Env = append(os.Environ(), "HOME_DIR="+dirs[0], "AWAY="+dirs[1])
				if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
					t.Fatalf("%s, %v", out, err)
				}
				waitUntil(t, func() bool { // an orphan ends a little later
					left, _, err := w.Left()
					return err != nil || len(left) == c.leave && (c.leave == 0 || left[0].Ended)
				})
				left, lost, err := w.Left()
				if err != nil || lost != 0 || len(left) != c.leave {
					t.Fatalf("%+v, %d lost, %v; want %d", left, lost, err, c.leave)
				}
				var used time.Duration
				for _, l := range left {
					used += l.Used
					if l.Home != dirs[0] || l.Group != h.Identity(strings.TrimPrefix(dirs[1], h.Mount)) || l.Comm != "bash" ||
						!l.Ended {
						t.Errorf("%+v", l)
					}
				}
				if c.leave > 0 && (used < 280*time.Millisecond || used > 400*time.Millisecond) {
					t.Errorf("used were %v", used)
				}
			})
		}
	}
}

func waitUntil(t *testing.T, done func() bool) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); !done() && time.Now().Before(end); {
		time.Sleep(10 * time.Millisecond)
	}
}

// TestMadeElsewhere: a process that is created in another group than that of its parent (CLONE_INTO_CGROUP) was never
// moved.
func TestMadeElsewhere(t *testing.T) {
	for _, h := range hierarchies(t) {
		if !h.V2 {
			continue // clone3(2) accepts only v2 groups
		}
		dirs := makeGroups(t, h, "home", "away")
		w := open(t, h, dirs[0])
		fd, err := unix.Open(dirs[1], unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		was, err := os.ReadFile("/proc/self/cgroup")
		if err != nil {
			t.Fatal(err)
		}
		_, path, _ := strings.Cut(string(was), "0::")
		path, _, _ = strings.Cut(path, "\n")
		enter := func(dir string) {
			t.Helper()
			if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0); err != nil {
				t.Fatal(err)
			}
		}
		enter(dirs[0])
		defer enter(filepath.Join(h.Mount, path))
		cmd := exec.Command("true")
		cmd.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
		if err := cmd.Run(); err != nil {
			t.Fatal(err)
		}
		left, _, err := w.Left()
		if err != nil || len(left) != 1 || left[0].PID != cmd.Process.Pid || !left[0].Ended {
			t.Errorf("%+v, %v, want %d", left, err, cmd.Process.Pid)
		}
	}
}

// TestLayout: the Go structures have the sizes of those that the programs write.
func TestLayout(t *testing.T) {
	spec, err := loadMoves()
	if err != nil {
		t.Fatal(err)
	}
	if m := spec.Maps["tare_left"]; int(m.ValueSize) != binary.Size(left{}) || m.MaxEntries != maxLeft {
		t.Errorf("%d values of %d bytes, want %d of %d", m.MaxEntries, m.ValueSize, binary.Size(left{}), maxLeft)
	}
	if n := spec.Maps["tare_homes"].MaxEntries; n != maxHomes {
		t.Errorf("%d homes, want %d", n, maxHomes)
	}
}
