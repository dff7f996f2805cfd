package plugin

import (
	"cmp"
	"fmt"

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
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Install tare-agent on every node, for Prometheus and for 'kubectl tare weigh'",
		Long: `Install applies the manifests of deploy/kubernetes: a DaemonSet of tare-agent with the rights of docs/security.md,
its configuration and a Service, in the namespace "tare" or that of -n. It creates the namespace, with the Pod Security
level "privileged"; one that exists stays as it is. Applying them again, also with another image, changes what is
installed. Where Helm or others have installed any of these objects, it changes nothing, and the exit code is 2. If the
cluster refuses to create the agents' pods, the exit code is 3.`,
		Example: `  kubectl tare install --image registry.example.com/tare-agent:0.1.0
  kubectl -n tare rollout status daemonset/tare-agent`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if image == "" {
				return fault.New(fault.Usage, "--image", "docs/kubernetes.md says how to make it", "name the image of tare-agent")
			}
			client, err := c.open()
			if err != nil {
				return err
			}
			return client.Install(cmd.Context(), cmp.Or(c.overrides.Context.Namespace, agents.InstalledNamespace), image,
				func(what string) { fmt.Fprintln(cmd.OutOrStdout(), "applied", what) })
		},
	}
	cmd.Flags().StringVar(&image, "image", "", "image of tare-agent, which the nodes must be able to pull")
	return cmd
}

func newUninstall(c *connection) *cobra.Command {
	return &cobra.Command{
		Use:   "uninstall",
		Short: "Remove what 'kubectl tare install' has installed",
		Long: `Uninstall removes what 'kubectl tare install' has installed in the namespace "tare" or that of -n, and then the
namespace if install created it, with all that is in it. What Helm or others have installed stays.`,
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
