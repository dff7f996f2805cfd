package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/kube/agents"
	"tare/internal/kube/coordinator"
	"tare/internal/kube/pods"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/terminal"
	"tare/internal/lib/text"
	"tare/internal/lib/usage"
	"tare/internal/results/report"
	"tare/internal/results/session"
)

func init() { register(newAttach) }

func newAttach(c *connection) *cobra.Command {
	var a attachment
	var stop bool
	cmd := &cobra.Command{
		Use:   "attach [RUN]",
		Short: "Follow a run of 'kubectl tare run' to its end, print its answer, and fetch its run directory",
		Long: `Attach follows a run after 'kubectl tare run' was killed or its machine went to sleep: it shows the progress of
the run, fetches the run directory, prints the report and removes the run from the cluster. It works from any machine,
and needs the rights of 'kubectl tare run'. RUN can be omitted if the namespace has only one run; otherwise, attach
lists the runs.

Ctrl-C does not end the run. --stop ends it now, and fetches what it has measured. The results of a run that is over
are kept for an hour.`,
		Example: `  kubectl tare attach
  kubectl tare attach tare-x3k5a2 -n shop --out run1
  kubectl tare attach tare-x3k5a2 --stop`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return fault.New(fault.Usage, cmd.CommandPath(), usage.SeeHelp(cmd), "want one run, got %d", len(args))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if a.c, err = c.open(); err != nil {
				return err
			}
			namespace, err := c.namespace()
			if err != nil {
				return err
			}
			if a.run, err = choose(cmd.Context(), a.c, namespace, strings.Join(args, "")); err != nil {
				return err
			}
			a.out, a.log = cmd.OutOrStdout(), terminal.Guard(cmd.ErrOrStderr())
			if stop {
				if err := a.client().Interrupt(cmd.Context()); err != nil {
					return fault.Wrap(err, fault.Machine, "pod "+namespace+"/"+a.run.Name, a.hint(), "the run cannot be ended")
				}
			}
			return a.follow(cmd.Context())
		},
	}
	fs := cmd.Flags()
	a.show.RegisterJSON(fs, "print the summary as one JSON document instead of the report")
	a.show.RegisterAll(fs)
	fs.StringVar(&a.dir, "out", "", "run directory; default tare-run-NAME-TIME here, or the unfinished copy there")
	fs.BoolVar(&stop, "stop", false, "end the run now, and fetch what it has measured")
	return cmd
}

// choose finds a run by its name, or the only run if the name is empty.
func choose(ctx context.Context, c *agents.Cluster, namespace, name string) (*pods.Run, error) {
	all, err := pods.Runs(ctx, c, namespace)
	if err != nil {
		return nil, err
	}
	var list []string
	for _, r := range all {
		if r.Name == name || name == "" && len(all) == 1 {
			return r, nil
		}
		list = append(list, fmt.Sprintf("%s, %s, since %s", r.Name, text.Clip(r.Experiment),
			r.Made.Local().Format(time.DateTime)))
	}
	where := "namespace " + namespace
	switch {
	case len(all) == 0:
		return nil, fault.New(fault.Usage, where, "choose another namespace with -n", "there is no run")
	case name != "":
		return nil, fault.New(fault.Usage, where, "runs: "+strings.Join(list, "; "), "there is no run %s", text.Clip(name))
	}
	return nil, fault.New(fault.Usage, where, "choose one of: "+strings.Join(list, "; "), "there are %d runs", len(all))
}

// attachment follows a run.
type attachment struct {
	c        *agents.Cluster
	run      *pods.Run
	dir      string // of the copy; if empty, its name is made of the experiment and the time
	show     session.Show
	out, log io.Writer
	ends     bool // Ctrl-C ends the run
}

func (a *attachment) client() *coordinator.Client {
	return coordinator.NewClient(func(ctx context.Context) (net.Conn, error) {
		return a.c.Dial(ctx, a.run.Namespace, a.run.Name, coordinator.Port)
	})
}

// command returns the command that resumes following the run; hint returns a hint with that command.
func (a *attachment) command() string {
	return "kubectl tare attach " + a.run.Name + " -n " + a.run.Namespace
}
func (a *attachment) hint() string { return "'" + a.command() + "' resumes it" }

// follow follows the run to its end, removes it and prints its results. If the copy cannot be made, the run stays in
// the cluster.
func (a *attachment) follow(ctx context.Context) error {
	client := a.client()
	defer client.Close()
	var begun atomic.Bool
	f := &coordinator.Followed{Client: client, Log: a.log,
		Gone: func(ctx context.Context) (lost, err error) { return a.run.Gone(ctx, a.c) },
		Open: func(r record.Run) (*record.Writer, error) {
			begun.Store(true)
			return a.open(&r)
		}}
	work, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { // on a signal
		if killed(ctx) || !a.ends || !begun.Load() {
			cancel(ctx.Err())
			return
		}
		fmt.Fprintf(a.log, "tare: interrupted; ending the run. Ctrl-C again leaves it to end by itself: %s\n", a.command())
		for client.Interrupt(work) != nil && pace.Sleep(work, time.Second) == nil {
			continue
		}
	})()
	ended, err := f.Follow(work)
	if f.Copy != nil {
		defer f.Copy.Close()
	}
	switch {
	case err == nil:
	case a.ends && f.Copy == nil && ctx.Err() != nil && !killed(ctx): // nothing has been measured yet
		return errors.Join(session.BegunOr(err), pods.Remove(ctx, a.c, a.run))
	case errors.Is(err, context.Canceled):
		return a.goesOn()
	default:
		return a.left(err)
	}
	if ended != nil && !errors.Is(ended, context.Canceled) {
		if before := a.run.Ended(work, a.c); before != "" {
			ended = fault.Wrap(ended, fault.CodeOf(ended), "", fault.HintOf(ended), "the coordinator had ended %s", before)
		}
	}
	_ = client.Fetched(work) // an error is ignored: the coordinator is removed anyway
	err = pods.Remove(ctx, a.c, a.run)
	if f.Copy == nil {
		return errors.Join(session.BegunOr(ended), err)
	}
	return errors.Join(a.conclude(f.Copy, ended), err)
}

// left tells the user how to resume a run that could not be followed, and returns the reason.
func (a *attachment) left(why error) error {
	fmt.Fprintf(a.log, "tare: the run is left in the cluster: %s\n", a.hint())
	return why
}

// goesOn returns the error of a command that was interrupted, but whose run was not.
func (a *attachment) goesOn() error {
	return fault.New(fault.Invalid, "", a.hint(), "interrupted: the run goes on")
}

// leave prints the command that follows the run, once the run is under way. A run that does not start is removed, as is
// one for which Ctrl-C ends the wait.
func (a *attachment) leave(ctx context.Context) error {
	client := a.client()
	defer client.Close()
	for {
		_, err := client.Status(ctx, 0, 0)
		if err == nil {
			fmt.Fprintln(a.out, a.command())
			return nil
		}
		lost, err := a.run.Gone(ctx, a.c)
		if err != nil {
			return a.left(err)
		}
		if err := cmp.Or(ctx.Err(), lost, pace.Sleep(ctx, time.Second)); err != nil {
			if killed(ctx) {
				return a.goesOn()
			}
			return errors.Join(err, pods.Remove(ctx, a.c, a.run))
		}
	}
}

// open creates the copy of a run directory, or opens an unfinished one.
func (a *attachment) open(r *record.Run) (*record.Writer, error) {
	if a.dir == "" {
		a.dir = dirOf(r)
		if filepath.Base(a.dir) != a.dir {
			return nil, fault.New(fault.Invalid, "", "name a directory with --out",
				"the coordinator says that the experiment is called %s", text.Clip(r.Experiment))
		}
	}
	return record.Continue(a.dir, *r)
}

// dirOf returns the default run directory of a run.
func dirOf(r *record.Run) string {
	return fmt.Sprintf("tare-run-%s-%s", r.Experiment, r.Started.Format("20060102-150405"))
}

// conclude writes the summary and the page of a copy, and prints the report.
func (a *attachment) conclude(w *record.Writer, ended error) error {
	c, err := record.ReadLean(w.Dir())
	if err != nil {
		return errors.Join(ended, err)
	}
	c.Run.Metrics = metric.Complete(c.Run.Metrics, measured.Definitions())
	for _, warning := range c.Warnings {
		fmt.Fprintf(a.log, "tare: %s\n", warning)
	}
	out := a.out
	file, _ := out.(*os.File)
	if file != nil && isatty.IsTerminal(file.Fd()) {
		out = terminal.Guard(out, terminal.Styles...)
	}
	o := session.Output{Out: out, Log: a.log, Terminal: os.Stderr, Show: a.show,
		Text: func(_ io.Writer, dir string, all bool) report.Options { return session.TextOptions(file, dir, all) }}
	return o.Conclude(w, c.Run, c.Trials, ended)
}
