package report_test

import (
	"bytes"
	"encoding/xml"
	"strings"
	"testing"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/internal/results/report"
	"tare/test/analysistest"
)

// held returns a generated run with three assertions, one for each result.
func held(t *testing.T) (*analysis.Summary, record.Run, []record.Trial) {
	t.Helper()
	run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 8, BPF: 3.1e-6, Latency: 9e-6, Noise: 0.5e-6,
		MapBytes: 1.2e6})
	run.Assert = []string{"map_bytes <= 2MB", "latency_p50_seconds <= +2%", "cpu_seconds_per_connection <= +0%"}
	s, err := analysis.Summarize(run, trials)
	if err != nil {
		t.Fatal(err)
	}
	return s, run, trials
}

func TestVerdictsAreShown(t *testing.T) {
	s, run, trials := held(t)
	for name, write := range map[string]func(*bytes.Buffer) error{
		"text":     func(b *bytes.Buffer) error { return report.Text(b, s, run, report.Options{}) },
		"markdown": func(b *bytes.Buffer) error { return report.Markdown(b, s, run, report.Options{All: true}) },
		"html":     func(b *bytes.Buffer) error { return report.HTML(b, s, run, trials, report.HTMLOptions{}) },
		"junit":    func(b *bytes.Buffer) error { return report.JUnit(b, s, run, trials) },
		"github":   func(b *bytes.Buffer) error { return report.Annotations(b, s) },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		text := strings.NewReplacer("&lt;", "<", `\_`, "_", "&#43;", "+", "%25", "%").Replace(b.String())
		at := 0
		for _, want := range []string{"map_bytes <= 2MB", "latency_p50_seconds <= +2%", "cpu_seconds_per_connection <= +0%"} {
			i := strings.Index(text[at:], want)
			if i < 0 {
				t.Errorf("%s: no %q in its place:\n%s", name, want, text)
				break
			}
			at += i
		}
		if !strings.Contains(text, "its interval contains the bound") {
			t.Errorf("%s does not say why one is undecided:\n%s", name, text)
		}
	}
	s.Verdicts = nil
	var b bytes.Buffer
	if err := report.Text(&b, s, run, report.Options{}); err != nil || strings.Contains(b.String(), "Assertions") {
		t.Errorf("without assertions: %v\n%s", err, b.String())
	}
}

// TestJUnit: the counts of the suite, which CI systems show, are those of its cases.
func TestJUnit(t *testing.T) {
	s, run, trials := held(t)
	run.Environment.Hostname, s.Experiment = "a<b>&\x01", `"quoted"`
	var b bytes.Buffer
	if err := report.JUnit(&b, s, run, trials); err != nil {
		t.Fatal(err)
	}
	var read struct {
		Suites []struct {
			Tests    int `xml:"tests,attr"`
			Failures int `xml:"failures,attr"`
			Errors   int `xml:"errors,attr"`
			Cases    []struct {
				Name    string    `xml:"name,attr"`
				Failure *struct{} `xml:"failure"`
				Error   *struct{} `xml:"error"`
			} `xml:"testcase"`
		} `xml:"testsuite"`
	}
	if err := xml.Unmarshal(b.Bytes(), &read); err != nil {
		t.Fatalf("%v:\n%s", err, b.String())
	}
	suite := read.Suites[0]
	if suite.Tests != 4 || suite.Failures != 1 || suite.Errors != 1 || len(suite.Cases) != 4 ||
		suite.Cases[2].Failure == nil || suite.Cases[3].Error == nil || suite.Cases[0].Error != nil {
		t.Errorf("%+v\n%s", suite, b.String())
	}
	s.Valid = false
	b.Reset()
	if err := report.JUnit(&b, s, run, trials); err != nil || !strings.Contains(b.String(), `errors="2"`) {
		t.Errorf("an invalid run: %v\n%s", err, b.String())
	}
}

// TestAnnotationsAreOneLineEach: an untrusted record cannot start a workflow command.
func TestAnnotationsAreOneLineEach(t *testing.T) {
	s, _, _ := held(t)
	s.Verdicts[0].Assertion = "x\n::error::y, z: 5%"
	var b bytes.Buffer
	if err := report.Annotations(&b, s); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(b.String()), "\n")
	if len(lines) != 4 || !strings.HasPrefix(lines[0], "::notice title=quickstart%3A What does") {
		t.Errorf("%q", lines)
	}
	if lines = lines[1:]; !strings.HasPrefix(lines[0], "::notice title=x %3A%3Aerror%3A%3Ay%2C z%3A 5%25 holds::") ||
		!strings.HasPrefix(lines[1], "::error title=latency_p50_seconds <= +2%25 fails::candidate: ") ||
		!strings.HasPrefix(lines[2], "::warning ") {
		t.Errorf("%q", lines)
	}
}
