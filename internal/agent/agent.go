// Package agent is tare-agent: it weighs a machine for as long as it runs, and serves what it finds as Prometheus
// metrics. It imports the scale and nothing of experiments or guests. Start reading at Command.
package agent

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/self"
)

// Main runs tare-agent with its arguments and returns the exit code.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	cmd := Command()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintf(os.Stderr, "tare-agent: %v\n", err)
		if hint := fault.HintOf(err); hint != "" {
			fmt.Fprintf(os.Stderr, "hint: %s\n", hint)
		}
	}
	return int(fault.CodeOf(err))
}

// Command is the command line of tare-agent.
func Command() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "tare-agent",
		Short:         "Weigh this machine for Prometheus",
		Version:       self.Version,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		RunE:          func(*cobra.Command, []string) error { return nil },
	}
	return cmd
}
