package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
)

func init() {
	register(Format{
		Name: "junit", Help: "the verdicts of assertions as JUnit XML",
		Run: func(w io.Writer, r *Run, _ Options) error { return JUnit(w, r.Summary, r.Record, r.Trials) },
	})
}

// The form of JUnit's XML that CI systems read. It is not a standard, but the readers of Jenkins and GitLab agree on
// these elements.
type (
	junitSuites struct {
		XMLName xml.Name     `xml:"testsuites"`
		Suites  []junitSuite `xml:"testsuite"`
	}
	junitSuite struct {
		Name      string      `xml:"name,attr"`
		Tests     int         `xml:"tests,attr"`
		Failures  int         `xml:"failures,attr"`
		Errors    int         `xml:"errors,attr"`
		Time      string      `xml:"time,attr"`
		Timestamp string      `xml:"timestamp,attr"`
		Hostname  string      `xml:"hostname,attr"`
		Cases     []junitCase `xml:"testcase"`
	}
	junitCase struct {
		Class   string       `xml:"classname,attr"`
		Name    string       `xml:"name,attr"`
		Failure *junitReason `xml:"failure,omitempty"`
		Error   *junitReason `xml:"error,omitempty"`
		Output  string       `xml:"system-out,omitempty"`
	}
	junitReason struct {
		Message string `xml:"message,attr"`
		Type    string `xml:"type,attr"`
	}
)

// JUnit writes the verdicts as JUnit XML, one test case for each check: an assertion that fails is a failure, an
// undecided one an error. The first case is the run itself, with its question and answers: an error if the run is
// invalid or partial.
func JUnit(w io.Writer, s *analysis.Summary, run record.Run, trials []record.Trial) error {
	suite := junitSuite{
		Name: clean(s.Experiment), Timestamp: run.Started.UTC().Format("2006-01-02T15:04:05"),
		Hostname: clean(run.Environment.Hostname), Time: "0",
	}
	if n := len(trials); n > 0 {
		suite.Time = fmt.Sprintf("%.3f", max(0, trials[n-1].Ended.Sub(run.Started).Seconds()))
	}
	valid := junitCase{Class: suite.Name, Name: clean(s.Question), Output: clean(result(s))}
	if !s.Valid || s.Partial {
		valid.Error = &junitReason{clean(validity(s)), "invalid"}
	}
	suite.Cases = append(suite.Cases, valid)
	for _, v := range verdicts(s) {
		c := junitCase{Class: suite.Name, Name: clean(strings.TrimSuffix(v.Assertion+": "+v.Place, ": "))}
		c.Output = clean(strings.TrimSuffix(v.Seen+"; "+v.Why, "; "))
		switch v.Result {
		case analysis.Fails:
			c.Failure = &junitReason{c.Output, string(v.Result)}
		case analysis.Undecided:
			c.Error = &junitReason{c.Output, string(v.Result)}
		}
		suite.Cases = append(suite.Cases, c)
	}
	for _, c := range suite.Cases {
		suite.Tests++
		if c.Failure != nil {
			suite.Failures++
		}
		if c.Error != nil {
			suite.Errors++
		}
	}
	b, err := xml.MarshalIndent(junitSuites{Suites: []junitSuite{suite}}, "", "  ")
	if err == nil {
		_, err = io.WriteString(w, xml.Header+string(b)+"\n")
	}
	if err != nil {
		return fmt.Errorf("writing the verdicts as JUnit XML: %w", err)
	}
	return nil
}
