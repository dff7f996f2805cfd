package plugin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"tare/deploy"
	"tare/internal/kube/agents"
	"tare/internal/lib/fault"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/lib/usage"
)

func init() { register(newDoctor) }

// finding is one thing that the doctor has checked.
type finding struct {
	What     string `json:"what"`
	OK       bool   `json:"ok"`
	Optional bool   `json:"optional,omitempty"` // weighing works without it
	Detail   string `json:"detail"`
}

func newDoctor(c *connection) *cobra.Command {
	var namespace string
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Say what this cluster can measure, what it cannot, and why",
		Long: `Doctor looks at what 'kubectl tare weigh' needs, and changes nothing: whether the cluster answers, the rights of this
user, the systems and kernels of the nodes, installed agents, and whether the namespace of temporary ones admits them.
Rights are those of deploy/kubernetes/weigh.yaml. Where agents are installed, only those to list nodes, pods and other
objects are needed, and pods/portforward in the agents' namespace. If something is missing, the exit code is 3. Lines
with "--" are about 'kubectl tare run' in the namespace of -n, which also needs deploy/kubernetes/run.yaml.`,
		Example: `  kubectl tare doctor
  kubectl tare doctor --as system:serviceaccount:ops:weigher --json`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := c.open()
			if err != nil {
				return err
			}
			own, err := c.namespace()
			if err != nil {
				return err
			}
			findings, err := examine(cmd.Context(), client, namespace, own)
			if err != nil {
				return err
			}
			return printFindings(cmd.OutOrStdout(), findings, asJSON)
		},
	}
	cmd.Flags().StringVar(&namespace, "agents-namespace", "", "namespace of the agents, as of 'kubectl tare weigh'")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document")
	return cmd
}

// examine checks everything, with agents in one namespace and experiments in another. It fails only if the cluster
// does not answer at all.
func examine(ctx context.Context, c *agents.Cluster, namespace, experiments string) (all []finding, err error) {
	add := func(what string, ok bool, format string, args ...any) {
		all = append(all, finding{What: what, OK: ok, Detail: text.Line(fmt.Sprintf(format, args...))})
	}
	version, err := c.Version(ctx)
	if err != nil {
		return nil, err
	}
	add("cluster", true, "Kubernetes %s", version)
	in := namespaceOf(namespace)
	set, installed, findErr := c.Find(ctx, namespace)
	if set.UID != "" {
		in = set.Namespace
	}
	namespaces := map[string]string{deploy.AgentsNamespace: in, deploy.RunsNamespace: experiments}
	missing, err := c.Missing(ctx, deploy.WeighRights, namespaces)
	if set.UID != "" {
		missing = slices.DeleteFunc(missing, agents.Right.Deploys)
	}
	switch {
	case err != nil:
		add("rights", false, "%v", err)
	case len(missing) > 0:
		add("rights", false, "missing: %s", agents.Rights(missing))
	case set.UID != "":
		add("rights", true, "all that installed agents need of deploy/kubernetes/weigh.yaml, in %s", in)
	default:
		add("rights", true, "all of deploy/kubernetes/weigh.yaml, with temporary agents in %s", in)
	}
	missing, err = c.Missing(ctx, deploy.RunRights, namespaces)
	switch {
	case err != nil:
		add("run", false, "%v", err)
	case len(missing) > 0:
		add("run", false, "no experiments in %s, for lack of rights of deploy/kubernetes/run.yaml: %s", experiments,
			agents.Rights(missing))
		all[len(all)-1].Optional = true
	default:
		add("run", true, "all of deploy/kubernetes/run.yaml, with the pods of experiments in %s", experiments)
	}
	nodes, err := c.Nodes(ctx)
	if err != nil {
		add("nodes", false, "%v", err)
	}
	examineNodes(nodes, add)
	switch {
	case findErr != nil:
		add("agents", false, "%v", findErr)
	case set.UID != "":
		examineAgents(set.Namespace, installed, nodes, add)
		return all, nil
	default:
		add("agents", true, "none are installed: weigh deploys them from --image, or see 'kubectl tare install'")
	}
	level, err := c.PodSecurity(ctx, in)
	switch {
	case err != nil: // not a failure, because Tare does not need the right to read it
		add("namespace", true, "not known: %v", err)
	default:
		add("namespace", level == "" || level == "privileged", "%s enforces the Pod Security level %s", in,
			cmp.Or(level, "that the cluster has by default"))
	}
	return all, nil
}

// The oldest version of Linux on which everything works (docs/kernels.md).
const oldestMajor, oldestMinor = 5, 8

func examineNodes(nodes []agents.Node, add func(what string, ok bool, format string, args ...any)) {
	kernels := map[string]int{}
	for i := range nodes {
		n := &nodes[i]
		switch {
		case n.OS != "linux":
			add("node "+n.Name, false, "cannot be weighed: it has %s, and tare-agent needs Linux", n.OS)
		case !n.Ready:
			add("node "+n.Name, false, "is not ready")
		case older(n.Kernel):
			add("node "+n.Name, false, "eBPF programs are not weighed: Linux %s is older than %d.%d", n.Kernel, oldestMajor,
				oldestMinor)
		default:
			kernels["Linux "+n.Kernel+", "+n.Runtime]++
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(kernels)) {
		add("nodes", true, "%d with %s", kernels[kind], kind)
	}
}

// examineAgents checks that each ready node with Linux has an installed agent that runs.
func examineAgents(
	namespace string,
	installed []agents.Agent,
	nodes []agents.Node,
	add func(what string, ok bool, format string, args ...any),
) {
	run, why := 0, ""
	bare := map[string]bool{} // nodes without an agent
	for i := range nodes {
		if n := &nodes[i]; n.Ready && n.OS == "linux" {
			bare[n.Name] = true
		}
	}
	for _, a := range installed {
		delete(bare, a.Node)
		if a.Failed == "" {
			run++
		} else {
			why = ": " + a.Node + ": " + a.Failed
		}
	}
	if len(bare) > 0 {
		why += "; there is none on " + text.ClipLine(strings.Join(slices.Sorted(maps.Keys(bare)), ", "), maxNames)
	}
	add("agents", run == len(installed) && len(bare) == 0, "installed in %s; %d of %d run%s", namespace, run,
		len(installed), why)
}

const maxNames = 200 // maximum length of a list of nodes, in bytes

// older reports whether a kernel is too old. It returns false for a version in an unknown form.
func older(version string) bool {
	parts := strings.SplitN(version, ".", 3)
	if len(parts) < 2 {
		return false
	}
	major, err := strconv.Atoi(parts[0])
	minor, err2 := strconv.Atoi(parts[1])
	return err == nil && err2 == nil && (major < oldestMajor || major == oldestMajor && minor < oldestMinor)
}

func printFindings(w io.Writer, all []finding, asJSON bool) error {
	bad := 0
	for _, f := range all {
		if !f.OK && !f.Optional {
			bad++
		}
	}
	if asJSON {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		if err := e.Encode(map[string]any{"findings": all}); err != nil {
			return fmt.Errorf("writing the findings: %w", err)
		}
	} else {
		for _, f := range all {
			mark := "no "
			switch {
			case f.OK:
				mark = "ok "
			case f.Optional:
				mark = "-- "
			}
			fmt.Fprintf(w, "%s %-10s %s\n", mark, f.What, f.Detail)
		}
	}
	if bad > 0 {
		return fault.New(fault.Machine, "", "lines with 'no' say why", "%s would keep something from being measured",
			quantity.Counted(bad, "finding"))
	}
	return nil
}
