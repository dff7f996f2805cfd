// Package cli is the command line: one file for each command. It is the only package that prints or exits.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tare/internal/fault"
)

// Main runs the command line and returns the exit code of the process.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	root := newRoot()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	if err != nil {
		printError(os.Stderr, err)
	}
	return int(fault.CodeOf(err))
}

// commands is the registry: each command's file adds its constructor here.
var commands []func() *cobra.Command

func register(c func() *cobra.Command) { commands = append(commands, c) }

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "tare",
		Short:         "Tare weighs infrastructure: what meshes, eBPF programs, sandboxes and tracers cost",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fault.New(fault.Usage, "tare "+args[0], "see 'tare --help' for the commands", "there is no such command")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return fault.New(fault.Usage, cmd.CommandPath(), fmt.Sprintf("see '%s --help'", cmd.CommandPath()), "%s", err)
	})
	for _, c := range commands {
		root.AddCommand(c())
	}
	return root
}

// noArgs refuses arguments with the right exit code.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fault.New(fault.Usage, cmd.CommandPath()+" "+args[0], fmt.Sprintf("see '%s --help'", cmd.CommandPath()), "unexpected argument")
	}
	return nil
}

// printError says what was wrong, where, and the mend.
func printError(w io.Writer, err error) {
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	fmt.Fprintf(w, "tare: %s\n", strings.TrimSpace(err.Error()))
	if mend := fault.MendOf(err); mend != "" {
		fmt.Fprintf(w, "      %s\n", mend)
	}
}
