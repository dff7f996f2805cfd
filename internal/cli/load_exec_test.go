package cli

import (
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/lib/fault"
	"tare/internal/tracing/exec"
)

func TestPrintExec(t *testing.T) {
	h := hdrhistogram.New(1, 100e9, 3)
	if err := h.RecordValues(300_000, 1980); err != nil {
		t.Fatal(err)
	}
	r := &load.Result{
		Generator: exec.Generator, Mode: load.Open, Seconds: 2, TargetRate: 1000, Rate: 990, Intended: 2000, Sent: 1995, Done: 1980, CPUSeconds: 0.594, CPUs: 2,
		Errors: map[string]int64{"execveat EACCES": 10, "clone EAGAIN": 5}, Counts: map[string]float64{exec.CountMade: 2100, exec.CountWorkers: 4},
	}
	for _, name := range []string{load.Latency, load.Service, load.OwnLag} {
		if err := r.SetHistogram(name, h); err != nil {
			t.Fatal(err)
		}
	}
	var b strings.Builder
	if err := printExec(&b, r); err != nil {
		t.Fatal(err)
	}
	const want = `1000/s for 2s, 4 workers on 2 CPUs
1980 of 2000 execs made, 990/s; 2100 with warm-up
5 were never tried: the machine did not get to them in time
5 failed: clone EAGAIN
10 failed: execveat EACCES
latency: p50 300 us, p90 300 us, p99 300 us, at most 300 us
service: p50 300 us, p90 300 us, p99 300 us, at most 300 us
own lag: p50 300 us, p90 300 us, p99 300 us, at most 300 us
0.59 CPU seconds, 15 % of 2 CPUs, 300 us for each exec
`
	if b.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", b.String(), want)
	}
}

// TestLoadExec runs the command, and refuses what makes no sense.
func TestLoadExec(t *testing.T) {
	run := func(args ...string) (string, error) {
		var b strings.Builder
		cmd := newRoot()
		cmd.SetArgs(append([]string{"load", "exec"}, args...))
		cmd.SetOut(&b)
		err := cmd.ExecuteContext(t.Context())
		return b.String(), err
	}
	out, err := run("--workers", "1", "--duration", "500ms")
	if err != nil || !strings.HasPrefix(out, "storm for 0.5s, 1 workers on 1 CPUs\n") || !strings.Contains(out, "\nlatency: p50 ") || strings.Contains(out, "service") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = run("--rate", "100", "--duration", "50ms", "--json"); err != nil || !strings.HasPrefix(out, `{"schema":"tare.load/v1","generator":"exec","mode":"open","arrivals":"constant"`) || !strings.Contains(out, `"execs_made":`) {
		t.Errorf("%v\n%s", err, out)
	}
	for _, args := range [][]string{{"--rate", "-1"}, {"--rate", "gale"}, {"--workers", "-1"}, {"--workers", "1024"}, {"--duration", "0s"}} {
		if out, err := run(args...); fault.CodeOf(err) != fault.Usage || fault.MendOf(err) == "" || out != "" {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}
