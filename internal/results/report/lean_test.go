package report_test

import (
	"bytes"
	"path/filepath"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/internal/results/report"
)

// TestLeanRecord: reading a record without the details that ReadLean leaves out changes no report.
func TestLeanRecord(t *testing.T) {
	for name, make := range cases() {
		run, trials := make()
		dir := filepath.Join(t.TempDir(), "run")
		w, err := record.Create(dir, run)
		if err != nil {
			t.Fatal(err)
		}
		for _, trial := range trials {
			if err := w.Append(trial); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		written := func(read func(string) (*record.Contents, error)) string {
			c, err := read(dir)
			if err != nil {
				t.Fatal(err)
			}
			s, err := analysis.Summarize(c.Run, c.Trials)
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			for _, f := range report.Runs.Formats() {
				r := &report.Run{Summary: s, Record: c.Run, Trials: c.Trials}
				if err := f.Run(&b, r, report.Options{Dir: dir}); err != nil {
					t.Fatal(err)
				}
			}
			return b.String()
		}
		if full, lean := written(record.Read), written(record.ReadLean); full != lean {
			t.Errorf("%s: the reports differ", name)
		}
	}
}
