package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

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
	"tare/internal/results/report"
	"tare/internal/results/session"
)

func init() { register(newRun) }

type runFlags struct {
	session.Flags
	scope scope
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

Its section "cluster" says on which nodes its parts run; loads run apart from applications where it says nothing.

Pods are in the namespace of the context, or of -n, and may do nothing: they satisfy Pod Security "restricted". They are
reached through the API server, as by kubectl port-forward. Should this command be killed, the cluster removes them when
the time of the run is over; 'kubectl tare clean --all' does so at once.

Agents that are not installed ('kubectl tare install') are deployed for the run, from --image, which has tare too.`,
		Example: `  kubectl tare run cluster/istio-sidecar --quick
  kubectl tare run mesh.yaml -n shop
  kubectl tare run mesh.yaml --quick --image registry.example.com/tare-agent:0.1.0
  kubectl tare run mesh.yaml --precision 5% --until 20m`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fault.New(fault.Usage, cmd.CommandPath(), usage.SeeHelp(cmd), "want one experiment, got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := f.Check(cmd.Flags()); err != nil {
				return err
			}
			if err := f.scope.check(c); err != nil {
				return err
			}
			s, err := session.LoadSpec(cmd.CommandPath(), args[0], nil, readSpec) // what machines need, nodes may have
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
			return f.run(cmd.Context(), client, s, namespace, cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	f.Register(fs)
	f.RegisterSpec(fs)
	f.scope.registerStart(fs)
	return cmd
}

// maxSpec is more bytes than any spec has.
const maxSpec = 1 << 20

// readSpec reads the file of a spec.
func readSpec(path string) ([]byte, error) {
	data, err := files.Read(path, maxSpec)
	return data, fault.Wrap(err, fault.Usage, path, "", "the spec cannot be read")
}

func (f *runFlags) run(
	ctx context.Context,
	c *agents.Cluster,
	s *spec.Spec,
	namespace string,
	out io.Writer,
) (err error) {
	defer func() { err = session.BegunOr(err) }()
	if err := pods.Check(s); err != nil {
		return err
	}
	log := terminal.Guard(os.Stderr)
	runner := &engine.Runner{Spec: s, Longer: pods.TrialTakes}
	life := 3*max(runner.Estimate(), s.Until) + 10*time.Minute
	w, err := f.scope.open(ctx, c, life, log)
	if err != nil {
		return err
	}
	defer w.close(ctx)
	image := cmp.Or(f.scope.image, imageOf(w.agents))
	if image == "" {
		return fault.New(fault.Usage, "", "give --image", "no agent says which image of tare its node has")
	}
	place, err := pods.New(ctx, pods.Options{Cluster: c, Nodes: w.nodes, Namespace: namespace, Image: image,
		Version: self.Version + " " + self.Build(), Lifetime: life,
		Agents: func(ctx context.Context) ([]agents.Agent, error) {
			err := w.look(ctx)
			return w.agents, err
		}}, s)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, place.Close(ctx)) }()
	r, err := f.Record(s, []string{"kubectl", "tare"}, os.Args[1:], environmentOf(w.nodes))
	if err != nil {
		return err
	}
	maps.Copy(r.Environment.Subjects, s.SubjectVersions(ctx, self.Version))
	dir := fmt.Sprintf("tare-run-%s-%s", s.Name, r.Started.Format("20060102-150405"))
	to, err := record.Create(cmp.Or(f.Out, dir), r)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	if file, is := out.(*os.File); is && isatty.IsTerminal(file.Fd()) {
		out = terminal.Guard(out, terminal.Styles...)
	}
	runner.Place, runner.Record = place, &r
	return session.Run(ctx, runner, to, session.Output{
		Out: out, Log: log, Terminal: os.Stderr, Show: f.Show,
		Text: func(_ io.Writer, dir string, all bool) report.Options {
			return session.TextOptions(os.Stdout, dir, all)
		},
	})
}

// imageOf is the image of an agent.
func imageOf(all []agents.Agent) string {
	if len(all) == 0 {
		return ""
	}
	return all[0].Image
}

// environmentOf is what a run in a cluster ran on.
func environmentOf(nodes []agents.Node) record.Environment {
	e := record.Environment{Hostname: "cluster of " + quantity.Counted(len(nodes), "node"), Subjects: map[string]string{}}
	var kernels []string
	for i := range nodes {
		kernels = lists.Include(kernels, nodes[i].Kernel)
		if cpus := nodes[i].Capacity.CPUs; cpus != nil {
			e.CPUs += int(*cpus)
		}
	}
	e.Kernel = strings.Join(kernels, ", ")
	return e
}
