// Package cli is the command line of tare, with one file for each command. The packages that it uses neither print nor
// exit.
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

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/text"
	"tare/internal/lib/usage"

	"tare/internal/lib/self"

	_ "tare/internal/all" // every guest
)

// Main runs the command line and returns the exit code of the process.
func Main(args []string) int {
	ctx, stop := withSignals()
	defer stop()
	root := Command()
	root.SetArgs(args)
	out := newStdout(os.Stdout)
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(context.WithValue(ctx, ownProcess{}, true))
	if err == nil {
		err = out.err
	}
	if status, ok := errors.AsType[exitStatus](err); ok {
		return int(status)
	}
	if err != nil {
		fault.Print(stderr, err)
	}
	return int(fault.CodeOf(err))
}

// exitStatus is the exit code of a program that tare ran for the user. tare exits with it.
type exitStatus int

func (s exitStatus) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

// withSignals returns a context that ends on SIGINT, SIGTERM and SIGHUP. Main calls it first, so that a signal cannot
// kill the process once there is something to clean up. SIGHUP is not caught if it is ignored: a tare started with
// nohup should outlive the terminal. A pipe without a reader must not end the process in the middle of a run: writing
// to it fails instead (see type stdout).
func withSignals() (context.Context, context.CancelFunc) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	if !signal.Ignored(unix.SIGHUP) {
		beyond, stopBeyond := ctx, stop
		ctx, stop = signal.NotifyContext(context.WithValue(beyond, beyondHangup{}, beyond), unix.SIGHUP)
		stopHangup := stop
		stop = func() { stopHangup(); stopBeyond() }
	}
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE) // not signal.Ignore, which children would inherit
	return ctx, stop
}

// beyondHangup is the context key of a command's context that does not end on SIGHUP.
type beyondHangup struct{}

// withoutHangup returns the context for a command that SIGHUP does not end.
func withoutHangup(ctx context.Context) context.Context {
	if beyond, ok := ctx.Value(beyondHangup{}).(context.Context); ok {
		return beyond
	}
	return ctx
}

// commands is the registry: each command's file adds its constructor here.
var commands []func() *cobra.Command

func register(c func() *cobra.Command) { commands = append(commands, c) }

// Command returns the command line of tare, with every command.
func Command() *cobra.Command {
	root := &cobra.Command{
		Use:           "tare",
		Short:         "Tare weighs infrastructure: what meshes, eBPF programs, sandboxes and tracers cost",
		SilenceErrors: true,
		SilenceUsage:  true,
		Version:       self.Version + " " + self.Build(),
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			hint := "see 'tare --help' for the commands"
			names := lists.Map(cmd.Commands(), (*cobra.Command).Name)
			if n := text.Nearest(args[0], names); n != "" {
				hint = fmt.Sprintf("did you mean %q? %s", n, hint)
			}
			return fault.New(fault.Usage, "tare "+args[0], hint, "no such command")
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetFlagErrorFunc(usage.FlagError)
	for _, c := range commands {
		root.AddCommand(c())
	}
	return root
}

// printLog prints a role's log message. Lines after the first are indented, so that untrusted text cannot pass for
// another message.
func printLog(w io.Writer, m role.Message) error {
	var raw string
	if err := decodeMessage(m, &raw); err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSuffix(raw, "\n"), "\n")
	for i, line := range lines {
		lines[i] = text.Line(line)
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n  "))
	return err
}
