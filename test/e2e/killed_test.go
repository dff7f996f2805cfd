package e2e

import (
	"fmt"
	"io/fs"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tare/internal/scale/host/proc"
	"tare/test/long"
)

// kills returns how often each victim is killed: TARE_KILLS if that is set, and the given number otherwise.
func kills(few int) int {
	if n, err := strconv.Atoi(os.Getenv("TARE_KILLS")); err == nil {
		return n
	}
	return few
}

// TestSandboxKilled: whichever process of a run with sandboxes is killed, and whenever, 'tare clean' leaves nothing of
// the run on this machine. TARE_KILLS is how often each is killed.
func TestSandboxKilled(t *testing.T) {
	long.Test(t, "6 s and more: what a sandbox consists of is killed")
	needsRoot(t)
	for _, c := range []struct {
		runtime string
		always  []string // killed in the short form as well
		victims []string
		seldom  []string // killed a quarter as often, because tare notices it late or another test kills them too
	}{
		{"runc", []string{"init"}, []string{"tare", "init", "runtime"}, []string{"shim"}},
		{"runsc", []string{"sentry"}, []string{"sentry", "tare", "gofer", "runtime"}, []string{"shim"}},
		{"microvm", nil, []string{"tare"}, []string{"vmm", "runtime"}}, // see TestMicrovmKilled
	} {
		t.Run(c.runtime, func(t *testing.T) {
			victims, seldom := c.victims, c.seldom
			if os.Getenv("TARE_KILLS") == "" {
				victims, seldom = c.always, nil
			}
			if len(victims) == 0 {
				t.Skip("boots virtual machines for minutes: set TARE_KILLS")
			}
			k := killer{t: t, temporary: t.TempDir()}
			name := c.runtime
			if name == "microvm" {
				k.env = microvm(t).env
			} else {
				name = runtimeFor(t, name)
			}
			k.spec = killedSpec(name)
			for _, victim := range victims {
				k.killMany(victim, kills(1))
			}
			for _, victim := range seldom {
				k.killMany(victim, (kills(1)+3)/4)
			}
		})
	}
}

// killedSpec is a run with a sandbox that serves a load, in which nothing is run twice.
func killedSpec(runtime string) string {
	return strings.NewReplacer("repeat: 100%", "repeat: 0%", "duration: 500ms", "duration: 1s").Replace(
		sandboxSpec(runtime, `
applications:
  server: {kind: http}
loads:
  client: {kind: http, to: server, mode: open, rate: 50, connections: 1}
`))
}

// killer kills processes of runs of one spec.
type killer struct {
	t         *testing.T
	spec      string
	env       []string
	temporary string // directory that runs have for temporary files
}

// killMany kills a victim in one run after the other, at moments spread over its life.
func (k *killer) killMany(victim string, times int) {
	k.t.Helper()
	seed := uint64(time.Now().UnixNano())
	random := rand.New(rand.NewPCG(seed, 0))
	var moments []string
	missed := 0
	for len(moments) < times && missed < 3*times+5 {
		at, done := k.killOne(victim, momentOf(victim, random))
		if !done {
			missed++
			continue
		}
		moments = append(moments, at.Round(time.Millisecond).String())
	}
	k.t.Logf("%s killed %d times, %d runs ended before, seed %d; after it was first seen: %s", victim, len(moments),
		missed, seed, strings.Join(moments, " "))
	if len(moments) < times {
		k.t.Errorf("%s was killed %d times only", victim, len(moments))
	}
}

// momentOf returns how long after a victim was first seen it is killed, if it lives that long. For most victims, half
// of the moments are in the first 100 ms, while they start.
func momentOf(victim string, random *rand.Rand) time.Duration {
	most := 2 * time.Second
	switch {
	case victim == "tare":
		most = 8 * time.Second
	case victim == "runtime": // the process of one command, which ends soon
		most = 60 * time.Millisecond
	case random.IntN(2) == 0:
		most = 100 * time.Millisecond
	}
	return time.Duration(random.Float64() * float64(most))
}

// killOne starts a run, and kills a victim at the given time after it was first seen. If the victim ends before, the
// time counts from when the next one like it is seen. killOne returns the time, and whether it has killed one.
func (k *killer) killOne(victim string, after time.Duration) (at time.Duration, done bool) {
	t := k.t
	t.Helper()
	env := append([]string{"TMPDIR=" + k.temporary}, k.env...)
	args := []string{"run", specFile(t, k.spec), "--out", filepath.Join(t.TempDir(), "out")}
	began := time.Now()
	p := command{args: args, env: env, timeout: 8 * time.Minute}.start(t)
	r := ofRun{tag: fmt.Sprintf("-p%d-t", p.pid), pid: p.pid, networks: map[string]bool{}, holders: map[int]uint64{}}
	var pid int
	var seen time.Time
	for running := true; running && !done; {
		select {
		case <-p.done:
			running = false
			continue
		case <-time.After(5 * time.Millisecond):
		}
		if victim == "tare" {
			r.look() // for the network namespaces
			pid, seen = p.pid, began
		} else if pid != 0 && !r.is(victim, pid) {
			pid = 0
		}
		if pid == 0 {
			if now := r.look()[victim]; len(now) > 0 {
				pid, seen = now[0], time.Now()
			}
		}
		if pid != 0 && time.Since(seen) >= after {
			r.look()
			at, done = time.Since(seen), true
			if err := proc.Kill(pid, func() bool { return pid == p.pid || r.is(victim, pid) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.ended = true
	o := p.wait(t)
	if victim != "tare" && !slices.Contains([]int{0, 3, 4}, o.code) {
		t.Errorf("%s killed after %s: %s", victim, at, o)
	}
	before := r.remains(k.temporary)
	for range 100 { // processes that the killed one had started may need a while to notice its end
		if o := (command{args: []string{"clean"}, env: env}).start(t).wait(t); o.code != 0 {
			t.Errorf("%s killed after %s: tare clean: %s", victim, at, o)
		}
		if len(r.remains(k.temporary)) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	if left := r.remains(k.temporary); len(left) > 0 {
		t.Errorf("%s killed after %s: left behind: %q", victim, at, left)
	}
	if victim != "tare" && len(before) > 0 {
		t.Logf("%s killed after %s: 'tare clean' removed what the run itself had left: %q", victim, at, before)
	}
	return at, done
}

// ofRun finds what belongs to one run of tare: all of it is named after the run's process.
type ofRun struct {
	tag      string // in names
	pid      int
	networks map[string]bool // network namespaces in which its processes were seen
	ended    bool            // the run has ended: a namespace seen from now on is not its own
	holders  map[int]uint64  // start times of processes seen in networks, by PID: names of namespaces are reused
}

// look returns the IDs of the run's processes by kind (see the method what). Until the run has ended, it also adds to
// networks and holders.
func (r *ofRun) look() map[string][]int {
	found, networks := map[string][]int{}, map[string]bool{}
	own, _ := os.Readlink("/proc/self/ns/net")
	pids, _ := proc.FS{}.PIDs()
	for _, pid := range pids {
		what := r.what(pid)
		if what == "" {
			continue
		}
		found[what] = append(found[what], pid)
		if r.ended {
			continue
		}
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid)); err == nil && ns != own {
			r.networks[ns], networks[ns] = true, true
		}
	}
	for _, pid := range pids {
		if r.ended {
			break
		}
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if p, err2 := (proc.FS{}).Process(pid); err == nil && err2 == nil && networks[ns] {
			r.holders[pid] = p.Start
		}
	}
	return found
}

func (r *ofRun) is(what string, pid int) bool { return r.what(pid) == what }

// what returns the kind of a process of the run, or "" for any other process.
func (r *ofRun) what(pid int) string {
	dir := fmt.Sprintf("/proc/%d/", pid)
	line, _ := os.ReadFile(dir + "cmdline")
	groups, _ := os.ReadFile(dir + "cgroup")
	mine := strings.Contains(string(line), r.tag) || strings.Contains(string(groups), r.tag)
	if !mine {
		env, _ := os.ReadFile(dir + "environ")
		mine = strings.Contains(string(env), r.tag)
	}
	if !mine {
		return ""
	}
	args := strings.Split(string(line), "\x00")
	arg := func(i int) string {
		if i < len(args) {
			return args[i]
		}
		return ""
	}
	status, _ := os.ReadFile(dir + "status")
	switch program := filepath.Base(arg(0)); {
	case strings.Contains(string(status), "\nState:\tZ"), len(status) == 0:
		return ""
	case program == "runsc-sandbox":
		return "sentry"
	case program == "runsc-gofer":
		return "gofer"
	case strings.HasPrefix(program, "qemu-system"):
		return "vmm"
	case program == "virtiofsd":
		return "virtiofsd"
	case arg(1) == "_shim", arg(1) == "microvm" && arg(2) == "_shim":
		return "shim"
	case slices.Contains(args, "create") && slices.Contains(args, "--bundle"),
		slices.Contains(args, "run") && slices.Contains(args, "--bundle"):
		return "runtime"
	}
	for line := range strings.Lines(string(status)) {
		if n := strings.Fields(line); n[0] == "NSpid:" && len(n) > 2 && n[len(n)-1] == "1" {
			return "init" // the first of a PID namespace
		}
	}
	return "other"
}

// remains returns everything of the run that is on this machine: processes, mounts, control groups of any hierarchy,
// network namespaces and interfaces, loop devices and files. Directories for temporary files are there for the run
// alone.
func (r *ofRun) remains(temporary string) (all []string) {
	for what, pids := range r.look() {
		all = append(all, fmt.Sprintf("processes: %s %v", what, pids))
	}
	for _, of := range []string{"self", "1"} {
		mounts, _ := os.ReadFile("/proc/" + of + "/mountinfo")
		for line := range strings.Lines(string(mounts)) {
			ours := strings.Contains(line, r.tag) || strings.Contains(line, temporary)
			for ns := range r.networks {
				ours = ours || strings.Contains(line, " "+ns+" ")
			}
			if ours {
				all = append(all, "mount: "+line)
			}
		}
	}
	for pid, start := range r.holders {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if p, err2 := (proc.FS{}).Process(pid); err == nil && err2 == nil && p.Start == start && r.networks[ns] {
			all = append(all, fmt.Sprintf("network namespace %s of process %d (%s)", ns, pid, p.Comm))
		}
	}
	links, _ := net.Interfaces()
	for _, l := range links {
		if strings.HasPrefix(l.Name, fmt.Sprintf("tare%ds", r.pid)) || strings.HasPrefix(l.Name, "tap-tare") {
			all = append(all, "interface: "+l.Name)
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, name := range loops {
		file, _ := os.ReadFile(name)
		if strings.Contains(string(file), r.tag) || strings.Contains(string(file), temporary) {
			all = append(all, "loop device: "+name)
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.Contains(d.Name(), r.tag) {
			all = append(all, "control group: "+path)
			return fs.SkipDir
		}
		return nil
	})
	for _, pattern := range []string{
		"/run/tare/*" + r.tag + "*", "/run/tare-microvm/*" + r.tag + "*", "/run/tare-microvm/,new-*" + r.tag + "*",
		"/run/virtiofsd/*" + r.tag + "*", "/run/netns/*" + r.tag + "*", "/dev/shm/*" + r.tag + "*", "/tmp/*" + r.tag + "*",
		"/var/tmp/*" + r.tag + "*", "/run/runc/*" + r.tag + "*", "/run/runsc/*" + r.tag + "*",
		"/var/run/runsc/*" + r.tag + "*", filepath.Join(temporary, "*"),
	} {
		found, _ := filepath.Glob(pattern)
		for _, f := range found {
			all = append(all, "file: "+f)
		}
	}
	return all
}
