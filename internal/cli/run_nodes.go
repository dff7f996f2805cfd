package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tare/internal/experiment/cluster"
	"tare/internal/experiment/cluster/local"
	"tare/internal/experiment/engine"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/lib/quantity"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// nodesFlags holds the flags of tare run about nodes.
type nodesFlags struct {
	local  int
	cpus   float64
	listen string
	keys   string
	count  int
	wait   time.Duration
}

func (f *nodesFlags) register(fs *pflag.FlagSet) {
	fs.IntVar(&f.local, "local-nodes", 0, "number of nodes to run on this machine; default, for an experiment with "+
		"nodes: 25 for every two CPUs, at most 50")
	fs.Float64Var(&f.cpus, "node-cpus", -1,
		"CPUs that the groups of one local node may use together, 0 for no limit; default an even share of nine tenths of "+
			"the machine")
	fs.StringVar(&f.listen, "nodes-listen", "", "run on machines that join here with 'tare node': ADDRESS:PORT")
	fs.StringVar(&f.keys, "nodes-keys", "", "directory of 'tare node keys', for --nodes-listen")
	fs.IntVar(&f.count, "nodes", 0, "nodes to wait for, for --nodes-listen")
	fs.DurationVar(&f.wait, "nodes-wait", 5*time.Minute, "how long to wait for them")
}

// check returns an error for flags that are out of range or exclude each other.
func (f *nodesFlags) check(changed func(string) bool) error {
	switch {
	case changed("local-nodes") && (f.local < 1 || f.local > local.MostNodes):
		return fault.New(fault.Usage, "--local-nodes", fmt.Sprintf("give 1 to %d", local.MostNodes),
			"one machine cannot have %d nodes", f.local)
	case f.listen != "" && f.local > 0:
		return fault.New(fault.Usage, "--nodes-listen", "leave one of them out",
			"nodes are either on this machine (--local-nodes) or on others (--nodes-listen)")
	case f.listen != "" && (f.keys == "" || f.count < 1):
		return fault.New(fault.Usage, "--nodes-listen", "give --nodes-keys DIR and --nodes N; see 'tare node --help'",
			"missing keys or number of nodes")
	case f.count > cluster.MaxNodes:
		return fault.New(fault.Usage, "--nodes", fmt.Sprintf("give at most %d", cluster.MaxNodes),
			"a run cannot have %d nodes", f.count)
	case f.listen == "" && (f.keys != "" || f.count != 0):
		return fault.New(fault.Usage, "--nodes-listen", "give the address at which nodes join, or --local-nodes N",
			"missing value")
	case changed("node-cpus") && f.cpus != 0 && f.cpus < leastShare:
		return fault.New(fault.Usage, "--node-cpus", fmt.Sprintf("give at least %g, or 0 for no limit", leastShare),
			"%g CPUs is not a valid limit", f.cpus)
	case changed("node-cpus") && f.listen != "":
		return fault.New(fault.Usage, "--node-cpus", "omit it", "applies to local nodes only")
	}
	return nil
}

// leastShare is the smallest CPU limit that the kernel can set, in CPUs.
const leastShare = 0.01

// carries returns how many local nodes a machine with the given number of CPUs can run. Each then has at least 0.07
// CPU, with which a tracer starts in seconds.
func carries(cpus int) int { return max(1, min(25*cpus/2, 50)) }

// nodeShare returns the share of its machine that each node's trial gets. The groups of all local nodes together have
// the CPU weight of one other group, so that the measured processes do not delay the process that reads the counters.
func nodeShare(r *record.Nodes) cluster.Share {
	if !r.Local {
		return cluster.Share{}
	}
	return cluster.Share{CPUs: r.CPUs, Weight: 1 / float64(r.Count)}
}

// fleet holds the nodes of a run, ready for use.
type fleet struct {
	engine.Nodes
	close func() error
}

// plan fits the spec to the nodes that will exist, and returns how they are provided; nil if the experiment has no
// nodes.
func (f *nodesFlags) plan(s *spec.Spec) *record.Nodes {
	most := s.MostNodes()
	n := f.local
	switch {
	case f.listen != "":
		return &record.Nodes{Count: f.count, Scaled: s.ScaleNodes(f.count)}
	case n == 0 && most == 0:
		return nil
	case n == 0:
		n = min(max(most, 1), carries(proc.FS{}.Machine().CPUs))
	}
	r := &record.Nodes{Local: true, Scaled: s.ScaleNodes(n)}
	r.Count = s.MostNodes()
	if r.CPUs = f.cpus; f.cpus < 0 {
		r.CPUs = max(leastShare, 0.9*float64(proc.FS{}.Machine().CPUs)/float64(r.Count))
	}
	return r
}

// gather starts the nodes if they are local, and waits until all have joined. It reports progress to the user through
// said.
func (f *nodesFlags) gather(ctx context.Context, s *spec.Spec, r *record.Nodes, self string, layout *cgroup.Layout,
	said io.Writer) (*fleet, error) {
	joined := func(n int) {
		if n > 0 {
			fmt.Fprintf(said, "%d of %s joined\n", n, quantity.Counted(r.Count, "node"))
		}
	}
	if r.Local {
		started := time.Now()
		n, err := local.Start(ctx, local.Options{Self: self, Cgroups: layout, Count: r.Count, Version: buildVersion()})
		if err != nil {
			return nil, err
		}
		limit := "without a limit of CPU"
		if r.CPUs > 0 {
			limit = fmt.Sprintf("%.3g CPU each", r.CPUs)
		}
		fmt.Fprintf(said, "%s on this machine, %s, joined within %.1f s\n", quantity.Counted(len(n.Nodes()), "node"), limit,
			time.Since(started).Seconds())
		return &fleet{Nodes: n, close: n.Close}, nil
	}
	keys, err := cluster.ReadCoordinator(f.keys)
	if err == nil {
		err = warnExpiring(keys, said)
	}
	if err != nil {
		return nil, err
	}
	c, err := cluster.NewCoordinator(cluster.Options{Version: buildVersion(), Credentials: keys})
	if err != nil {
		return nil, err
	}
	closed := func() error { c.Close(); return nil }
	at, err := c.Listen(f.listen)
	var there []cluster.Hello
	if err == nil {
		fmt.Fprintf(said, "waiting for %s at %s\n", quantity.Counted(r.Count, "node"), at)
		there, err = c.Wait(ctx, r.Count, f.wait, joined)
	}
	if err == nil {
		err = checkReach(s, there)
	}
	if err != nil {
		return nil, errors.Join(err, closed())
	}
	nodes := remoteNodes{Coordinator: c}
	for _, h := range there {
		nodes.names = append(nodes.names, h.Name)
		r.Nodes = append(r.Nodes, h.Node)
	}
	return &fleet{Nodes: nodes, close: closed}, nil
}

// checkReach returns an error, before the first trial, if a node would refuse the spec.
func checkReach(s *spec.Spec, nodes []cluster.Hello) error {
	var refusing []string
	for _, h := range nodes {
		if !h.AllowCommands {
			refusing = append(refusing, h.Name)
		}
	}
	if len(refusing) == 0 {
		return nil
	}
	const most = 5
	if n := len(refusing); n > most {
		refusing = append(refusing[:most], fmt.Sprintf("%d more", n-most))
	}
	return s.CheckReach(strings.Join(refusing, ", "))
}

// remoteNodes are machines that joined by themselves, and may join again.
type remoteNodes struct {
	*cluster.Coordinator
	names []string
}

func (r remoteNodes) Names() []string                        { return r.names }
func (r remoteNodes) Ensure(context.Context, []string) error { return nil }
func (r remoteNodes) Why(string) string                      { return "" }
func (r remoteNodes) Group() string                          { return "" }

// PIDs returns the processes of the agents on the coordinator's machine, which can be a node too.
func (r remoteNodes) PIDs() []int {
	here := proc.FS{}.Machine().BootID
	var pids []int
	for _, h := range r.Nodes() {
		if h.BootID == here {
			pids = append(pids, h.PID)
		}
	}
	return pids
}
