package containment

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
	"tare/test/owned"
	"tare/test/started"
)

// script makes a shell, once it reads a line, use CPU time for one second: itself or in a child that it waits for, and
// in its own group or, for that time, in another. Then it prints a line.
const script = `go() { for d in $1; do echo $BASHPID >$d/cgroup.procs; done; }
burn() { # a second of CPU time
	local s until=0
	while read -r -a s </proc/$BASHPID/stat; do
		((until > 0)) || until=$((s[13] + s[14] + 100))
		((s[13] + s[14] < until)) || return 0
	done
}
echo ready; read line
case $HOW in
stay) burn ;;
child|late) (burn) ;;
away) go "$AWAY"; burn; go "$HOME_DIRS" ;;
away-child) (go "$AWAY"; burn) ;;
esac
echo done; read line`

// TestClocks: CPU time that a process, or a child that has ended, used in other groups between the edges is found, even
// if all are in their group at both edges. What a child used in the group is not mistaken for that, whether or not it
// is listed.
func TestClocks(t *testing.T) {
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	cpu, ok := l.CPU()
	if !ok {
		t.Fatal("this machine has no control groups")
	}
	group := func(name string) (dirs string) {
		for _, h := range l.Hierarchies {
			dirs += groupIn(t, h.Mount, name) + " "
		}
		return dirs
	}
	away := group("away")
	for how, lacks := range map[string]bool{
		"stay": false, "child": false, "late": false, "away": true, "away-child": true,
	} {
		t.Run(how, func(t *testing.T) {
			name := "home-" + how
			home := group(name)
			cmd := exec.Command("/bin/bash", "-c", `for d in $HOME_DIRS; do echo $$ >$d/cgroup.procs; done; `+script)
			cmd.Env = append(os.Environ(), "HOW="+how, "AWAY="+away, "HOME_DIRS="+home)
			in, out := started.Piped(t, cmd)
			t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			says := func(want string) {
				t.Helper()
				var word string
				if _, err := fmt.Fscan(out, &word); err != nil || word != want {
					t.Fatalf("the shell said %q, %v, want %q", word, err, want)
				}
			}
			says("ready")
			path := cpu.Identity("/" + owned.Name("containment-"+name))
			dir, _ := cpu.Dir(path)
			member := func() []Member {
				p, err := proc.FS{}.Process(cmd.Process.Pid)
				if err != nil {
					t.Fatal(err)
				}
				return []Member{{Process: p, Home: &Home{Path: path, Dir: dir, Within: func(m cgroup.Membership) bool {
					return m.Hierarchy != cpu || m.Identity == path
				}}}}
			}
			told := false
			tell := func() {
				told = true
				if _, err := fmt.Fprintln(in, "go"); err != nil {
					t.Fatal(err)
				}
			}
			w, err := Begin(l, proc.FS{}, nil, func() ([]Member, error) {
				listed := member()
				if how == "late" && !told { // a child starts, and works, between listing the processes and reading them
					tell()
					time.Sleep(600 * time.Millisecond)
				}
				return listed, nil
			})
			if err != nil {
				t.Fatal(err)
			}
			if !told {
				tell()
			}
			says("done")
			strays, err := w.End()
			if err != nil || (len(strays) == 1) != lacks {
				t.Fatalf("found are %+v, %v", strays, err)
			}
			if !lacks {
				return
			}
			if s := strays[0]; s.PID != cmd.Process.Pid || s.Lacking < 0.05 || s.Lacking > 2 {
				t.Errorf("found is %+v", s)
			}
			if said := Describe(strays, "it"); !strings.Contains(said, "(bash) of it, or what it has started, was in other") ||
				!strings.Contains(said, path+" did not count ") {
				t.Errorf("it says %q", said)
			}
		})
	}
}

// TestEndedElsewhere: a process that left its group and ended between the edges, without a parent that waited for it,
// is found with its CPU time. One that stayed is not.
func TestEndedElsewhere(t *testing.T) {
	l, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	cpu, ok := l.CPU()
	if !ok {
		t.Fatal("this machine has no control groups")
	}
	for how, leaves := range map[string]bool{"stay": false, "leave": true} {
		t.Run(how, func(t *testing.T) {
			home, away := groupIn(t, cpu.Mount, "home"), groupIn(t, cpu.Mount, "away")
			path := cpu.Identity(strings.TrimPrefix(home, cpu.Mount))
			w, err := Begin(l, proc.FS{}, map[string]string{home: path}, func() ([]Member, error) { return nil, nil })
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := w.Close(); err != nil {
					t.Error(err)
				}
			})
			if w.Unseen() != nil {
				t.Skip("needs root and BTF: ", w.Unseen())
			}
			cmd := exec.Command("/bin/bash", "-c", `echo $$ >$HOME_DIR/cgroup.procs; ((
				[ "$HOW" = leave ] && echo $BASHPID >$AWAY/cgroup.procs
				while read -r -a s </proc/$BASHPID/stat && ((s[13] + s[14] < 20)); do :; done; echo done) & )`) // 0.2 s
			cmd.Env = append(os.Environ(), "HOW="+how, "AWAY="+away, "HOME_DIR="+home)
			if said, err := cmd.Output(); err != nil || string(said) != "done\n" { // waits until the orphan has ended
				t.Fatalf("%q, %v", said, err)
			}
			for len(cgroup.Members([]string{home, away})) > 0 {
				time.Sleep(time.Millisecond)
			}
			strays, err := w.End()
			if err != nil || w.Unseen() != nil || (len(strays) == 1) != leaves {
				t.Fatalf("found are %+v, %v, unseen %v", strays, err, w.Unseen())
			}
			if !leaves {
				return
			}
			if s := strays[0]; s.Left != path || s.Used < 0.18 || s.Used > 0.25 {
				t.Errorf("found is %+v", s)
			}
			want := " (bash) of it left the control group " + path + " for " +
				cpu.Identity(strings.TrimPrefix(away, cpu.Mount)) + " and ended there"
			if said := Describe(strays, "it"); !strings.Contains(said, want) {
				t.Errorf("it says %q, want %q", said, want)
			}
		})
	}
}

// groupIn creates a control group for the duration of the test.
func groupIn(t *testing.T, mount, name string) (dir string) {
	t.Helper()
	dir = filepath.Join(mount, owned.Name("containment-"+name))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// TestDescribe: a sentence names the first process and its group.
func TestDescribe(t *testing.T) {
	for want, strays := range map[string][]Stray{
		"": nil,
		"process 7 (sh) of it is in the control group /a": {{PID: 7, Comm: "sh", Group: "/a"}},
		"process 7 (sh) of it is in the control group /a of memory, and 1 more elsewhere": {
			{PID: 7, Comm: "sh", Group: "/a", What: "memory"}, {PID: 8, Comm: "sh", Group: "/b"}},
		"process 7 (sh) of it was in the control group /a when the window began": {
			{PID: 7, Comm: "sh", Group: "/a", Back: true}},
	} {
		if said := Describe(strays, "it"); said != want {
			t.Errorf("it says %q, want %q", said, want)
		}
	}
}
