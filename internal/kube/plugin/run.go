package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tare/experiments"
	"tare/internal/experiment/engine"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/kube/agents"
	"tare/internal/kube/pods"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/self"
	"tare/internal/lib/terminal"
	"tare/internal/lib/usage"
	"tare/internal/results/session"
)

func init() { register(newRun) }

type runFlags struct {
	session.Flags
	scope  scope
	detach bool
}

func newRun(c *connection) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "run NAME|FILE.yaml",
		Short: "Run an experiment in pods, print its answer, and write the run directory",
		Long: `Run an experiment as tare run does, with applications and loads in pods of the cluster. Each trial has fresh pods, in
random order of arms; windows are taken by the agents of all nodes at the same time, and cost is the sum over the nodes.

Ready-made: ` + strings.Join(experiments.ClusterNames(), ", ") + `; 'tare list NAME' prints one.

A spec runs here as on a machine, if its arms are variants of the baseline or of what is installed in the cluster:

  arms:
    istio:
      subject: installed
      labels: sidecar.istio.io/inject=true
      components: container=istio-proxy,component=sidecar; namespace=istio-system,component=controlplane

Its section "cluster" says on which nodes its parts run. By default, loads run on another node than applications.

Pods are in the namespace of the context, or of -n, and may do nothing: they satisfy Pod Security "restricted". One of
them is the coordinator, which runs the trials with rights of its own (deploy/kubernetes/coordinator.yaml). This command
follows it through the API server, as kubectl port-forward does, fetches the run directory and removes everything. If
the command is killed, its terminal is closed or its machine sleeps, the run continues: see 'kubectl tare attach'.
Ctrl-C ends the run, fetches what was measured and removes everything. If nobody fetches the results, the cluster
removes them later, and 'kubectl tare clean RUN' removes them at once.

Agents that are not installed ('kubectl tare install') are deployed for the run, from --image, which has tare and
kubectl-tare too.`,
		Example: `  kubectl tare run cluster/istio-sidecar --quick
  kubectl tare run mesh.yaml -n shop
  kubectl tare run mesh.yaml --quick --image registry.example.com/tare-agent:0.1.0
  kubectl tare run mesh.yaml --precision 5% --until 20m
  kubectl tare run cluster/istio-sidecar --detach`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fault.New(fault.Usage, cmd.CommandPath(), usage.SeeHelp(cmd), "want one experiment, got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			f.Unrecorded = c.unrecorded()
			if err := f.Check(cmd.Flags()); err != nil {
				return err
			}
			if err := f.scope.check(c); err != nil {
				return err
			}
			file, data, err := session.ReadSpec(cmd.CommandPath(), args[0], readSpec)
			if err != nil {
				return err
			}
			s, err := spec.Parse(file, data, nil) // nil: nodes may have features that this machine lacks
			if err != nil {
				return err
			}
			if err := s.Apply(f.Overrides); err != nil {
				return err
			}
			client, err := c.open()
			if err != nil {
				return err
			}
			namespace, err := c.namespace()
			if err != nil {
				return err
			}
			o := pods.Order{File: file, Spec: data, Overrides: f.Overrides}
			return f.run(cmd.Context(), client, s, o, namespace, cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	f.Register(fs)
	f.RegisterSpec(fs)
	f.scope.registerStart(fs)
	fs.BoolVar(&f.detach, "detach", false, "return once the run is under way, with the command that follows it")
	return cmd
}

// maxSpec limits the size of a spec, in bytes.
const maxSpec = 1 << 20

// readSpec reads the file of a spec.
func readSpec(path string) ([]byte, error) {
	data, err := files.Read(path, maxSpec)
	return data, fault.Wrap(err, fault.Usage, path, "", "the spec cannot be read")
}

// run starts the run in the cluster, and follows it.
func (f *runFlags) run(
	ctx context.Context,
	c *agents.Cluster,
	s *spec.Spec,
	o pods.Order,
	namespace string,
	out io.Writer,
) (err error) {
	defer func() { err = session.BegunOr(err) }()
	if err := pods.Check(s); err != nil {
		return err
	}
	if f.Out != "" {
		if err := record.Free(f.Out); err != nil {
			return err
		}
	}
	log := terminal.Guard(os.Stderr)
	runner := &engine.Runner{Spec: s, Longer: pods.TrialTakes}
	o.Life = 3*max(runner.Estimate(), s.Until) + 10*time.Minute
	run := pods.NewRun(namespace)
	f.scope.run = run.String()
	w, err := f.scope.open(ctx, c, o.Life, log)
	if err != nil {
		return err
	}
	if err := f.start(ctx, w, s, &o, run); err != nil {
		w.close(ctx)
		return err
	}
	a := attachment{c: c, run: run, dir: cmp.Or(f.Out, dirOf(&o.Run)), show: f.Show, out: out, log: log, ends: true}
	if f.detach {
		return a.leave(ctx)
	}
	fmt.Fprintf(log, "tare: the run is %s in the namespace %s; if this command ends: %s\n", run.Name, run.Namespace,
		a.command())
	return a.follow(ctx)
}

// start creates the objects of the run. After an error, the caller still has to remove the agents' objects.
func (f *runFlags) start(ctx context.Context, w *windows, s *spec.Spec, o *pods.Order, run *pods.Run) (err error) {
	if o.Image = cmp.Or(f.scope.image, w.set.Image); o.Image == "" {
		return fault.New(fault.Usage, "", "give --image", "no agent says which image of tare its node has")
	}
	if o.NodeOf, err = pods.Places(s, w.nodes); err != nil {
		return err
	}
	var scaled string
	if o.Spread, scaled = pods.Spread(s, w.nodes); scaled != "" {
		fmt.Fprintf(os.Stderr, "tare: %s\n", scaled)
	}
	if o.Run, err = f.Record(s, []string{"kubectl", "tare"}, os.Args[1:], environmentOf(w.nodes)); err != nil {
		return err
	}
	maps.Copy(o.Run.Environment.Subjects, s.SubjectVersions(ctx, self.Version))
	o.Dir = filepath.Base(cmp.Or(f.Out, dirOf(&o.Run)))
	o.Version, o.Nodes, o.Agents, o.Access = self.Version+" "+self.Build(), w.nodes, w.set, w.access
	var owner metav1.ObjectMeta
	if w.temporary != nil {
		owner = w.temporary.Owned
	}
	return run.Start(ctx, w.c, *o, owner)
}

// environmentOf describes a cluster with the given nodes for the record of a run.
func environmentOf(nodes []agents.Node) record.Environment {
	e := record.Environment{Hostname: record.ClusterOf + quantity.Counted(len(nodes), "node"),
		ClusterNodes: map[string]string{}, Subjects: map[string]string{}}
	var kernels []string
	for i := range nodes {
		kernels = lists.Include(kernels, nodes[i].Kernel)
		e.ClusterNodes[nodes[i].Name] = nodes[i].Hardware
		if cpus := nodes[i].Capacity.CPUs; cpus != nil {
			e.CPUs += int(*cpus)
		}
	}
	e.Kernel = strings.Join(kernels, ", ")
	return e
}
