// Package local runs many nodes on one machine. Each node is an agent, the same process as on a remote machine. It has
// a private network namespace, which a pair of virtual interfaces connects to the coordinator, and a control group
// that is separate from those of its trials. Agents die with the coordinator, however it ends, and their namespaces
// and interfaces go with them.
package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/experiment/cluster"
	"tare/internal/experiment/link"
	"tare/internal/experiment/placement"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/scale/host/cgroup"
)

// MostNodes is the largest number of local nodes.
const MostNodes = link.MostPairs

// Options configures local nodes.
type Options struct {
	Self    string // path of the tare binary
	Cgroups *cgroup.Layout
	Count   int
	Version string
}

// Handed holds an agent's configuration and keys. The coordinator passes it to the agent through a pipe, because keys
// belong neither on a disk nor on a command line.
type Handed struct {
	Name        string              `json:"name"`
	Join        string              `json:"join"` // address of the coordinator
	Credentials cluster.Credentials `json:"credentials"`
	Address     netip.Prefix        `json:"address"` // address of the agent's end of its link
	Dir         string              `json:"dir"`     // directory for the files of its trials
}

// HandedFlag is the flag of 'tare node' that gives the number of the descriptor from which the agent reads a Handed.
const HandedFlag = "handed"

const (
	handedFD    = 3 // the first of child.Command.Files
	joinTimeout = 60 * time.Second
	keysLife    = 30 * 24 * time.Hour // longer than any run
	stopTimeout = 20 * time.Second    // limit for an agent to take its trial down
	// agentsWeight is the weight of all agents together (placement.Limits). Agents do little work, but they must not wait
	// for the processes that they measure.
	agentsWeight = 16
	abreast      = 8 // agents that are started concurrently
)

// Nodes holds the local nodes of one run. Start makes it.
type Nodes struct {
	*cluster.Coordinator
	o         Options
	authority *cluster.Authority
	tree      *placement.Tree
	files     *files.Scratch // contains a directory for each node
	network   netip.Prefix

	mu     sync.Mutex
	agents map[string]*agent
	starts int
}

// agent is the process of one local node.
type agent struct {
	child.Process
	link string
}

// Start starts a coordinator and the nodes, and waits until they have joined. The caller must close n.
func Start(ctx context.Context, o Options) (n *Nodes, err error) {
	if o.Count < 1 || o.Count > MostNodes {
		return nil, fault.New(fault.Usage, "--local-nodes", fmt.Sprintf("give 1 to %d", MostNodes),
			"one machine cannot have %d nodes", o.Count)
	}
	n = &Nodes{o: o, agents: map[string]*agent{}}
	if n.network, err = link.FreeNet(); err != nil {
		return nil, err
	}
	if n.authority, err = cluster.NewAuthority(keysLife); err != nil {
		return nil, err
	}
	c, err := n.authority.Coordinator()
	if err != nil {
		return nil, err
	}
	if n.Coordinator, err = cluster.NewCoordinator(cluster.Options{Version: o.Version, Credentials: c}); err != nil {
		return nil, err
	}
	if n.tree, err = placement.NewTree(o.Cgroups, "nodes"); err != nil {
		n.Coordinator.Close()
		return nil, err
	}
	if n.files, err = files.NewScratch(files.LargeTemp(), "nodes"); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	// Without the cpu controller no group has a weight, so the agents need none.
	if err = n.tree.Limit(placement.Limits{Weight: agentsWeight}); err != nil && len(n.tree.Missing()) == 0 {
		return nil, errors.Join(err, n.Close())
	}
	if err := n.Ensure(ctx, n.Names()); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	for _, name := range n.Names() {
		if why := n.Gone(name); why != nil {
			return nil, errors.Join(fmt.Errorf("node %s: %w", name, why), n.Close())
		}
	}
	return n, nil
}

// Names returns the names of all nodes, in order.
func (n *Nodes) Names() []string {
	var names []string
	for i := range n.o.Count {
		names = append(names, fmt.Sprintf("n%02d", i+1))
	}
	return names
}

// Ensure starts the named nodes that are absent, and waits until they have joined. It is not an error if a node does
// not join: it will be missing from the trial, which reports it.
func (n *Nodes) Ensure(ctx context.Context, names []string) error {
	missing := slices.DeleteFunc(slices.Clone(names), func(name string) bool { return n.Gone(name) == nil })
	if len(missing) == 0 {
		return nil
	}
	var cleared bool
	for _, name := range missing {
		cleared = n.end(name) || cleared
	}
	if cleared {
		if err := n.cleanUp(); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	slots := make(chan struct{}, abreast)
	for _, name := range missing {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			if err := n.startOne(ctx, name); err != nil {
				n.Drop(name, err)
			}
		})
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

// startOne starts the agent of a node and waits until it has joined.
func (n *Nodes) startOne(ctx context.Context, name string) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	i := slices.Index(n.Names(), name)
	n.mu.Lock()
	n.starts++
	group := fmt.Sprintf("%s-%d", name, n.starts)
	n.mu.Unlock()
	h := Handed{Name: name, Dir: filepath.Join(n.files.Path(), name)}
	if h.Credentials, err = n.authority.Node(name); err != nil {
		return err
	}
	if err := os.MkdirAll(h.Dir, 0o755); err != nil {
		return fault.Wrap(err, fault.Machine, h.Dir, "set TMPDIR to a directory that can be written",
			"the node's directory cannot be made")
	}
	here, there := link.Addresses(n.network, i)
	h.Address = there
	g, err := n.tree.Group(group, placement.Limits{})
	if err != nil {
		return err
	}
	read, write, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	defer write.Close()
	namespace, err := link.NewNamespace()
	if err != nil {
		read.Close()
		return err
	}
	defer namespace.Close() // when startOne returns, the agent's process keeps the namespace alive, or has failed
	a := &agent{link: "tare" + strconv.Itoa(os.Getpid()) + "n" + strconv.Itoa(i+1)}
	cmd := child.Command{Argv: []string{n.o.Self, "node", "--" + HandedFlag, strconv.Itoa(handedFD)},
		Files: []*os.File{read}}
	err = child.Start(&a.Process, cmd, child.Options{
		Name: "the agent", Grace: stopTimeout, Linger: time.Second,
		Begin: g.In(namespace.Path()),
	})
	read.Close()
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.agents[name] = a
	n.mu.Unlock()
	defer func() {
		if err == nil {
			return
		}
		select {
		case <-a.Ended(): // err is a consequence of that
			err = fault.New(fault.Machine, "", "its last words say what this machine lacks", "%v",
				a.Failure("before it had joined"))
		default:
			err = a.WithLastWords(err)
		}
		n.end(name)
	}()
	if err := link.MakePair(a.link, link.Inside, namespace); err != nil {
		return err
	}
	if err := link.Configure(a.link, n.tree.Name(), here); err != nil {
		return err
	}
	at, err := n.Listen(netip.AddrPortFrom(here.Addr(), 0).String())
	if err != nil {
		return err
	}
	h.Join = at.String()
	// If the agent has already ended and reads nothing, the wait below reports why.
	if err := json.NewEncoder(write).Encode(h); err != nil && !errors.Is(err, unix.EPIPE) {
		return fmt.Errorf("handing the agent its credentials: %w", err)
	}
	write.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-a.Ended():
			cancel()
		case <-ctx.Done():
		}
	}()
	return n.WaitFor(ctx, name, joinTimeout)
}

// end kills the agent process of an absent node, and reports whether there was one.
func (n *Nodes) end(name string) bool {
	n.mu.Lock()
	a := n.agents[name]
	delete(n.agents, name)
	n.mu.Unlock()
	if a == nil {
		return false
	}
	n.Drop(name, errors.New("it is started again"))
	a.Kill()
	_ = link.Remove(a.link, n.tree.Name()) // the kernel removes it with the namespace, but only a moment later
	return true
}

// Why returns how the process of a node's agent ended, which explains more than the end of its stream. It returns ""
// if there is no such process or it still runs.
func (n *Nodes) Why(name string) string {
	n.mu.Lock()
	a := n.agents[name]
	n.mu.Unlock()
	if a == nil {
		return ""
	}
	select {
	case <-a.Ended():
	case <-time.After(100 * time.Millisecond): // the stream may end slightly before the process is reaped
		return ""
	}
	return a.Failure("unexpectedly").Error()
}

// PIDs returns the pids of the agents, in no particular order.
func (n *Nodes) PIDs() []int {
	n.mu.Lock()
	defer n.mu.Unlock()
	var pids []int
	for _, a := range n.agents {
		pids = append(pids, a.PID())
	}
	return pids
}

// Group returns the path of the control group that holds all agents.
func (n *Nodes) Group() string { return n.tree.Path() }

// Close ends the nodes gracefully, and removes all that is left of them.
func (n *Nodes) Close() error {
	n.Coordinator.Close() // sends bye
	n.mu.Lock()
	agents := n.agents
	n.agents = map[string]*agent{}
	n.mu.Unlock()
	var wg sync.WaitGroup
	for _, a := range agents {
		wg.Go(func() { a.Stop() })
	}
	wg.Wait()
	var errs []error
	unclean := false
	for _, a := range agents {
		errs = append(errs, link.Remove(a.link, n.tree.Name()))
		unclean = unclean || a.Err() != nil
	}
	errs = append(errs, n.tree.Close())
	if unclean {
		errs = append(errs, n.cleanUp())
	}
	return errors.Join(append(errs, n.files.Close())...)
}

// cleanUp removes what is left of an agent that did not take its trial down: control groups with the processes in
// them, which it ends, and then the directories that those processes used.
func (n *Nodes) cleanUp() error {
	_, err := placement.Clean(n.o.Cgroups)
	_, err2 := files.CleanScratch(false)
	return errors.Join(err, err2)
}

// ReadHanded reads a Handed from the descriptor fd until its end, and closes the descriptor.
func ReadHanded(fd int) (h Handed, err error) {
	f := os.NewFile(uintptr(fd), "handed")
	if f == nil {
		return h, fault.New(fault.Usage, "--"+HandedFlag, "it is for 'tare run --local-nodes'",
			"there is no descriptor %d", fd)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, 1<<20))
	if err != nil {
		return h, fault.Wrap(err, fault.Usage, "--"+HandedFlag, "it is for 'tare run --local-nodes'",
			"what is handed over cannot be read")
	}
	if len(text) == 0 {
		return h, errors.New("the coordinator ended before it had handed anything over")
	}
	if err := json.Unmarshal(text, &h); err != nil {
		return h, fmt.Errorf("decoding what is handed over: %w", err)
	}
	return h, nil
}
