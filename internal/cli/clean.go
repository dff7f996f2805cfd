package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/experiment/link"
	"tare/internal/experiment/placement"
	"tare/internal/lib/files"
	"tare/internal/lib/self"
	"tare/internal/lib/text"
	"tare/internal/lib/usage"
	"tare/internal/sandboxes/microvm"
	"tare/internal/sandboxes/oci"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
)

func init() { register(newClean) }

func newClean() *cobra.Command {
	var ended []string
	var dryRun bool
	c := &cobra.Command{
		Use:   "clean",
		Short: "Remove what a killed run left behind",
		Long: `Remove what killed runs left behind: their control groups, containers and sandboxes of 'tare microvm', the network
interfaces of local nodes and containers, temporary files and, should any still run, their processes. Runs that are
under way, and everything that is not Tare's own, are left alone. Programs and maps of a subject end with its process.
'tare run' does the same before it begins.

In a container, whether a run of another container or of the host goes on may be impossible to see. What such a run
has is left alone and listed: run 'tare clean' on the host, where every process is seen, or name the run with --ended.

--dry-run lists what would be removed, ended and moved, and changes nothing.`,
		Example: `  tare clean
  tare clean --dry-run
  tare clean --ended tare-nodes-n4026532501-p7-t123456`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			layout, err := cgroup.Discover(cgroup.Roots{})
			if err != nil {
				return err
			}
			for _, name := range ended {
				if err := placement.CheckEnded(layout, name); err != nil {
					return err
				}
			}
			defer insist(cmd.Context())()
			r, err := cleanUp(cmd.Context(), layout, dryRun, ended...)
			if e := promptly(cmd.Context(), func() error { return printCleaned(cmd.OutOrStdout(), r) }); err == nil {
				err = e
			}
			return err
		},
	}
	c.Flags().BoolVar(&dryRun, "dry-run", false, "list what would be removed, and change nothing")
	c.Flags().StringArrayVar(&ended, "ended", nil,
		"`name` of a run that has ended, where that cannot be seen from here; may be repeated")
	return c
}

// cleaned lists which leftovers of ended runs were removed, and which were left alone.
type cleaned struct {
	DryRun bool // nothing was removed; the lists hold what would be removed
	placement.Report
	Links       []string
	Directories []string
	Sandboxes   []string // by id
	Left        []placement.Left
	Pins        []string // made since the first of the runs began; their owners are unknown
}

// cleanUp removes everything that is left of runs that have ended. The runs named in ended count as ended even if that
// cannot be seen from here. A dry run only lists what would be removed. When the context ends, the current step is
// finished and the rest is left for the next time. The order of the steps matters.
func cleanUp(ctx context.Context, layout *cgroup.Layout, dryRun bool, ended ...string) (r cleaned, err error) {
	owners := placement.NewOwners(layout, ended...)
	owners.DryRun, r.DryRun = dryRun, dryRun
	defer owners.Close()
	defer func() { r.Left = owners.Left() }()
	for _, remove := range []func() error{
		func() (err error) { // first: a sandbox's control groups may be inside those of a run
			r.Sandboxes, err = microvm.Clean(owners)
			return err
		},
		// This comes before owners.Clean, which ends processes, because a container runtime removes more than its processes.
		func() (err error) {
			r.Directories, err = oci.Clean(owners)
			return err
		},
		func() (err error) {
			r.Report, err = owners.Clean()
			return err
		},
		func() (err error) {
			r.Links, err = link.Clean(owners)
			return err
		},
		func() error {
			directories, err := files.CleanScratch(dryRun)
			r.Directories = append(r.Directories, directories...)
			return err
		},
		func() error { return oci.CleanGroups(layout, owners) },
		func() (err error) {
			r.Pins, err = pinsSince(r.Trees)
			return err
		},
	} {
		if ctx.Err() != nil {
			return r, errors.Join(err, ctx.Err())
		}
		err = errors.Join(err, remove())
	}
	return r, err
}

// pinsSince returns the eBPF pins made since the earliest of the runs with these trees began. The pins may come from a
// run's tracer or command, or from an unrelated program.
func pinsSince(trees []string) ([]string, error) {
	var first time.Time
	for _, tree := range trees {
		if began, ok := placement.Began(tree); ok && (first.IsZero() || began.Before(first)) {
			first = began
		}
	}
	if first.IsZero() {
		return nil, nil
	}
	return bpf.PinsSince(first)
}

// binary is a path that leads to the running tare binary, even if the file from which it was started is replaced.
type binary struct {
	path string
	dir  *files.Scratch
}

// Close removes the path.
func (b *binary) Close() error { return b.dir.Close() }

// ground finds the control groups of this machine and the tare binary, which the caller must close. It also removes
// what is left of runs that have ended. If that fails, it only logs the error.
func ground(ctx context.Context, log io.Writer) (layout *cgroup.Layout, own *binary, err error) {
	if layout, own, err = findGround(); err != nil {
		return nil, nil, err
	}
	if _, err := cleanUp(ctx, layout, false); err != nil {
		fmt.Fprintf(log, "tare: not everything that an earlier run left behind could be removed: %v\n", err)
	}
	return layout, own, nil
}

func findGround() (layout *cgroup.Layout, own *binary, err error) {
	if layout, err = cgroup.Discover(cgroup.Roots{}); err != nil {
		return nil, nil, err
	}
	dir, err := files.NewScratch("", "binary")
	if err != nil {
		return nil, nil, err
	}
	path, err := self.Link(dir.Path())
	if err != nil {
		return nil, nil, errors.Join(err, dir.Close())
	}
	return layout, &binary{path, dir}, nil
}

func printCleaned(w io.Writer, r cleaned) error {
	removed, ended, moved := "removed", "ended", "moved"
	if r.DryRun {
		removed, ended, moved = "would remove", "would end", "would move"
	}
	each := func(things []string, what string) {
		for _, thing := range things {
			fmt.Fprintf(w, "%s the %s %s\n", removed, what, text.Line(thing))
		}
	}
	each(r.Trees, "control groups")
	for _, p := range r.Killed {
		fmt.Fprintf(w, "%s process %d (%s) of %s\n", ended, p.PID, p.Comm, p.Tree)
	}
	for _, p := range r.Moved {
		fmt.Fprintf(w, "%s process %d (%s) out of %s: not a process of tare\n", moved, p.PID, p.Comm, p.Tree)
	}
	each(r.Links, "network interface")
	each(r.Sandboxes, "sandbox")
	each(r.Directories, "directory")
	const mostPins = 10 // unrelated programs may make many
	for i, pin := range r.Pins {
		if i == mostPins {
			fmt.Fprintf(w, "and %d more pins\n", len(r.Pins)-i)
			break
		}
		fmt.Fprintf(w, "left alone: the eBPF pin %s, made since those runs began: remove it if one of them made it\n",
			text.Line(pin))
	}
	for _, l := range r.Left {
		of := ""
		if l.Tree != "" {
			of = " of " + l.Tree
		}
		why := ""
		if l.Ending > 0 {
			why = fmt.Sprintf(": process %d was killed and has not ended: look at its state (ps -o pid,stat,wchan), then run "+
				"'tare clean' again", l.Ending)
		}
		fmt.Fprintf(w, "left alone: %s%s%s\n", text.Line(l.What), of, why)
	}
	if slices.ContainsFunc(r.Left, func(l placement.Left) bool { return l.Ending == 0 }) {
		_, err := fmt.Fprintln(w, "whether those runs go on cannot be seen from this PID namespace: run 'tare clean' on "+
			"the host, "+
			"or name a run that has ended: tare clean --ended NAME")
		return err
	}
	if len(r.Trees)+len(r.Killed)+len(r.Moved)+len(r.Links)+len(r.Directories)+len(r.Sandboxes)+len(r.Left) == 0 {
		_, err := fmt.Fprintln(w, "nothing to remove")
		return err
	}
	return nil
}
