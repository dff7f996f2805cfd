package report

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
)

// checked is one check of an assertion as it is shown. Its names are those that the HTML template sees.
type checked struct {
	Result                 analysis.Result
	Assertion, Place, Seen string
	Why                    string // what to know of it, and what would decide it; empty: nothing
}

func (v checked) cells() []string { return []string{string(v.Result), v.Assertion, v.Place, v.Seen} }

// verdicts are the checks of all assertions, each assertion by level and arm.
func verdicts(s *analysis.Summary) []checked {
	var all []checked
	for _, v := range s.Verdicts {
		if len(v.Checks) == 0 {
			all = append(all, checked{v.Result, v.Assertion, "", "-", "it matches no trial of the run"})
		}
		for i := range v.Checks {
			c := &v.Checks[i]
			shown := checked{c.Result, v.Assertion, s.Place(c), c.Seen(), c.Why}
			if advice := c.Advice(); advice != "" {
				shown.Why = strings.TrimPrefix(shown.Why+"; "+advice, "; ")
			}
			all = append(all, shown)
		}
	}
	return all
}

// verdictsMarkdown is the table of the assertions; empty where there are none.
func verdictsMarkdown(s *analysis.Summary) string {
	all := verdicts(s)
	if len(all) == 0 {
		return ""
	}
	var b strings.Builder
	b.WriteString("\n## Assertions\n\n| result | assertion | of | seen | note |\n|---|---|---|---|---|\n")
	for _, v := range all {
		fmt.Fprintf(&b, "| **%s** | `%s` | %s | %s | %s |\n", escape(string(v.Result)),
			strings.NewReplacer("`", "'", "|", `\|`).Replace(clean(v.Assertion)), escape(v.Place), escape(v.Seen), escape(v.Why))
	}
	return b.String()
}

// result is what the run says, and what that rests on.
func result(s *analysis.Summary) string {
	var all []string
	for _, a := range s.Answers {
		all = append(all, a.Answer)
	}
	return strings.Join(append(all, validity(s)), " ")
}

// The form of JUnit's XML that CI systems read: no standard, but Jenkins's and GitLab's readers agree on these.
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

// JUnit writes the verdicts as JUnit XML, a test case for each check: what fails is a failure, what is undecided an
// error. The run itself is the first case, under its question and with its answers: an error where it is invalid or
// partial.
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

// Annotations writes the verdicts as workflow commands of GitHub Actions, a line for each check: an error where it
// fails, a warning where it is undecided, else a notice. Before them the run has a line with its question.
func Annotations(w io.Writer, s *analysis.Summary) error {
	var b strings.Builder
	say := func(level, title, message string) {
		title = strings.NewReplacer("%", "%25", ":", "%3A", ",", "%2C").Replace(clean(title)) // of one line by then
		fmt.Fprintf(&b, "::%s title=%s::%s\n", level, title, strings.ReplaceAll(clean(message), "%", "%25"))
	}
	level := "notice"
	if !s.Valid || s.Partial {
		level = "warning"
	}
	say(level, s.Experiment+": "+s.Question, validity(s))
	levels := map[analysis.Result]string{analysis.Fails: "error", analysis.Undecided: "warning", analysis.Holds: "notice"}
	for _, v := range verdicts(s) {
		message := strings.TrimPrefix(v.Place+": "+v.Seen, ": ")
		if v.Why != "" {
			message += "; " + v.Why
		}
		say(levels[v.Result], v.Assertion+" "+string(v.Result), message)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("writing the verdicts as annotations: %w", err)
	}
	return nil
}
