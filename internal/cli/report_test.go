package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/results/analysis"
	"tare/test/analysistest"
)

// writeRun writes a synthetic run of 24 trials as 'tare run' would, with only the first keep of them.
func writeRun(t *testing.T, keep int) string {
	t.Helper()
	run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 8, BPF: 3.1e-6, Latency: 9e-6, Noise: 0.5e-6,
		MapBytes: 1.2e6})
	dir := filepath.Join(t.TempDir(), "run")
	writeRecord(t, dir, run, trials[:keep])
	return dir
}

// writeRecord writes a run into a directory.
func writeRecord(t *testing.T, dir string, run record.Run, trials []record.Trial) {
	t.Helper()
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
}

func runReport(args ...string) (string, error) { return runCommand(newReport(), args...) }

// runCommand runs one command by itself, and returns what it prints.
func runCommand(c *cobra.Command, args ...string) (string, error) {
	c.SilenceErrors, c.SilenceUsage = true, true
	var out bytes.Buffer
	c.SetOut(&out)
	c.SetErr(&out)
	c.SetArgs(append([]string{}, args...)) // if they were nil, cobra would use the arguments of this process
	err := c.Execute()
	return out.String(), err
}

func TestReportFormats(t *testing.T) {
	dir := writeRun(t, 24)
	for format, want := range map[string]string{
		"text": "candidate adds 3.", "md": "# quickstart\n", "bench": "\nBenchmarkQuickstart/arm=",
		"json":       `"schema": "tare.summary/v1"`,
		"text,bench": "Unit map_bytes better=lower",
		"html":       "<h1>What does an eBPF mesh data plane add to each new connection?</h1>",
	} {
		out, err := runReport(dir, "--format", format)
		if err != nil {
			t.Errorf("%s: %v", format, err)
		}
		if !strings.Contains(out, want) {
			t.Errorf("%s: no %q in\n%s", format, want, out)
		}
		if strings.Contains(out, "\x1b") {
			t.Errorf("%s: styles where there is no terminal", format)
		}
		var s analysis.Summary
		if format == "json" {
			if err := json.Unmarshal([]byte(out), &s); err != nil || len(s.Estimates) == 0 {
				t.Errorf("the JSON does not read back: %v", err)
			}
		}
	}
}

func TestReportIntoAFile(t *testing.T) {
	dir := writeRun(t, 24)
	path := filepath.Join(t.TempDir(), "report.html")
	out, err := runReport(dir, "--format", "html", "-o", path)
	if err != nil || out != "" {
		t.Errorf("printed %q, error %v", out, err)
	}
	page, err := os.ReadFile(path)
	if err != nil || !bytes.HasSuffix(bytes.TrimSpace(page), []byte("</html>")) {
		t.Errorf("the file is no whole page: %d bytes, %v", len(page), err)
	}
	if _, err := runReport(dir+"x", "-o", path); err == nil {
		t.Error("there is no such run, and nothing said so")
	}
	if again, err := os.ReadFile(path); err != nil || !bytes.Equal(again, page) {
		t.Errorf("a report that failed changed the file: %d bytes, %v", len(again), err)
	}
	if _, err := runReport(dir, "-o", filepath.Join(dir, "nowhere", "x")); fault.CodeOf(err) != fault.Machine ||
		fault.HintOf(err) == "" {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// TestReportOfSeveralFormatsIntoAFile: one file holds one format.
func TestReportOfSeveralFormatsIntoAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "report")
	_, err := runReport(writeRun(t, 24), "--format", "html,json", "-o", path)
	if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), "--output takes one format, got 2") {
		t.Errorf("two formats into one file: %v", err)
	}
	if _, err := os.Stat(path); err == nil {
		t.Error("the file was written all the same")
	}
}

// TestReportWithoutArguments: a command that is run without arguments gets none, and not those of the test.
func TestReportWithoutArguments(t *testing.T) {
	if _, err := runReport(); err == nil || strings.Contains(err.Error(), "test.") {
		t.Errorf("without a run: %v", err)
	}
}

func TestReportOfPartialRun(t *testing.T) {
	dir := writeRun(t, 20)
	path := filepath.Join(dir, record.TrialsFile)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(whole, `{"schema":"tare.tri`...), 0o644); err != nil {
		t.Fatal(err)
	}
	out, err := runReport(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"From a partial run (20 of 24 trials)", "valid, PARTIAL: 20 of 24",
		"trials.jsonl:21: the last line was cut off"} {
		if !strings.Contains(strings.Join(strings.Fields(out), " "), want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

func TestReportErrors(t *testing.T) {
	dir := writeRun(t, 24)
	corrupt := writeRun(t, 24)
	path := filepath.Join(corrupt, record.TrialsFile)
	lines, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append([]byte("{rubbish}\n"), lines...), 0o644); err != nil {
		t.Fatal(err)
	}
	noRun := writeRun(t, 24)
	if err := os.WriteFile(filepath.Join(noRun, record.RunFile), []byte("{\n\n]"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		args []string
		want string
	}{
		{"no directory", nil, "want one run directory, got 0"},
		{"two directories", []string{dir, dir}, "want one run directory, got 2"},
		{"not there", []string{dir + "x"}, "there is no run.json: this is not a run directory"},
		{"not a format", []string{dir, "--format", "text,pdf"}, "--format pdf: no such format"},
		{"nearly a format", []string{dir, "--format", "opnmetrics"}, `no such format; did you mean "openmetrics"?`},
		{"a corrupt trial", []string{corrupt}, "trials.jsonl:1: this line is not the record of a trial"},
		{"a corrupt run", []string{noRun}, "run.json:3: this is not the record of a run"},
	} {
		out, err := runReport(c.args...)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", c.name, err, c.want)
			continue
		}
		if fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" && !strings.Contains(c.name, "run") {
			t.Errorf("%s: code %d, hint %q", c.name, fault.CodeOf(err), fault.HintOf(err))
		}
		if out != "" {
			t.Errorf("%s: printed %q", c.name, out)
		}
	}
}

// TestReportAsserts: with --assert the exit code gives the result, and the report is still written.
func TestReportAsserts(t *testing.T) {
	dir := writeRun(t, 24)
	for text, want := range map[string]fault.Code{
		"map_bytes <= 2MB":                  fault.OK,
		"map_bytes <= 1MB":                  fault.Exceeded,
		"cpu_seconds_per_connection <= +0%": fault.Invalid,
		"nothing_bytes <= 2MB":              fault.Usage,
		"map_bytes":                         fault.Usage,
	} {
		out, err := runReport(dir, "--assert", text)
		if fault.CodeOf(err) != want || want != fault.Usage && !strings.Contains(out, text) {
			t.Errorf("%s: %v, want code %d:\n%s", text, err, want, out)
		}
		if err != nil && fault.HintOf(err) == "" {
			t.Errorf("%s: no hint with %v", text, err)
		}
	}
	if _, err := runReport(dir, "--assert", "map_bytes <= 2MB", "--assert", "map_bytes <= 1MB", "--format",
		"junit"); fault.CodeOf(err) != fault.Exceeded {
		t.Errorf("one of two fails: %v", err)
	}
	most := writeRun(t, 23)
	for text, want := range map[string]fault.Code{"map_bytes <= 2MB": fault.Invalid, "map_bytes <= 1MB": fault.Exceeded} {
		if _, err := runReport(most, "--assert", text); fault.CodeOf(err) != want {
			t.Errorf("of a partial run, %s: %v", text, err)
		}
	}
	partial := writeRun(t, 3)
	if _, err := runReport(partial, "--assert", "map_bytes <= 2MB"); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("of too few trials: %v", err)
	}
}
