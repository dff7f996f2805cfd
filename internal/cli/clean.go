package cli

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"tare/internal/host/cgroup"
	"tare/internal/link"
	"tare/internal/microvm"
	"tare/internal/oci"
	"tare/internal/placement"
	"tare/internal/printable"
	"tare/internal/scratch"
	"tare/internal/self"
)

func init() { register(newClean) }

func newClean() *cobra.Command {
	return &cobra.Command{
		Use:   "clean",
		Short: "Remove what a killed run left behind",
		Long: `Remove what killed runs left behind: their control groups, containers and sandboxes of 'tare microvm', the network
interfaces of local nodes and containers, files in the system's directories for temporary ones and, should any have
outlived them, their processes. Runs that are under way and everything that is not Tare's own are left alone. Programs
and maps of a subject go with its process.
'tare run' does the same before it begins.`,
		Example: `  tare clean`,
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			layout, err := cgroup.Discover(cgroup.Roots{})
			if err != nil {
				return err
			}
			defer insist(cmd.Context())()
			r, err := cleanUp(cmd.Context(), layout)
			if e := promptly(cmd.Context(), func() error { return printCleaned(cmd.OutOrStdout(), r) }); err == nil {
				err = e
			}
			return err
		},
	}
}

// cleaned is what was removed of runs that have ended.
type cleaned struct {
	placement.Report
	Links       []string
	Directories []string
	Sandboxes   []string // by id
}

// cleanUp removes all that is left of runs that have ended, one kind of thing after the other. When the context ends it
// finishes that which it is at, and leaves the others for the next time. The order matters.
func cleanUp(ctx context.Context, layout *cgroup.Layout) (r cleaned, err error) {
	for _, remove := range []func() error{
		func() (err error) { // their control groups may be in those of a run
			r.Sandboxes, err = microvm.Clean(layout)
			return err
		},
		func() (err error) { // before their processes are ended: a runtime takes away more than these
			r.Directories, err = oci.Clean(layout)
			return err
		},
		func() (err error) {
			r.Report, err = placement.Clean(layout)
			return err
		},
		func() (err error) {
			r.Links, err = link.Clean(layout)
			return err
		},
		func() error {
			directories, err := scratch.Clean()
			r.Directories = append(r.Directories, directories...)
			return err
		},
		func() error { return oci.CleanGroups(layout) },
	} {
		if ctx.Err() != nil {
			return r, errors.Join(err, ctx.Err())
		}
		err = errors.Join(err, remove())
	}
	return r, err
}

// binary is the tare binary under a path that stays its own, whatever is put in the place of the file.
type binary struct {
	path string
	dir  *scratch.Dir
}

// Close takes the path away.
func (b *binary) Close() error { return b.dir.Close() }

// ground finds the control groups of this machine and the tare binary, which is to be closed, and removes what is left
// of runs that have ended, before something begins: that this fails is no obstacle.
func ground(ctx context.Context, log io.Writer) (layout *cgroup.Layout, own *binary, err error) {
	if layout, own, err = findGround(); err != nil {
		return nil, nil, err
	}
	if _, err := cleanUp(ctx, layout); err != nil {
		fmt.Fprintf(log, "tare: not everything that an earlier run left behind could be removed: %v\n", err)
	}
	return layout, own, nil
}

func findGround() (layout *cgroup.Layout, own *binary, err error) {
	if layout, err = cgroup.Discover(cgroup.Roots{}); err != nil {
		return nil, nil, err
	}
	dir, err := scratch.New("", "binary")
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
	for _, t := range r.Trees {
		fmt.Fprintf(w, "removed the control groups %s\n", t)
	}
	for _, p := range r.Killed {
		fmt.Fprintf(w, "ended process %d (%s) of %s\n", p.PID, p.Comm, p.Tree)
	}
	for _, p := range r.Moved {
		fmt.Fprintf(w, "moved process %d (%s) out of %s: not a process of tare\n", p.PID, p.Comm, p.Tree)
	}
	for _, l := range r.Links {
		fmt.Fprintf(w, "removed the network interface %s\n", l)
	}
	for _, id := range r.Sandboxes {
		fmt.Fprintf(w, "removed the sandbox %s\n", printable.Line(id))
	}
	for _, d := range r.Directories {
		fmt.Fprintf(w, "removed the directory %s\n", printable.Line(d))
	}
	if len(r.Trees)+len(r.Killed)+len(r.Moved)+len(r.Links)+len(r.Directories)+len(r.Sandboxes) == 0 {
		_, err := fmt.Fprintln(w, "nothing to remove")
		return err
	}
	return nil
}
