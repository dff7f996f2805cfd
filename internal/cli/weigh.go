package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/fault"
	"tare/internal/host/perf"
	"tare/internal/ledger"
	"tare/internal/meter"
	"tare/internal/report"
)

func init() { register(newWeigh) }

const longestWindow = 24 * time.Hour

func newWeigh() *cobra.Command {
	var window time.Duration
	var asJSON bool
	var hz int
	cmd := &cobra.Command{
		Use:   "weigh",
		Short: "Weigh this machine: one ledger of who used what, eBPF time split by control group",
		Long: `Weigh reads every counter, waits, reads them again, and prints the account of that window: the CPU budget with the remainder that
nobody explains, eBPF programs with their run time split by control group and context, maps, control groups and memory.

The kernel's eBPF run statistics are on during the window (they cost each run of a program about 20 to 50 ns; the ledger says what it
came to), by a descriptor that ends with this process. Nothing else of the machine is changed. Ctrl-C ends the window early.`,
		Example: `  tare weigh                    # ten seconds, for people
  tare weigh --for 1m --json    # a minute, for programs: schema tare.ledger/v1`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if window < 100*time.Millisecond || window > longestWindow {
				return fault.New(fault.Usage, "--for "+window.String(), "try --for 10s", "a window lasts from 100ms to %v", longestWindow)
			}
			if hz < 0 || hz > 10_000 {
				return fault.New(fault.Usage, fmt.Sprintf("--hz %d", hz), "try --hz 499", "samples per second and CPU are from 0 (none) to 10000")
			}
			if hz == 0 {
				hz = -1
			}
			l, err := weigh(cmd.Context(), window, meter.Options{SampleHz: hz})
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			if asJSON {
				enc := json.NewEncoder(out)
				enc.SetIndent("", " ")
				return enc.Encode(l)
			}
			return report.Ledger(out, l, textOptions(out, ""))
		},
	}
	f := cmd.Flags()
	f.DurationVar(&window, "for", 10*time.Second, "length of the window")
	f.BoolVar(&asJSON, "json", false, "print one JSON document and nothing else")
	f.IntVar(&hz, "hz", perf.DefaultHz, "samples per second and CPU; 0 for none: then eBPF time is not split")
	return cmd
}

// weigh takes one ledger. The end of ctx ends the window early, and the ledger says how long it was.
func weigh(ctx context.Context, d time.Duration, o meter.Options) (l *ledger.Ledger, err error) {
	m, err := meter.New(ctx, o)
	if err != nil {
		return nil, err
	}
	defer func() {
		if cerr := m.Close(); err == nil {
			err = cerr
		}
	}()
	w, err := m.Open()
	if err != nil {
		return nil, err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	return w.Close()
}
