package cli

import (
	"os"
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/lib/fault"
	"tare/internal/workloads/load/write"
)

func TestPrintWrite(t *testing.T) {
	h := hdrhistogram.New(1, 100e9, 3)
	if err := h.RecordValues(30_000, 1980); err != nil {
		t.Fatal(err)
	}
	r := &load.Result{
		Generator: write.Name, Mode: load.Open, Arrivals: "poisson", Seconds: 2, TargetRate: 1000, Rate: 990,
		Intended: 2000, Sent: 1996, Done: 1980, Unfinished: 1, CPUSeconds: 0.5, CPUs: 2, Connections: 4,
		Errors: map[string]int64{"write ENOSPC": 10, "open EIO": 5}, Counts: map[string]float64{write.CountBytes: 8e6},
	}
	for _, name := range []string{load.Latency, load.Service, load.OwnLag} {
		if err := r.SetHistogram(name, h); err != nil {
			t.Fatal(err)
		}
	}
	var b strings.Builder
	if err := printWrite(&b, r); err != nil {
		t.Fatal(err)
	}
	const want = `open loop, poisson arrivals, 1000/s for 2s, 4 workers
1980 of 2000 writes done, 990/s; 8.00 MB, 4.00 MB/s
4 were never begun: no worker was free
1 had not ended when the drain did
5 failed: open EIO
10 failed: write ENOSPC
latency: p50 30 us, p90 30 us, p99 30 us, at most 30 us
service: p50 30 us, p90 30 us, p99 30 us, at most 30 us
own lag: p50 30 us, p90 30 us, p99 30 us, at most 30 us
0.50 CPU seconds, 12 % of 2 CPUs
`
	if b.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", b.String(), want)
	}
}

// TestLoadWrite runs the command, which leaves nothing behind, and refuses what makes no sense.
func TestLoadWrite(t *testing.T) {
	dir := t.TempDir()
	run := func(args ...string) (string, error) {
		return ran(t, append([]string{"load", "write", "--directory", dir}, args...)...)
	}
	out, err := run("--mode", "closed", "--workers", "1", "--duration", "300ms")
	if err != nil || !strings.HasPrefix(out, "closed loop for 0.3s, 1 worker\n") ||
		!strings.Contains(out, "\nlatency: p50 ") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = run("--rate", "100", "--arrivals", "constant", "--duration", "300ms", "--json")
	if err != nil || !strings.HasPrefix(out, `{"schema":"tare.load/v1","generator":"write","mode":"open","arrivals":"constant"`) ||
		!strings.Contains(out, `"intended":30,`) || !strings.Contains(out, `"written_bytes":`) {
		t.Errorf("%v\n%s", err, out)
	}
	for _, args := range [][]string{
		{}, {"--mode", "closed", "--rate", "5"}, {"--rate", "5", "--sync", "often"}, {"--rate", "5", "--limit", "5"},
		{"--rate", "5", "--duration", "0s"},
	} {
		if out, err := run(args...); fault.CodeOf(err) != fault.Usage || fault.MendOf(err) == "" || out != "" {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	if left, err := os.ReadDir(dir); len(left) > 0 || err != nil {
		t.Errorf("it left %v, %v", left, err)
	}
}
