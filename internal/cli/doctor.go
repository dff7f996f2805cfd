package cli

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tare/internal/experiment/cluster/local"
	"tare/internal/experiment/kind"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/usage"
	"tare/internal/scale/host/bpf"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/feature"
	"tare/internal/scale/host/ksym"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/host/witness"
)

func init() { register(newDoctor) }

// doctorSchema is the schema of the JSON form.
const doctorSchema = "tare.doctor/v1"

// diagnosis is the output of `tare doctor --json`.
type diagnosis struct {
	Schema   string           `json:"schema"`
	Machine  proc.Machine     `json:"machine"`
	Features []feature.Status `json:"features"`
	Programs []feature.Status `json:"programs"` // programs and kernel features that some guests need
}

func newDoctor() *cobra.Command {
	var asJSON, loadModules bool
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Show what this machine can measure, what it cannot, why, and what would change that",
		Long: `Doctor probes every kernel feature that Tare uses, by using it, and looks for the programs that some subjects
need. For each that is missing, it prints what the feature needs, what is not available without it, and how to fix it.
The exit code is 3 if the machine lacks a feature that is required. If another feature is missing, the ledger of
'tare weigh' is incomplete, and experiments that need the feature do not begin.

Redirecting connections to sidecars makes the kernel load modules, which stay loaded. Doctor tries this only with
--load-modules, and otherwise lists it as not tried.`,
		Example: `  tare doctor
  tare doctor --load-modules
  tare doctor --json | jq '.features[] | select(.available | not)'`,
		Args: usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := keepOnly(cmd.Context(), cap.DAC_OVERRIDE, cap.NET_ADMIN); err != nil {
				return err
			}
			d, err := diagnose(cmd.Context(), loadModules)
			if err != nil {
				return err
			}
			err = promptly(cmd.Context(), func() error {
				out := cmd.OutOrStdout()
				if asJSON {
					return printJSON(out, " ", d)
				}
				return printDiagnosis(out, d)
			})
			if err != nil {
				return err
			}
			var required []string
			for _, s := range d.Features {
				if s.Required && !s.Available {
					required = append(required, s.Name)
				}
			}
			if len(required) > 0 {
				return fault.New(fault.Machine, "", "how to fix each is listed above",
					"this machine cannot be weighed: it lacks %s", strings.Join(required, ", "))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&loadModules, "load-modules", false,
		"try what makes the kernel load modules as well; they stay loaded")
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON document and nothing else")
	return cmd
}

// features returns the probes for the kernel features that Tare uses, from every package that declares some.
var features = sync.OnceValue(func() []*feature.Probe {
	return slices.Concat(bpf.Features(), perf.Features(), witness.Features(), cgroup.Features(), ksym.Features(),
		local.Features())
})

// guestFeatures returns the probes of the programs and kernel features that guests need. Several guests may share a
// probe.
var guestFeatures = sync.OnceValue(func() (probes []*feature.Probe) {
	for _, r := range []kind.Role{kind.Application, kind.Load, kind.Subject} {
		for _, g := range kind.All(r) {
			needs := g.About().Probes
			if needs == nil {
				continue
			}
			probes = lists.Include(probes, needs()...)
		}
	}
	return probes
})

// diagnose runs all probes, except that it skips those that make the kernel load modules unless loadModules is set. A
// probe may create things on the machine and remove them again, so none is interrupted when the context ends: diagnose
// only skips the remaining ones.
func diagnose(ctx context.Context, loadModules bool) (diagnosis, error) {
	d := diagnosis{Schema: doctorSchema, Machine: proc.FS{}.Machine()}
	for _, p := range features() {
		if ctx.Err() != nil {
			return d, ctx.Err()
		}
		d.Features = append(d.Features, p.Status())
	}
	d.Programs = []feature.Status{}
	for _, p := range guestFeatures() {
		if ctx.Err() != nil {
			return d, ctx.Err()
		}
		s, leaves := p.Untried()
		if !leaves || loadModules {
			s = p.Status()
		}
		d.Programs = append(d.Programs, s)
	}
	return d, nil
}

func printDiagnosis(w io.Writer, d diagnosis) error {
	var b strings.Builder
	m := d.Machine
	fmt.Fprintf(&b, "%s: Linux %s on %d x %s, clocksource %s, lockdown %s\n\n", m.Hostname, m.Kernel, m.CPUs, m.CPUModel,
		m.Clocksource, m.Lockdown)
	printStatuses(&b, d.Features)
	if len(d.Programs) > 0 {
		b.WriteString("\nPrograms, and abilities of the kernel, that some subjects need:\n\n")
		printStatuses(&b, d.Programs)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// printStatuses prints the result of each probe, with a hint for each feature that is missing.
func printStatuses(b *strings.Builder, all []feature.Status) {
	wide := 0
	for _, s := range all {
		wide = max(wide, len(s.Name))
	}
	for _, s := range all {
		mark, fix := "yes", "fix"
		switch {
		case s.Untried:
			mark, fix, s.Hint = "?  ", "try", "tare doctor --load-modules"
		case !s.Available:
			mark = "NO "
		}
		fmt.Fprintf(b, "%s  %-*s  %s\n", mark, wide, s.Name, s.Detail)
		if s.Available {
			continue
		}
		for _, line := range [][2]string{{"needs", s.Needs}, {"lost", s.Lost}, {fix, s.Hint}} {
			if line[1] != "" {
				fmt.Fprintf(b, "     %-*s  %-5s  %s\n", wide, "", line[0], line[1])
			}
		}
	}
}
