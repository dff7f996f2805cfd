package e2e

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/record"
	"tare/test/long"
)

// nodesSpec is an experiment of tracers in short trials, with gates that no trial trips.
const nodesSpec = `name: on-nodes
question: Is every event counted at every node?
blocks: %d
warmup: 50ms
duration: %s
loads: {storm: {kind: exec}}
arms: {exectrace: {subject: exectrace}}
gates: {lag: 60s, drift: 1000}
`

// agents returns the process IDs of a run's local nodes, by name.
func agents(t *testing.T, coordinator int) map[string]int {
	t.Helper()
	found := map[string]int{}
	cmdlines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range cmdlines {
		line, _ := os.ReadFile(path) // it may have gone
		dir := filepath.Dir(path)
		if !bytes.Contains(line, []byte("\x00node\x00--handed\x00")) {
			continue
		}
		if stat, err := os.ReadFile(filepath.Join(dir, "stat")); err != nil || parentOf(string(stat)) != coordinator {
			continue
		}
		cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		name := regexp.MustCompile(`/tare-nodes-[^/]+/(n[0-9]+)-`).FindSubmatch(cgroup)
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if name != nil {
			found[string(name[1])] = pid
		}
	}
	return found
}

// underWay reports whether an agent has made the load's control group of a trial.
func underWay(agent, trial int) bool {
	group := fmt.Sprintf("tare-trial-%d-p%d-*/work/storm", trial, agent)
	return slices.ContainsFunc([]string{"", "*"}, func(hierarchy string) bool {
		made, _ := filepath.Glob(filepath.Join("/sys/fs/cgroup", hierarchy, group))
		return len(made) > 0
	})
}

func parentOf(stat string) int {
	field := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	n, _ := strconv.Atoi(field[1])
	return n
}

// noLinks fails the test if interfaces of a run's nodes are left at its end.
func noLinks(t *testing.T, coordinator int) {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range all {
		if strings.HasPrefix(i.Name, fmt.Sprintf("tare%dn", coordinator)) {
			t.Errorf("an interface is left: %s", i.Name)
		}
	}
}

// TestLocalNodes: three nodes of one machine, each with its own load and its own tracer, count every event, and their
// sum is the trial's.
func TestLocalNodes(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	leavesNothing(t)
	dir := filepath.Join(t.TempDir(), "out")
	p := command{args: []string{"run", specFile(t, fmt.Sprintf(nodesSpec, 1, "2s")), "--local-nodes", "3", "--out",
		dir}, timeout: 3 * time.Minute}.start(t)
	o := p.wait(t)
	// on a machine that is busy beside it, counters may be read too late, and trials be invalid
	if o.code != 0 && o.code != 4 {
		t.Fatal(o)
	}
	noLinks(t, p.pid)
	if !regexp.MustCompile(`3 nodes on this machine, [0-9.]+ CPU each, joined within`).MatchString(o.stderr) {
		t.Errorf("it does not say how the nodes are had: %s", o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n := c.Run.Nodes; n == nil || !n.Local || n.Count != 3 || n.CPUs <= 0 {
		t.Errorf("run.json has %+v", n)
	}
	for _, tr := range c.Trials {
		if len(tr.Nodes) != 3 || tr.Validity.Failed != "" && !strings.Contains(tr.Validity.Failed, "is too busy") {
			t.Fatalf("trial %d: %+v, %d nodes", tr.Index, tr.Validity, len(tr.Nodes))
		}
		sum, delivered := int64(0), int64(0)
		for _, n := range tr.Nodes {
			switch {
			case n.Trial == nil || n.Trial.Events == nil:
				t.Fatalf("%s: %s", n.Name, n.Failed)
			case n.Failed != "":
				t.Logf("%s: %s", n.Name, n.Failed)
			}
			e := n.Trial.Events
			if e.Generated == 0 && n.Failed == "" || e.Generated != e.Counted || e.Missed != 0 {
				t.Errorf("%s made %d execs, the kernel counted %d", n.Name, e.Generated, e.Counted)
			}
			sum += e.Generated
			if tr.Arm == "exectrace" {
				delivered += *e.Delivered
			}
			// Nodes of one machine share its clock: the offset that is found must be 0 within its stated error.
			if off := *n.ClockOffset; max(off, -off) > *n.ClockError {
				t.Errorf("the clock of %s is %d ns ahead, to %d", n.Name, off, *n.ClockError)
			}
			for _, g := range n.Trial.Ledger.Cgroups {
				if !strings.HasPrefix(g.Path, "/tare-trial-") {
					t.Errorf("%s weighs the group %s", n.Name, g.Path)
				}
			}
		}
		whole := tr.Validity.Failed == "" && !slices.ContainsFunc(tr.Nodes,
			func(n record.NodeTrial) bool { return n.Failed != "" })
		got, ok := tr.Metrics["events_generated"]
		if ok != whole || whole && int64(got) != sum {
			t.Errorf("trial %d: events_generated is %g (there: %v), and the nodes made %d", tr.Index, got, ok, sum)
		}
		if tr.Arm == "exectrace" && delivered != sum {
			t.Errorf("trial %d: %d of %d events were delivered", tr.Index, delivered, sum)
		}
		if tr.Ledger == nil || tr.Ledger.CPU.Capacity == 0 {
			t.Errorf("trial %d has no ledger of the machine", tr.Index)
		}
	}
}

// TestNodeFailures: a node that fails in mid-run costs only its part of that trial.
func TestNodeFailures(t *testing.T) {
	t.Parallel()
	const silence = "it has said nothing for"
	needsRoot(t)
	for _, c := range []struct {
		name string
		harm func(t *testing.T, agent, coordinator int, files string)
		want string
	}{
		{"killed", func(t *testing.T, agent, _ int, _ string) {
			if err := syscall.Kill(agent, syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}, "the agent ended unexpectedly: signal: killed"},
		{"stopped", func(t *testing.T, agent, _ int, _ string) {
			if err := syscall.Kill(agent, syscall.SIGSTOP); err != nil {
				t.Error(err)
			}
		}, silence},
		{"partitioned", func(t *testing.T, _, coordinator int, _ string) {
			if out, err := exec.Command("ip", "link", "set", fmt.Sprintf("tare%dn2", coordinator),
				"down").CombinedOutput(); err != nil {
				t.Errorf("%v: %s", err, out)
			}
		}, silence},
		{"disk full", func(t *testing.T, _, _ int, files string) {
			if err := unix.Mount("tare-test", files, "tmpfs", 0, "size=4k"); err != nil {
				t.Error(err)
			}
			if err := os.WriteFile(filepath.Join(files, "full"), make([]byte, 4096), 0o644); err != nil {
				t.Error(err)
			}
		}, "no space left on device"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name != "killed" {
				long.Test(t, "15 s each: a node that is stopped or partitioned, and one whose disk is full")
			}
			leavesNothing(t)
			dir, temporary := filepath.Join(t.TempDir(), "out"), t.TempDir()
			length := "1500ms"
			if c.name == "disk full" { // so that the disk is full before the record is written, even if this test is held up
				length = "5s"
			}
			p := command{args: []string{"run", specFile(t, fmt.Sprintf(nodesSpec, 1, length)), "--local-nodes", "3",
				"--out", dir},
				env: []string{"TMPDIR=" + temporary}, timeout: 3 * time.Minute}.start(t)
			var files string                                               // of n02
			t.Cleanup(func() { _ = unix.Unmount(files, unix.MNT_DETACH) }) // where there was a mount
			var agent int
			whileItRuns(t, p, func() bool { // until the first trial is in its window: the load is at work
				agent = agents(t, p.pid)["n02"]
				return agent != 0 && underWay(agent, 0)
			})
			time.Sleep(700 * time.Millisecond)
			found, err := filepath.Glob(filepath.Join(temporary, "tare-scratch-nodes-*", "n02"))
			if err != nil || len(found) != 1 {
				t.Fatalf("directories of n02: %v, %v", found, err)
			}
			files = found[0]
			c.harm(t, agent, p.pid, files)
			if c.name == "disk full" { // there is room again after the first trial
				whileItRuns(t, p, func() bool {
					lines, _ := os.ReadFile(filepath.Join(dir, record.TrialsFile))
					return bytes.Count(lines, []byte("\n")) > 0
				})
				if err := unix.Unmount(files, unix.MNT_DETACH); err != nil {
					t.Error(err)
				}
			}
			o := p.wait(t)
			noLinks(t, p.pid)
			if left := namesIn(t, temporary); len(left) > 0 {
				t.Errorf("temporary files are left: %v", left)
			}
			r, err := record.Read(dir)
			if err != nil {
				t.Fatalf("%v: %s", err, o)
			}
			if len(firstAttempts(r)) != 3 {
				t.Fatalf("%d trials: %s", len(r.Trials), o)
			}
			for _, tr := range r.Trials {
				held := strings.Contains(tr.Validity.Failed, "the trial failed at all of 3 nodes") &&
					strings.Contains(tr.Validity.Failed, "is too busy")
				if tr.Validity.Failed != "" && !held || len(tr.Nodes) != 3 {
					t.Fatalf("trial %d: %+v", tr.Index, tr.Validity)
				}
				if held { // by other work on this machine
					t.Logf("trial %d: %s", tr.Index, tr.Validity.Failed)
				}
				harmed := tr.Index == 0 && tr.Attempt == 0 // where others held the trial up as well, it is run again
				for i, n := range tr.Nodes {
					if busy := strings.Contains(n.Failed, "is too busy"); n.Failed != "" && !busy && (!harmed || i != 1) {
						t.Errorf("trial %d failed at %s too: %s", tr.Index, n.Name, n.Failed)
					}
				}
				_, sum := tr.Metrics["events_generated"]
				// If this test was held up, the node fails only after the window, when clocks are compared once more.
				silent := c.want == silence && strings.Contains(tr.Nodes[1].Failed, "its clock could not be read within")
				if harmed && (!strings.Contains(tr.Nodes[1].Failed, c.want) && !silent || sum ||
					tr.Metrics["nodes_failed"] < 1 && !held) {
					t.Errorf("trial 0 at n02: %q, want %q; a sum over the nodes: %v", tr.Nodes[1].Failed, c.want, sum)
				}
			}
			failed := strings.Contains(o.stderr, "failed at nodes: ") ||
				strings.Contains(o.stderr, "failed at all of 3 nodes; at ")
			if !failed || !strings.Contains(o.stderr, "n02: ") {
				t.Errorf("progress does not name the node: %s", o)
			}
		})
	}
}

// TestNodesKilled: a run on nodes that is killed leaves no process, namespace or interface, and tare clean takes away
// the rest, also when it begins while the agents, which are killed with the run, are still ending.
func TestNodesKilled(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	before := look(t)
	dir := filepath.Join(t.TempDir(), "out")
	p := command{args: []string{"run", specFile(t, fmt.Sprintf(nodesSpec, 10, "1s")), "--local-nodes", "3", "--out", dir},
		timeout: 3 * time.Minute}.start(t)
	var networks []string
	whileItRuns(t, p, func() bool {
		lines, _ := os.ReadFile(filepath.Join(dir, record.TrialsFile))
		return bytes.Count(lines, []byte("\n")) > 0
	})
	pids := agents(t, p.pid)
	if len(pids) != 3 {
		t.Fatalf("agents %v", pids)
	}
	for _, pid := range pids {
		ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err != nil {
			t.Fatal(err)
		}
		networks = append(networks, ns)
	}
	p.signal(t, syscall.SIGKILL)
	p.wait(t)
	if o := tare(t, "clean"); o.code != 0 {
		t.Error(o)
	}
	for _, what := range leftSince(t, before) {
		t.Errorf("left behind: %s", what)
	}
	left := []string{"at first"}
	for range 50 { // the kernel takes a namespace away a while after its last process
		if left = usesNetwork(t, networks); len(left) == 0 {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	for _, who := range left {
		t.Errorf("left behind: %s", who)
	}
	noLinks(t, p.pid)
}

// TestNodesInterrupted: Ctrl-C takes the trial down at every node, and what was measured is kept.
func TestNodesInterrupted(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	const tries = 3 // if the signal is sent late, it comes between two trials, and interrupts none
	for try := 1; ; try++ {
		dir := filepath.Join(t.TempDir(), "out")
		p := command{args: []string{"run", specFile(t, fmt.Sprintf(nodesSpec, 10, "1s")), "--local-nodes", "2", "--out",
			dir}, timeout: 3 * time.Minute}.start(t)
		whileItRuns(t, p, func() bool {
			agent := agents(t, p.pid)["n02"]
			return agent != 0 && underWay(agent, 1)
		})
		p.signal(t, syscall.SIGINT)
		o := p.wait(t)
		if o.code != 4 || !strings.Contains(o.stderr, "interrupted: the run is partial") {
			t.Error(o)
		}
		noLinks(t, p.pid)
		c, err := record.Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		last := c.Trials[len(c.Trials)-1]
		if !c.Partial || len(firstAttempts(c)) < 2 {
			t.Errorf("%d trials, partial %v, the last %+v", len(c.Trials), c.Partial, last.Validity)
		}
		if last.Validity.Failed == record.Interrupted {
			return
		}
		if try == tries {
			t.Fatalf("in none of %d runs was a trial interrupted; the last is %+v", tries, last.Validity)
		}
	}
}

// usesNetwork returns the paths of /proc/PID/ns/net of the processes in the given network namespaces.
func usesNetwork(t *testing.T, networks []string) []string {
	t.Helper()
	var who []string
	links, err := filepath.Glob("/proc/[0-9]*/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range links {
		if ns, err := os.Readlink(l); err == nil && slices.Contains(networks, ns) {
			who = append(who, l)
		}
	}
	return who
}

// TestNode: an agent that joins a coordinator over the loopback, with keys from files, runs the coordinator's trials.
// One that joins under another name than its certificate's is refused.
func TestNode(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	leavesNothing(t)
	keys := filepath.Join(t.TempDir(), "keys")
	if o := tare(t, "node", "keys", "--dir", keys, "a", "b"); o.code != 0 || strings.Count(o.stdout, "\n") != 8 {
		t.Fatal(o)
	}
	dir := filepath.Join(t.TempDir(), "out")
	spec := specFile(t, strings.NewReplacer("blocks: 2", "blocks: 1\nnodes: 1", "300ms", "1s").Replace(shortSpec))
	run := command{args: []string{"run", spec, "--nodes-listen", "127.0.0.1:0", "--nodes-keys", keys, "--nodes", "1",
		"--out", dir}, timeout: 2 * time.Minute}.start(t)
	var address string
	whileItRuns(t, run, func() bool {
		if found := regexp.MustCompile(`waiting for 1 node at (\S+)`).FindStringSubmatch(run.stderr.String()); found != nil {
			address = found[1]
		}
		return address != ""
	})
	node := func(name, as string) command {
		own := filepath.Join(keys, as)
		return command{args: []string{"node", "--join", address, "--name", name, "--ca", filepath.Join(keys, "authority.pem"),
			"--cert", own + ".pem", "--key", own + ".key"}, timeout: 2 * time.Minute}
	}
	if o := node("a", "b").start(t).wait(t); o.code != 2 ||
		!strings.Contains(o.stderr, `the certificate is for a node "b", and the agent calls itself "a"`) {
		t.Errorf("under another's name: %s", o)
	}
	agent := node("a", "a").start(t)
	o := run.wait(t)
	if o.code != 0 && !strings.Contains(o.stderr, "is too busy") {
		t.Fatal(o)
	}
	if n := agent.wait(t); n.code != 0 || !strings.Contains(n.stderr, "a: joined "+address) {
		t.Errorf("the agent: %s", n)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if n := c.Run.Nodes; n == nil || n.Local || n.Count != 1 || len(n.Nodes) != 1 || n.Nodes[0].Name != "a" ||
		n.Nodes[0].CPUs == 0 {
		t.Errorf("run.json has %+v", n)
	}
	if len(firstAttempts(c)) != 3 {
		t.Errorf("%d trials", len(c.Trials))
	}
	if others := fmt.Sprintf("(process %d)", agent.pid); strings.Contains(o.stderr, others) {
		t.Errorf("the agent is taken for another run: %s", o)
	}
	for _, tr := range c.Trials {
		if strings.Contains(tr.Nodes[0].Failed, "is too busy") {
			t.Logf("trial %d: %s", tr.Index, tr.Nodes[0].Failed)
			continue
		}
		client := tr.Loads["client"]
		answers, _ := client.Answers()
		if tr.Validity.Failed != "" || !tr.Validity.Valid && !disturbed(tr) || client.Intended == 0 ||
			(tr.Metrics["throughput_per_second"] > 0) != (answers > 0) || tr.Nodes[0].Trial.Ledger.CPU.Capacity == 0 {
			t.Errorf("trial %d: %+v, %d answers, %v", tr.Index, tr.Validity, answers, tr.Metrics)
		}
	}
}

func TestNodesWrongUse(t *testing.T) {
	leavesNothing(t)
	spec := specFile(t, shortSpec)
	for _, c := range []struct{ args, want string }{
		{"run " + spec + " --local-nodes 0", "one machine cannot have 0 nodes"},
		{"run " + spec + " --local-nodes 65", "give 1 to 64"},
		{"run " + spec + " --local-nodes 2 --nodes-listen :0 --nodes-keys k --nodes 2",
			"nodes are either on this machine (--local-nodes) or on others"},
		{"run " + spec + " --nodes-listen :0", "missing keys or number of nodes"},
		{"run " + spec + " --nodes 3", "give the address at which nodes join"},
		{"run " + spec + " --local-nodes 2 --node-cpus 0.001", "0.001 CPUs is not a valid limit"},
		{"node", "missing value"},
		{"node keys --dir k", "want the names of one or more nodes"},
		{"node keys n1", "--dir"},
		{"node keys --dir k N1", "not a name for a node"},
		{"node --join x:1 --name n --ca /nosuch --cert /nosuch --key /nosuch", "credentials cannot be read"},
	} {
		o := tare(t, strings.Fields(c.args)...)
		if o.code != 2 || o.stdout != "" || !strings.Contains(o.stderr, c.want) {
			t.Errorf("tare %s: want exit code 2 and %q: %s", c.args, c.want, o)
		}
	}
}
