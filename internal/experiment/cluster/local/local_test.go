package local

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"tare/internal/experiment/cluster"
	"tare/internal/experiment/link"
	"tare/internal/experiment/placement"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
	"tare/test/binary"
)

// TestMain lets the test binary enter a control group, as tare does when it executes itself.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == placement.EnterCommand {
		err := placement.Enter(os.Args[2:])
		fmt.Fprintln(os.Stderr, err)
		os.Exit(int(fault.CodeOf(err)))
	}
	os.Exit(m.Run())
}

// start starts local nodes, and checks after the test that nothing is left of them.
func start(t *testing.T, count int) *Nodes {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: control groups and network namespaces")
	}
	self, err := binary.Build(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	n, err := Start(t.Context(), Options{Self: self, Cgroups: layout, Count: count, Version: version(t, self)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		for _, i := range links(t) {
			t.Errorf("an interface is left: %s", i)
		}
		for _, h := range layout.Hierarchies {
			if left, _ := filepath.Glob(filepath.Join(h.Mount, fmt.Sprintf("tare-*-p%d-*", os.Getpid()))); len(left) > 0 {
				t.Errorf("groups are left: %v", left)
			}
		}
		if _, err := os.Stat(n.files.Path()); err == nil {
			t.Errorf("%s is left", n.files.Path())
		}
	})
	return n
}

// version returns the version that the binary prints: agents must have the coordinator's version, and this test binary
// has none.
func version(t *testing.T, self string) string {
	t.Helper()
	text, err := exec.Command(self, "--version").Output()
	if err != nil {
		t.Fatal(err)
	}
	// tare version 0.1.0-dev go1.26.0 ...
	words := strings.SplitN(strings.TrimPrefix(strings.TrimSpace(string(text)), "tare version "), " ", 2)
	return words[0] + " (" + words[1] + ")"
}

// links returns the network interfaces of this process's nodes.
func links(t *testing.T) []string {
	t.Helper()
	all, err := net.Interfaces()
	if err != nil {
		t.Fatal(err)
	}
	var ours []string
	for _, i := range all {
		if strings.HasPrefix(i.Name, fmt.Sprintf("tare%dn", os.Getpid())) {
			ours = append(ours, i.Name)
		}
	}
	return ours
}

func network(t *testing.T, pid int) string {
	t.Helper()
	ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	return ns
}

// try runs a trial that no node can set up: their answers show that they are connected and get the request.
func try(t *testing.T, n *Nodes, want map[string]string) {
	t.Helper()
	names := n.Names()
	for i, o := range n.Run(t.Context(), names, cluster.Share{}, json.RawMessage(`[]`), 0, 0,
		func(int64) { t.Error("it began") }) {
		if o.Failed == nil || !strings.Contains(o.Failed.Error(), want[names[i]]) {
			t.Errorf("%s: %v, want %q", o.Name, o.Failed, want[names[i]])
		}
	}
}

// TestNodes: every node has a separate network. If its agent is killed or its link goes down, only that node is
// missing, and it comes back.
func TestNodes(t *testing.T) {
	n := start(t, 3)
	pids := n.PIDs()
	networks := []string{network(t, os.Getpid())}
	for _, pid := range pids {
		networks = append(networks, network(t, pid))
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil || strings.Contains(string(line), "KEY") || len(line) > 200 {
			t.Errorf("the command line of an agent is %q (%v)", line, err)
		}
	}
	slices.Sort(networks)
	if len(slices.Compact(networks)) != 4 || len(links(t)) != 3 {
		t.Errorf("networks %v, interfaces %v", networks, links(t))
	}
	const there = "decoding the trial"
	try(t, n, map[string]string{"n01": there, "n02": there, "n03": there})

	n.mu.Lock()
	second, third := n.agents["n02"], n.agents["n03"]
	n.mu.Unlock()
	_ = second.Signal(os.Kill)
	<-second.Ended()
	if err := setDown(third.link); err != nil {
		t.Fatal(err)
	}
	for n.Gone("n02") == nil || n.Gone("n03") == nil {
		time.Sleep(20 * time.Millisecond)
	}
	try(t, n, map[string]string{"n01": there, "n02": "it is not connected: its connection broke",
		"n03": "it is not connected: it has said nothing for"})
	if why := n.Why("n02"); !strings.Contains(why, "the agent ended unexpectedly: signal: killed") {
		t.Errorf("n02 went because %q", why)
	}
	if err := n.Ensure(t.Context(), n.Names()); err != nil {
		t.Fatal(err)
	}
	joined := len(n.Nodes())
	if joined != 3 || len(links(t)) != 3 || len(n.PIDs()) != 3 {
		t.Errorf("%d joined, interfaces %v", joined, links(t))
	}
	try(t, n, map[string]string{"n01": there, "n02": there, "n03": there})
}

// setDown takes the interface with the given name down.
func setDown(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetDown(link)
}

// TestClean: the remains of a run that has ended are removed even if a process keeps its namespace open. What belongs
// to a live run, or to others, is kept.
func TestClean(t *testing.T) {
	n := start(t, 1)
	running := n.tree.Name()
	ended := "tare-nodes-p" + strconv.Itoa(os.Getpid()) + "-t1" // names this PID with an earlier start time, as if reused
	holder, err := link.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { holder.Close() })
	aliases := map[string]string{"tart0": ended, "tart1": running, "tart2": "somebody's", "tart3": ""}
	for name, alias := range aliases {
		t.Cleanup(func() {
			if err := link.Remove(name, alias); err != nil {
				t.Error(err)
			}
		})
		if err := link.MakePair(name, name, holder); err != nil {
			t.Fatal(err)
		}
		if err := link.Configure(name, alias, netip.Prefix{}); err != nil {
			t.Fatal(err)
		}
	}
	removed, err := link.Clean(placement.NewOwners(n.o.Cgroups))
	if err != nil || !slices.Equal(removed, []string{"tart0"}) {
		t.Errorf("removed %v, %v", removed, err)
	}
	for name := range aliases {
		if _, err := net.InterfaceByName(name); (err == nil) == (name == "tart0") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(links(t)) != 1 {
		t.Error("a running node's interface was removed")
	}
	try(t, n, map[string]string{"n01": "decoding the trial"})
}

// TestForeignInterface: a run in another container can have the same pid, and thus the same name for its node's
// interface, which stays when this run fails.
func TestForeignInterface(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: control groups and network namespaces")
	}
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	holder, err := link.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer holder.Close()
	const alias = "tare-1a2b3c-n4026531836-p7-t1"
	name := fmt.Sprintf("tare%dn1", os.Getpid())
	if err := link.MakePair(name, link.Inside, holder); err != nil {
		t.Fatal(err)
	}
	if err := link.Configure(name, alias, netip.Prefix{}); err != nil {
		t.Fatal(err)
	}
	_, err = Start(t.Context(), Options{Self: "/bin/false", Cgroups: layout, Count: 1, Version: "x"})
	if left := links(t); err == nil || !slices.Equal(left, []string{name}) {
		t.Errorf("left: %v, %v", left, err)
	}
	if err := link.Remove(name, alias); err != nil {
		t.Error(err)
	}
}

func TestStartWrong(t *testing.T) {
	for _, count := range []int{0, -1, MostNodes + 1} {
		if _, err := Start(context.Background(), Options{Count: count}); fault.CodeOf(err) != fault.Usage {
			t.Errorf("%d nodes: %v", count, err)
		}
	}
}

// TestAgentThatCannot: if the binary is not tare, the error shows the last lines of its output, and nothing is left
// behind.
func TestAgentThatCannot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: control groups and network namespaces")
	}
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = Start(t.Context(), Options{Self: "/bin/false", Cgroups: layout, Count: 1, Version: "x"})
	if err == nil || !strings.Contains(err.Error(), "node n01: the agent ended before it had joined: exit status 1") &&
		!strings.Contains(err.Error(), "virtual interfaces") {
		t.Errorf("got %v", err)
	}
	if left := links(t); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
