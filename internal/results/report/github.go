package report

import (
	"fmt"
	"io"
	"strings"

	"tare/internal/results/analysis"
)

func init() {
	register(Format{
		Name: "github", Help: "the verdicts of assertions as annotations of GitHub Actions",
		Run: func(w io.Writer, r *Run, _ Options) error { return Annotations(w, r.Summary) },
	})
}

// Annotations writes the verdicts as workflow commands of GitHub Actions, one line for each check: an error if it
// fails, a warning if it is undecided, otherwise a notice. The first line is about the run itself and has its
// question.
func Annotations(w io.Writer, s *analysis.Summary) error {
	var b strings.Builder
	say := func(level, title, message string) {
		// clean has already made it a single line
		title = strings.NewReplacer("%", "%25", ":", "%3A", ",", "%2C").Replace(clean(title))
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
	return put(w, b.String(), "the verdicts as annotations")
}
