package plugin

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/kube/agents"
	"tare/internal/lib/fault"
	"tare/internal/lib/usage"
)

func init() {
	register(newInstall)
	register(newUninstall)
}

func newInstall(c *connection) *cobra.Command {
	var image string
	var within time.Duration
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install tare-agent on every node, for Prometheus and for 'kubectl tare weigh'",
		Long: `Install applies the manifests of deploy/kubernetes: a DaemonSet of tare-agent with the rights of docs/security.md,
its configuration and a Service, in the namespace "tare" or that of -n. If the namespace does not exist, it is
created with the Pod Security level "privileged"; an existing one is not changed. To update the agents, run install
again, for example with another image. If Helm or another tool has installed any of these objects, install changes
nothing, and the exit code is 2.

Install waits until the agents are ready. If the cluster refuses to create their pods, or some are not ready in time,
install leaves the objects in the cluster, and the exit code is 3.`,
		Example: `  kubectl tare install --image registry.example.com/tare-agent:0.1.0
  kubectl tare install --image registry.example.com/tare-agent:0.2.0 --start-within 10m`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if image == "" {
				return fault.New(fault.Usage, "--image", "docs/kubernetes.md says how to make it", "name the image of tare-agent")
			}
			if err := checkStart(within); err != nil {
				return err
			}
			client, err := c.open()
			if err != nil {
				return err
			}
			namespace := cmp.Or(c.overrides.Context.Namespace, agents.InstalledNamespace)
			began, err := client.Install(cmd.Context(), namespace, image,
				func(what string) { fmt.Fprintln(cmd.OutOrStdout(), "applied", what) })
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "tare: waiting for the agents to be ready, for %v at most\n", within)
			return client.WaitInstalled(cmd.Context(), namespace, began, within)
		},
	}
	cmd.Flags().StringVar(&image, "image", "", "image of tare-agent, which the nodes must be able to pull")
	registerWithin(cmd.Flags(), &within)
	return cmd
}

func newUninstall(c *connection) *cobra.Command {
	return &cobra.Command{
		Use:   "uninstall",
		Short: "Remove what 'kubectl tare install' has installed",
		Long: `Uninstall removes what 'kubectl tare install' has installed in the namespace "tare" or that of -n. If install
created the namespace, uninstall removes it, too, with everything in it. Otherwise, what Helm or other tools have
installed stays.`,
		Example: "  kubectl tare uninstall",
		Args:    usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			client, err := c.open()
			if err != nil {
				return err
			}
			removed := 0
			err = client.Uninstall(cmd.Context(), cmp.Or(c.overrides.Context.Namespace, agents.InstalledNamespace),
				func(what string) {
					removed++
					fmt.Fprintln(cmd.OutOrStdout(), "removed", what)
				})
			if err == nil && removed == 0 {
				fmt.Fprintln(cmd.OutOrStdout(), "nothing to remove")
			}
			return err
		},
	}
}
