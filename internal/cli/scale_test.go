package cli

import (
	"bytes"
	"context"
	"encoding/csv"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tare/internal/lib/fault"
	"tare/internal/results/report"
	"tare/internal/scale/ledger"
	"tare/test/schematest"
)

// clocked is a source of ledgers that cover the time for which it was asked to wait. It then takes some more time, as a
// reading of counters does.
type clocked struct {
	reading time.Duration
	err     error // of the second ledger
	lengths []time.Duration
}

func (c *clocked) Next(ctx context.Context, d time.Duration) (*ledger.Ledger, error) {
	begin := time.Now()
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	c.lengths = append(c.lengths, time.Since(begin))
	if c.err != nil && len(c.lengths) == 2 {
		return nil, c.err
	}
	l := &ledger.Ledger{Schema: ledger.Schema, Window: ledger.Window{Start: begin, End: time.Now(),
		Seconds: time.Since(begin).Seconds()}}
	l.Programs, l.Maps, l.Cgroups, l.Workloads = []ledger.Program{}, []ledger.Map{}, []ledger.Cgroup{}, []ledger.Workload{}
	l.CPU.Lines, l.Warnings = []ledger.CPULine{}, []ledger.Warning{}
	time.Sleep(c.reading)
	return l, nil
}

func (c *clocked) Close() error { return nil }

// TestTicks: ticks follow a clock, not each other; together they last exactly as long as was asked for, and the last
// one is never too short to be a window.
func TestTicks(t *testing.T) {
	ms := time.Millisecond
	for name, c := range map[string]struct {
		ticks   ticks
		reading time.Duration
		ends    time.Duration // of the context; 0: never
		want    []time.Duration
	}{
		"whole":      {ticks{time.Second, 3 * time.Second}, 0, 0, []time.Duration{1000 * ms, 1000 * ms, 1000 * ms}},
		"a rest":     {ticks{time.Second, 2500 * ms}, 0, 0, []time.Duration{1000 * ms, 1000 * ms, 500 * ms}},
		"a mite":     {ticks{time.Second, 2050 * ms}, 0, 0, []time.Duration{1000 * ms, 1050 * ms}},
		"reading":    {ticks{time.Second, 3 * time.Second}, 200 * ms, 0, []time.Duration{1000 * ms, 800 * ms, 800 * ms}},
		"too slow":   {ticks{time.Second, 0}, 1500 * ms, 5 * time.Second, []time.Duration{1000 * ms, 1000 * ms, 0}},
		"cut short":  {ticks{time.Second, 0}, 0, 2300 * ms, []time.Duration{1000 * ms, 1000 * ms, 300 * ms}},
		"one window": {ticks{time.Second, time.Second}, 0, 0, []time.Duration{1000 * ms}},
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx := t.Context()
			if c.ends > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, c.ends)
				defer cancel()
			}
			write, err := report.Series.Writer("json")
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			s := &clocked{reading: c.reading}
			if err := c.ticks.write(ctx, &out, s, write, report.Options{}); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if c.want[len(c.want)-1] == 0 { // after the end of the context there is at most one empty ledger
				c.want = c.want[:len(c.want)-1]
				s.lengths = s.lengths[:min(len(s.lengths), len(c.want))]
			} else if n := strings.Count(out.String(), "\n"); n != len(c.want) {
				t.Errorf("%s: %d lines", name, n)
			}
			if !slices.Equal(s.lengths, c.want) {
				t.Errorf("%s: ticks of %v, want %v", name, s.lengths, c.want)
			}
			if err := schematest.Lines(out.Bytes()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		})
	}
}

// TestSeries: each format of a series writes one ledger after another. What came before an error is written.
func TestSeries(t *testing.T) {
	for _, format := range report.Series.Names() {
		synctest.Test(t, func(t *testing.T) {
			write, err := report.Series.Writer(format)
			if err != nil {
				t.Fatal(err)
			}
			var out bytes.Buffer
			broken := errors.New("broken")
			err = ticks{every: time.Second}.write(t.Context(), &out, &clocked{err: broken}, write, report.Options{})
			if !errors.Is(err, broken) || out.Len() == 0 {
				t.Errorf("%s: %v after %q", format, err, out.String())
			}
			out.Reset()
			two := ticks{time.Second, 2 * time.Second}
			if err := two.write(t.Context(), &out, &clocked{}, write, report.Options{}); err != nil {
				t.Errorf("%s: %v", format, err)
			}
			switch format {
			case "csv":
				rows, err := csv.NewReader(&out).ReadAll()
				begins := map[string]int{}
				for _, r := range rows {
					begins[r[len(r)-1]]++
				}
				if err != nil || len(begins) != 3 || begins["window_start_seconds"] != 1 {
					t.Errorf("csv: %v: the last column is %v", err, begins)
				}
			case "text":
				if n := strings.Count(out.String(), "Weighed for 1.00 s: "); n != 2 {
					t.Errorf("text: %d ledgers: %s", n, out.String())
				}
			}
		})
	}
}

// TestSeriesRefused: invalid flags of a series end the command before anything is weighed.
func TestSeriesRefused(t *testing.T) {
	for _, c := range []struct {
		args             string
		where, what, fix string
	}{
		{"weigh --every 0s", "--every 0s", "from 100ms", "--every 10s"},
		{"weigh --every 25h", "--every 25h0m0s", "to 24h0m0s", "--every 10s"},
		{"weigh --every 10s --for 5s", "--for 5s --every 10s", "at least --every", "leave it out"},
		{"weigh --every 10s --format openmetrics", "--format openmetrics", "no series of ledgers", "csv, json, text"},
		{"top --every 10ms --once", "--every 10ms", "from 100ms", "--every 10s"},
		{"top", "standard output", "this is not one", "--once"},
		{"top --tls", "--tls", "needs --agent", "--agent HOST:PORT"},
		{"top --agent node:1 --hz 7 --once", "--hz --agent", "settings of its own machine", "where the agent runs"},
		{"top --agent node --once", "--agent node", "HOST:PORT", "node-7:9633"},
		{"top --hz -1 --once", "--hz -1", "per second on each CPU", "--hz 449"},
	} {
		root := Command()
		root.SetArgs(strings.Fields(c.args))
		root.SetOut(io.Discard)
		err := root.Execute()
		if fault.CodeOf(err) != fault.Usage || !strings.HasPrefix(err.Error(), c.where) ||
			!strings.Contains(err.Error(), c.what) || !strings.Contains(fault.HintOf(err), c.fix) {
			t.Errorf("%q: %v (%s)", c.args, err, fault.HintOf(err))
		}
	}
}
