package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/scale/host/proc"
	envoytest "tare/test/envoy"
)

// meshSpec is a run of some blocks whose arms have proxies, in which nothing is run twice.
func meshSpec(blocks int, duration string, arms ...string) string {
	return fmt.Sprintf(`name: mesh-killed
question: What becomes of a run whose proxies are killed?
blocks: %d
warmup: 100ms
duration: %s
statistics: false
repeat: 0%%
applications:
  server: {kind: http}
loads:
  client: {kind: http, to: server, rate: 50, connections: 2}
arms:
  %s
gates: {rate: 0, errors: 1, lag: 60s, drift: 1000, generator_cpu: 1, throttled: 1h, connections: 0, invalid: 1}
`, blocks, duration, strings.Join(arms, "\n  "))
}

// meshes are the kinds of proxies, as arms, and the components that each has.
var meshes = []struct {
	name       string
	settings   string
	components []string
	always     bool // in the short form too, where its control plane alone is killed: other packages kill proxies
}{
	{"haproxy", "subject: haproxy", []string{"proxy.client", "proxy.server"}, false},
	{"nginx", "subject: nginx", []string{"proxy.client", "proxy.server"}, false},
	{"envoy", "subject: envoy", []string{"proxy.client", "proxy.server", "controlplane"}, true},
}

// meshArm returns an arm with one of meshes, and a timeout that is long enough for a slow machine.
func meshArm(name, settings string) string {
	return fmt.Sprintf("%s: {%s, ready-timeout: 60s}", name, settings)
}

// TestMeshKilled: whichever component of a mesh is killed, and whenever, its trial fails with that as the cause, the
// run goes on to its end, and nothing is left behind. When tare itself is killed, 'tare clean' leaves nothing.
// TARE_KILLS is how often each is killed.
func TestMeshKilled(t *testing.T) {
	needsRoot(t)
	long := os.Getenv("TARE_KILLS") != ""
	for _, m := range meshes {
		if !long && !m.always {
			continue
		}
		t.Run(m.name, func(t *testing.T) {
			var env []string
			switch m.name {
			case "haproxy", "nginx":
				needsProxy(t, m.name)
			case "envoy":
				env = withEnvoy(t)
			}
			components := m.components
			if !long {
				components = []string{"controlplane"}
			}
			k := meshKiller{t: t, env: env, arm: meshArm("mine", m.settings), temporary: t.TempDir(), left: map[string]int{},
				failed: map[string]int{}, late: map[string]int{}}
			for _, c := range components {
				k.left[c] = kills(1)
			}
			seed := uint64(time.Now().UnixNano())
			k.random = rand.New(rand.NewPCG(seed, 0))
			for runs := 0; k.total() > 0; runs++ {
				if runs > 3+kills(1) {
					t.Fatalf("still to be killed: %v", k.left)
				}
				k.run(min(20, k.total()))
			}
			t.Logf("killed, and its trial failed: %v; too late to matter: %v; seed %d", k.failed, k.late, seed)
			for c, n := range k.late {
				if n > k.failed[c] && long {
					t.Errorf("%s was killed %d times for nothing, and %d times not", c, n, k.failed[c])
				}
			}
		})
	}
	if long {
		t.Run("tare", func(t *testing.T) {
			var arms []string
			for _, m := range meshes {
				arms = append(arms, meshArm(m.name, m.settings+", optional: true"))
			}
			k := killer{t: t, temporary: t.TempDir(), env: withEnvoy(t), spec: meshSpec(1, "300ms", arms...)}
			k.killMany("tare", kills(1))
		})
	}
}

// withEnvoy returns an environment variable, PATH, with which Envoy is found.
func withEnvoy(t *testing.T) []string {
	t.Helper()
	return []string{"PATH=" + filepath.Dir(envoytest.Path(t)) + ":" + os.Getenv("PATH")}
}

// meshKiller kills components of one arm, once in each of its trials.
type meshKiller struct {
	t         *testing.T
	env       []string
	arm       string
	temporary string // directory that runs have for temporary files
	random    *rand.Rand

	left         map[string]int // kills to do, by component
	failed, late map[string]int // how kills ended: trials that failed, and kills too late
}

func (k *meshKiller) total() (n int) {
	for _, c := range k.left {
		n += c
	}
	return n
}

// choose returns one of the components that are still to be killed.
func (k *meshKiller) choose() string {
	var all []string
	for c, n := range k.left {
		if n > 0 {
			all = append(all, c)
		}
	}
	slices.Sort(all)
	if len(all) == 0 {
		return ""
	}
	return all[k.random.IntN(len(all))]
}

// run makes one run of tare and kills one component in each of its trials, at a random moment up to 500 ms after the
// component was first seen, and often within 100 ms.
func (k *meshKiller) run(blocks int) {
	t := k.t
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	p := command{
		args: []string{"run", specFile(t, meshSpec(blocks, "400ms", k.arm)), "--out", out},
		env:  append([]string{"TMPDIR=" + k.temporary}, k.env...), timeout: 8 * time.Minute,
	}.start(t)
	r := ofRun{tag: fmt.Sprintf("-p%d-t", p.pid), pid: p.pid, networks: map[string]bool{}, holders: map[int]uint64{}}
	killed := map[string]int{}
	var victim string
	var seen time.Time
	var after time.Duration
	var done bool // in this trial
	for running := true; running; {
		select {
		case <-p.done:
			running = false
			continue
		case <-time.After(2 * time.Millisecond):
		}
		now := componentsOf(r)
		switch {
		case len(now) == 0: // between two trials
			victim, done, seen = "", false, time.Time{}
		case done:
		case victim == "":
			victim = k.choose()
			after = time.Duration(k.random.Float64() * float64(100*time.Millisecond))
			if k.random.IntN(2) == 0 {
				after = time.Duration(k.random.Float64() * float64(500*time.Millisecond))
			}
			done = victim == "" // nothing is left to do
		case len(now[victim]) == 0:
		case seen.IsZero():
			seen = time.Now()
		case time.Since(seen) >= after:
			pid := now[victim][k.random.IntN(len(now[victim]))]
			if err := proc.Kill(pid, func() bool { return r.component(pid) == victim }); err != nil {
				t.Fatal(err)
			}
			killed[victim]++
			k.left[victim]--
			done = true
		}
	}
	o := p.wait(t)
	if !slices.Contains([]int{0, 3, 4}, o.code) {
		t.Errorf("the run: %s", o)
	}
	k.judge(out, blocks, killed, o)
	r.ended = true
	if left := r.remains(k.temporary); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// judge compares what the record says of the trials with what was killed in them.
func (k *meshKiller) judge(out string, blocks int, killed map[string]int, o output) {
	t := k.t
	t.Helper()
	c, err := record.Read(out)
	if err != nil {
		t.Fatalf("%v: %s", err, o)
	}
	if len(c.Trials) != 3*blocks {
		t.Errorf("the run has %d trials of %d: %s", len(c.Trials), 3*blocks, o)
	}
	failed := map[string]int{}
	for _, tr := range c.Trials {
		why := tr.Validity.Failed
		if why == "" {
			continue
		}
		component, first := "", len(why)
		for victim := range killed { // the first that the reason names: after it comes what other components saw
			if at := strings.Index(why, victim); at >= 0 && at < first {
				component, first = victim, at
			}
		}
		// If a worker is killed and the component's first process lives on, the reason is that the worker ended.
		if !strings.Contains(why, "killed") && !strings.Contains(why, "ended during the trial") {
			component = ""
		}
		if tr.Arm != "mine" || component == "" {
			t.Errorf("%v were killed, and a trial of %s failed because of %q", killed, tr.Arm, why)
			continue
		}
		failed[component]++
	}
	for victim, n := range killed {
		if failed[victim] > n {
			t.Errorf("%s was killed %d times, and %d trials failed because of it", victim, n, failed[victim])
		}
		k.failed[victim] += failed[victim]
		k.late[victim] += n - failed[victim]
	}
}

// componentsOf returns the processes of a run that belong to components of its subject.
func componentsOf(r ofRun) map[string][]int {
	found := map[string][]int{}
	pids, _ := proc.FS{}.PIDs()
	for _, pid := range pids {
		if c := r.component(pid); c != "" {
			found[c] = append(found[c], pid)
		}
	}
	return found
}

// component returns the component of a process of the run's subject, by its control group; empty for any other process.
func (r *ofRun) component(pid int) string {
	groups, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil || !strings.Contains(string(groups), r.tag) {
		return ""
	}
	if p, err := (proc.FS{}).Process(pid); err != nil || !p.Alive() {
		return ""
	}
	for _, c := range []string{"proxy.client", "proxy.server", "controlplane"} {
		if strings.Contains(string(groups), "/subject/"+strings.ReplaceAll(c, ".", "-")) {
			return c
		}
	}
	return ""
}
