package cli

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"tare/internal/host/cgroup"
	"tare/internal/link"
	"tare/internal/microvm"
	"tare/internal/oci"
	"tare/internal/placement"
	"tare/internal/printable"
	"tare/internal/scratch"
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
			r, err := cleanUp(layout)
			if e := printCleaned(cmd.OutOrStdout(), r); err == nil {
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

// cleanUp removes all that is left of runs that have ended.
func cleanUp(layout *cgroup.Layout) (r cleaned, err error) {
	sandboxes, err := microvm.Clean(layout) // their control groups may be in those of a run
	containers, err1 := oci.Clean(layout)   // before their processes are ended: a runtime takes away more than these
	report, err2 := placement.Clean(layout)
	links, err3 := link.Clean(layout)
	directories, err4 := scratch.Clean()
	r = cleaned{Report: report, Links: links, Directories: append(containers, directories...), Sandboxes: sandboxes}
	return r, errors.Join(err, err1, err2, err3, err4, oci.CleanGroups(layout))
}

// ground finds the control groups of this machine and the tare binary, and removes what is left of runs that have
// ended, before something begins: that this fails is no obstacle.
func ground(log io.Writer) (layout *cgroup.Layout, self string, err error) {
	if layout, self, err = findGround(); err != nil {
		return nil, "", err
	}
	if _, err := cleanUp(layout); err != nil {
		fmt.Fprintf(log, "tare: not everything that an earlier run left behind could be removed: %v\n", err)
	}
	return layout, self, nil
}

func findGround() (layout *cgroup.Layout, self string, err error) {
	if layout, err = cgroup.Discover(cgroup.Roots{}); err != nil {
		return nil, "", err
	}
	if self, err = os.Executable(); err != nil {
		return nil, "", fmt.Errorf("finding the tare binary: %w", err)
	}
	return layout, self, nil
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
