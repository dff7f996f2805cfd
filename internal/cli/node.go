package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/experiment/cluster"
	"tare/internal/experiment/cluster/local"
	"tare/internal/experiment/engine"
	"tare/internal/experiment/link"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/self"
	"tare/internal/lib/text"
	"tare/internal/lib/usage"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/meter"
)

func init() { register(newNode) }

type nodeFlags struct {
	join, name           string
	authority, cert, key string
	dir                  string
	patience             time.Duration
	allowCommands        bool
	handed               int
}

func newNode() *cobra.Command {
	var f nodeFlags
	c := &cobra.Command{
		Use:   "node --join HOST:PORT --name NAME --ca FILE --cert FILE --key FILE",
		Short: "Join the coordinator of a run and run its trials on this machine, until the run is over",
		Long: `Make this machine one of those that 'tare run --nodes-listen' coordinates: join the coordinator, run its trials here as
'tare run' would, and send one record of each. Both sides show certificates of one authority, which 'tare node keys'
makes. The coordinator sends a spec, and the start time of each trial; the agent, as root, does what the spec says. It
refuses specs that name commands, programs by their paths, files, addresses or running processes, unless it is started
with --allow-commands: then whoever has the coordinator's key can do anything on this machine.

It ends when the run is over. When the coordinator cannot be reached, it retries for --patience.`,
		Example: `  tare node keys --dir keys n1 n2
  tare run trace-scaling --nodes-listen :7117 --nodes-keys keys --nodes 2
  tare node --join coordinator:7117 --name n1 --ca keys/authority.pem --cert keys/n1.pem --key keys/n1.key`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed(local.HandedFlag) {
				return localNode(cmd.Context(), f.handed)
			}
			return remoteNode(cmd.Context(), f, stderr)
		},
	}
	fs := c.Flags()
	fs.StringVar(&f.join, "join", "", "where 'tare run --nodes-listen' listens: HOST:PORT")
	fs.StringVar(&f.name, "name", "", "name of this node, which must be the one in its certificate")
	fs.StringVar(&f.authority, "ca", "", "file with the authority's certificate")
	fs.StringVar(&f.cert, "cert", "", "file with this node's certificate")
	fs.StringVar(&f.key, "key", "", "file with its key")
	fs.StringVar(&f.dir, "dir", "", "directory for files of trials, and the last record; default: a temporary one")
	fs.DurationVar(&f.patience, "patience", time.Minute,
		"how long to try to join, at first and after the connection broke")
	fs.BoolVar(&f.allowCommands, "allow-commands", false,
		"also run specs that name commands, programs, files, addresses or processes: the coordinator is then root here")
	fs.IntVar(&f.handed, local.HandedFlag, 0, "descriptor from which 'tare run --local-nodes' hands over what is needed")
	if err := fs.MarkHidden(local.HandedFlag); err != nil {
		panic(err) // a flag of that name is defined above
	}
	c.AddCommand(newNodeKeys())
	return c
}

func newNodeKeys() *cobra.Command {
	var dir string
	var renew bool
	c := &cobra.Command{
		Use:   "keys --dir DIR NODE...|--renew",
		Short: "Make the keys and certificates with which nodes and coordinator identify each other",
		Long: `Make the keys and certificates with which nodes and coordinator identify each other, in DIR: an authority and the
coordinator's, unless they exist, and those of the named nodes. They are valid for a year. The coordinator needs DIR
(--nodes-keys); a node needs authority.pem and its own two files, and nothing else: whoever has authority.key can
become a node or a coordinator.

--renew makes new certificates for all of them, which are valid for another year, and does not change keys. Copy
authority.pem and the new certificate to each node. To make a new key for a node, remove both of its files and name it
again.`,
		Example: `  tare node keys --dir keys n1 n2 n3
  tare node keys --dir keys --renew`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case renew && len(args) > 0:
				return fault.New(fault.Usage, "--renew", "leave the names out, or --renew for new nodes",
					"it renews all certificates in the directory")
			case !renew && len(args) == 0:
				return fault.New(fault.Usage, cmd.CommandPath(), "see '"+cmd.CommandPath()+" --help'",
					"want the names of one or more nodes")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if dir == "" {
				return fault.New(fault.Usage, "--dir", "see 'tare node keys --help'", "missing value")
			}
			var wrote []string
			var err error
			if renew {
				wrote, err = cluster.RenewKeys(dir)
			} else {
				wrote, err = cluster.MakeKeys(dir, args)
			}
			for _, file := range wrote {
				fmt.Fprintln(cmd.OutOrStdout(), filepath.Join(dir, file))
			}
			return err
		},
	}
	c.Flags().StringVar(&dir, "dir", "", "directory for the files; if missing, it is created, readable by its owner only")
	c.Flags().BoolVar(&renew, "renew", false, "new certificates for all keys in the directory")
	return c
}

// buildVersion returns the version that the coordinator and its agents must share.
func buildVersion() string { return self.Version + " (" + self.Build() + ")" }

func hello(name string) cluster.Hello {
	m := proc.FS{}.Machine()
	return cluster.Hello{
		Node:    record.Node{Name: name, Hostname: m.Hostname, Kernel: m.Kernel, CPUs: m.CPUs, BootID: m.BootID},
		Version: buildVersion(), PID: os.Getpid(),
	}
}

// remoteNode runs this machine's agent for a coordinator that may be on another machine.
func remoteNode(ctx context.Context, f nodeFlags, log io.Writer) (err error) {
	for flag, value := range map[string]string{"--join": f.join, "--name": f.name, "--ca": f.authority, "--cert": f.cert,
		"--key": f.key} {
		if value == "" {
			return fault.New(fault.Usage, flag, "see 'tare node --help'", "missing value")
		}
	}
	if err := cluster.CheckName(f.name); err != nil {
		return err
	}
	credentials, err := cluster.ReadCredentials(f.authority, f.cert, f.key)
	if err == nil {
		err = warnExpiring(credentials, log)
	}
	if err != nil {
		return err
	}
	if err := require("tare node", "this machine cannot be a node", "cgroup-create", "bpf-syscall"); err != nil {
		return err
	}
	layout, own, err := ground(ctx, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	if f.dir == "" {
		files, failure := files.NewScratch("", "node")
		if failure != nil {
			return fmt.Errorf("making a directory for trials: %w", failure)
		}
		defer func() { err = errors.Join(err, files.Close()) }()
		f.dir = files.Path()
	} else if err := ownDirectory(f.dir); err != nil {
		return err
	}
	scale := &scale[*meter.Meter]{
		make:   func(o meter.Options) (*meter.Meter, error) { return meter.New(ctx, o) },
		window: func(ctx context.Context, m *meter.Meter, at int64) (engine.Window, error) { return m.OpenAt(ctx, at) },
	}
	defer func() { err = errors.Join(err, scale.close()) }()
	n := engine.NodeAgent{Name: f.name, Dir: f.dir, Features: featureNames(), AllowCommands: f.allowCommands}
	n.Machine = nodeMachine(layout, own.path, scale.open)
	us := hello(f.name)
	us.AllowCommands = f.allowCommands
	a := cluster.Agent{Hello: us, Address: f.join, Credentials: credentials, Patience: f.patience,
		Said: func(event string) { fmt.Fprintf(log, "%s: %s\n", f.name, text.Line(event)) }}
	return a.Join(ctx, n.Run)
}

// ownDirectory creates the directory for trials if it does not exist. It refuses one that other users can change or
// replace: its path is passed to processes, and files are written below it.
func ownDirectory(dir string) error {
	notOurs := func(err error) error {
		return fault.Wrap(err, fault.Usage, dir, "name a directory of your own with --dir, and below no other user's",
			"the directory for trials is not yours alone")
	}
	if err := files.CheckPath(dir); err != nil {
		return notOurs(err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fault.Wrap(err, fault.Machine, dir, "name a directory that can be written with --dir",
			"the directory for trials cannot be made")
	}
	info, err := os.Stat(dir)
	if err == nil {
		err = files.CheckPrivate(info, files.OthersWrite)
	}
	if err == nil {
		err = files.CheckPath(dir) // again, now that it exists
	}
	return notOurs(err)
}

// warnExpiring warns of certificates that expire soon. It returns an error if any have expired.
func warnExpiring(c cluster.Credentials, log io.Writer) error {
	warning, err := c.Expires(time.Now())
	if warning != "" {
		fmt.Fprintf(log, "warning: %s\n", text.Line(warning))
	}
	return err
}

// localNode runs the agent of a local node. It shares its machine with other agents, and weighs only the processes of
// its own trials.
func localNode(ctx context.Context, fd int) (err error) {
	// Waking threads on other CPUs is most of an agent's cost, and those CPUs belong to the other nodes.
	runtime.GOMAXPROCS(1)
	h, err := local.ReadHanded(fd)
	if err != nil {
		return err
	}
	if err := link.ConfigureInside(h.Address); err != nil {
		return err
	}
	layout, own, err := findGround()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, own.Close()) }()
	scale := &scale[*meter.Light]{
		make:   meter.NewLight,
		window: func(ctx context.Context, m *meter.Light, at int64) (engine.Window, error) { return m.OpenAt(ctx, at) },
	}
	defer func() { err = errors.Join(err, scale.close()) }()
	n := engine.NodeAgent{
		Name: h.Name, Dir: h.Dir, Features: featureNames(),
		Ready:         func() error { return scale.m.Prepare(placement.Own(layout)...) },
		AllowCommands: true, // the spec comes from the user who started this process
	}
	n.Machine = nodeMachine(layout, own.path, scale.open)
	shared := n.Machine
	n.Machine = func(s *spec.Spec) (engine.Machine, error) {
		m, err := shared(s)
		m.Shared = true
		return m, err
	}
	return cluster.Agent{Hello: hello(h.Name), Address: h.Join, Credentials: h.Credentials}.Join(ctx, n.Run)
}

// nodeMachine returns a function that provides this machine to trials, with its scale opened as a spec requires.
func nodeMachine(
	layout *cgroup.Layout, self string, open func(*spec.Spec) (openWindow, error),
) func(*spec.Spec) (engine.Machine, error) {
	return func(s *spec.Spec) (engine.Machine, error) {
		if err := requireFeatures(s); err != nil {
			return engine.Machine{}, err
		}
		window, err := open(s)
		return engine.Machine{Self: self, Cgroups: layout, Programs: bpf.Loaded, OpenWindow: window}, err
	}
}

// openWindow is the type of engine.Machine.OpenWindow.
type openWindow = func(ctx context.Context, at int64) (engine.Window, error)

// scale is a meter that is reopened when a spec needs other options.
type scale[M interface {
	comparable
	Close() error
}] struct {
	make   func(meter.Options) (M, error)
	window func(ctx context.Context, m M, at int64) (engine.Window, error)
	o      meter.Options // the options of m
	m      M             // the zero value if no meter is open
}

func (c *scale[M]) open(s *spec.Spec) (openWindow, error) {
	if o := meterOptions(s); c.m == *new(M) || o != c.o {
		if err := c.close(); err != nil {
			return nil, err
		}
		m, err := c.make(o)
		if err != nil {
			return nil, err
		}
		c.m, c.o = m, o
	}
	return func(ctx context.Context, at int64) (engine.Window, error) { return c.window(ctx, c.m, at) }, nil
}

func (c *scale[M]) close() error {
	m, none := c.m, *new(M)
	if m == none {
		return nil
	}
	c.m = none
	return m.Close()
}

// meterOptions returns the options for the scale that a spec requires.
func meterOptions(s *spec.Spec) meter.Options {
	return meter.Options{SampleHz: s.SampleHz, NoStatistics: !s.Statistics, Whole: true}
}
