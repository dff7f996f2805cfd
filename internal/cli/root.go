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
	"tare/internal/near"
	"tare/internal/version"
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
		Version:       version.Version + " " + version.Build(),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			mend := "see 'tare --help' for the commands"
			var names []string
			for _, c := range cmd.Commands() {
				names = append(names, c.Name())
			}
			if n := near.Name(args[0], names); n != "" {
				mend = fmt.Sprintf("did you mean %q? %s", n, mend)
			}
			return fault.New(fault.Usage, "tare "+args[0], mend, "there is no such command")
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
	fmt.Fprintf(w, "tare: %s\n", printable(strings.TrimSpace(err.Error())))
	if mend := fault.MendOf(err); mend != "" {
		fmt.Fprintf(w, "      %s\n", printable(mend))
	}
}

// printable keeps names that others chose (paths, processes) from steering the terminal.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 {
			return '?'
		}
		return r
	}, s)
}
