// Package plugin implements kubectl-tare, which kubectl runs as "kubectl tare", with one file for each command. Like
// package cli, it prints to the terminal and decides the exit code. The exit codes are the same as those of tare.
package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"tare/internal/kube/agents"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/self"
	"tare/internal/lib/text"
	"tare/internal/lib/usage"
)

// gcPercent keeps the heap close to the live data: below 500 MB for a cluster of a thousand nodes.
const gcPercent = 50

// Main runs the command line and returns the exit code of the process.
func Main(args []string) int {
	ctx, stop := withSignals()
	defer stop()
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // a write to a closed pipe only fails: agents are still removed
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	root := Command()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil {
		fault.Print(os.Stderr, err)
	}
	return int(fault.CodeOf(err))
}

// errKilled is the cause with which a command's context ends on SIGTERM and SIGHUP, which a closed terminal sends.
var errKilled = fmt.Errorf("killed: %w", context.Canceled)

func killed(ctx context.Context) bool { return errors.Is(context.Cause(ctx), errKilled) }

// withSignals returns a context that ends on Ctrl-C and, with errKilled, on SIGTERM and SIGHUP. A second signal ends
// the process at once. SIGHUP is not caught if it is ignored: a command started with nohup should outlive the terminal.
func withSignals() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.Background())
	caught := []os.Signal{unix.SIGINT, unix.SIGTERM}
	if !signal.Ignored(unix.SIGHUP) {
		caught = append(caught, unix.SIGHUP)
	}
	came := make(chan os.Signal, 1)
	signal.Notify(came, caught...)
	go func() {
		select {
		case s := <-came:
			signal.Stop(came)
			if s == unix.SIGINT {
				cancel(nil)
			} else {
				cancel(errKilled)
			}
		case <-ctx.Done():
		}
	}()
	return ctx, func() { signal.Stop(came); cancel(nil) }
}

// commands is the registry: each command's file adds its constructor here.
var commands []func(*connection) *cobra.Command

func register(c func(*connection) *cobra.Command) { commands = append(commands, c) }

// Command returns the command line of kubectl-tare, with every command.
func Command() *cobra.Command {
	root := &cobra.Command{
		Use:           "kubectl-tare",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl tare"},
		Short:         "Weigh a Kubernetes cluster: what its workloads use, and what infrastructure uses on their behalf",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       self.Version + " " + self.Build(),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return fault.New(fault.Usage, "kubectl tare "+text.Clip(args[0]), "see 'kubectl tare --help' for the commands",
				"no such command%s", text.DidYouMean(args[0], lists.Map(cmd.Commands(), (*cobra.Command).Name)))
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(usage.FlagError)
	var c connection
	c.register(root.PersistentFlags())
	whole := root.UsageTemplate()
	for _, command := range commands {
		command := command(&c)
		command.SetUsageTemplate(inheritedFlags.ReplaceAllLiteralString(whole, connectionFlags))
		root.AddCommand(command)
	}
	return root
}

// inheritedFlags matches the part of cobra's template that lists kubectl's flags. They are well known and outnumber the
// flags of any command, so only the root command lists them.
var inheritedFlags = regexp.MustCompile(`Global Flags:\n\{\{[^}]*\}\}`)

const connectionFlags = `The cluster is chosen as with kubectl, by --context, --kubeconfig, -n and so on;
'kubectl tare --help' lists these flags.`

// connection chooses the cluster and the user by kubectl's flags, files and environment.
type connection struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

// credentials are the names of kubectl's flags with values that are secret, may contain a secret, or are useless
// without one.
var credentials = []string{clientcmd.FlagBearerToken, clientcmd.FlagUsername, clientcmd.FlagPassword,
	clientcmd.FlagProxyURL}

// unrecorded returns the names of the flags that the record of a run must not have: credentials, and --server if its
// address contains a user name or password, as in https://user:password@host.
func (c *connection) unrecorded() []string {
	if strings.Contains(c.overrides.ClusterInfo.Server, "@") {
		return append(slices.Clone(credentials), clientcmd.FlagAPIServer)
	}
	return credentials
}

func (c *connection) register(f *pflag.FlagSet) {
	c.rules = clientcmd.NewDefaultClientConfigLoadingRules()
	f.StringVar(&c.rules.ExplicitPath, "kubeconfig", "", "path of the kubeconfig `file` to use")
	clientcmd.BindOverrideFlags(&c.overrides, f, clientcmd.RecommendedConfigOverrideFlags(""))
}

// config returns the configuration for connecting to the cluster.
func (c *connection) config() (*rest.Config, error) {
	config, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(c.rules, &c.overrides).ClientConfig()
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, "", "give --kubeconfig and --context, or see: kubectl config get-contexts",
			"no cluster to weigh")
	}
	config.UserAgent = "kubectl-tare/" + self.Version
	return config, nil
}

// namespace returns the namespace of -n, or else that of the context.
func (c *connection) namespace() (string, error) {
	namespace, _, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(c.rules, &c.overrides).Namespace()
	return namespace, fault.Wrap(err, fault.Usage, "", "give -n", "no namespace for the pods")
}

func (c *connection) open() (*agents.Cluster, error) {
	config, err := c.config()
	if err != nil {
		return nil, err
	}
	return agents.New(config)
}
