package cli

import (
	"strings"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/lib/fault"
	"tare/internal/mesh/connect"
	"tare/internal/mesh/generation"
)

func TestPrintConnect(t *testing.T) {
	r := &load.Result{
		Generator: connect.Generator, Mode: load.Closed, Seconds: 2, Rate: 990, Intended: 2000, Done: 1980, Errors: map[string]int64{"connect-refused": 15, "connect-5": 5},
		Counts: map[string]float64{generation.Judged: 2000, generation.FailedCount: 20, generation.StaleCount: 1, generation.TornCount: 2, generation.MissedCount: 3, generation.BackwardCount: 4},
	}
	h := hdrhistogram.New(1, 100e9, 3)
	if err := h.RecordValues(1500, 1980); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{load.Connect, generation.OldEndpoint} {
		if err := r.SetHistogram(name, h); err != nil {
			t.Fatal(err)
		}
	}
	var b strings.Builder
	if err := printConnect(&b, r); err != nil {
		t.Fatal(err)
	}
	const want = `1980 of 2000 connections made in 2s, 990/s
connect: p50 1.5 us, p90 1.5 us, p99 1.5 us, at most 1.5 us
5 failed: connect-5
15 failed: connect-refused
6 of 2000 came to what is in neither the old nor the new set: 1 of an older set, 2 of no set, 3 past the mesh
4 found an older set than the connection before
an old endpoint was still found up to 1.5 us after a change began
`
	if b.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", b.String(), want)
	}
}

// TestLoadConnect runs the command: it connects without any data plane, and refuses what makes no sense.
func TestLoadConnect(t *testing.T) {
	run := func(args ...string) (string, error) {
		var b strings.Builder
		cmd := newLoadConnect()
		cmd.SetArgs(args)
		cmd.SetOut(&b)
		cmd.SilenceErrors, cmd.SilenceUsage = true, true
		err := cmd.ExecuteContext(t.Context())
		return b.String(), err
	}
	// The window is longer than a busy machine keeps a thread waiting, or there would be no connection in it now and
	// then.
	out, err := run("--service", "127.64.7.1:80", "--services", "3", "--duration", "300ms")
	if err != nil || !strings.Contains(out, " connections made in 0.3s") || !strings.Contains(out, "connect: p50 ") || strings.Contains(out, "neither") {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = run("--service", "127.64.7.1:80", "--duration", "300ms", "--json"); err != nil || !strings.HasPrefix(out, `{"schema":"tare.load/v1","generator":"connect","mode":"closed"`) {
		t.Errorf("%v\n%s", err, out)
	}
	for _, args := range [][]string{{}, {"--service", "nowhere"}, {"--service", "127.64.7.1:80", "--services", "0"}, {"--replacer", "1", "--service", "127.64.7.1:80"}, {"--service", "127.64.7.1:80", "--duration", "0s"}} {
		if out, err := run(args...); fault.CodeOf(err) != fault.Usage || fault.MendOf(err) == "" || out != "" {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}
