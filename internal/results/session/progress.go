package session

import (
	"fmt"
	"io"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mattn/go-isatty"

	"tare/internal/experiment/engine"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
)

// progress reports on standard error how the run goes: on a terminal one line that is updated, otherwise a line for
// each block. Errors have their own lines.
type progress struct {
	w        io.Writer // for text
	raw      io.Writer // the same output, for terminal control sequences
	terminal bool
	block    int      // the block last reported
	warned   []string // codes of the warnings that warn has printed
}

func (o *Output) progress(s *spec.Spec, r record.Run, takes time.Duration, dir string) *progress {
	p := &progress{w: o.Log, raw: o.Terminal, terminal: isatty.IsTerminal(o.Terminal.Fd()), block: -1}
	for arm, why := range lists.ByKey(r.Absent) {
		fmt.Fprintf(p.w, "%s: the arm %s is left out: %s\n", s.Name, arm, why)
	}
	fmt.Fprintf(p.w, "%s: %s, into %s\n", s.Name, extent(s, r, takes), filepath.Clean(dir))
	if r.Nodes != nil && r.Nodes.Scaled != "" {
		fmt.Fprintf(p.w, "%s: %s\n", s.Name, r.Nodes.Scaled)
	}
	for _, text := range engine.TooShort(s) {
		fmt.Fprintf(p.w, "%s: %s\n", s.Name, text)
	}
	return p
}

// extent describes how long the run will be; takes is the estimate for the plan.
func extent(s *spec.Spec, r record.Run, takes time.Duration) string {
	block := quantity.Counted(len(r.Plan)/max(r.Blocks, 1), "trial")
	switch {
	case s.Precision != nil:
		return fmt.Sprintf("blocks of %s until intervals are within %.3g %%, at most about %s", block, 100*s.Precision.Target,
			quantity.Wait(s.Until))
	case s.Open():
		return fmt.Sprintf("blocks of %s for about %s", block, quantity.Wait(s.Until))
	}
	text := fmt.Sprintf("%s in %s, about %s", quantity.Counted(len(r.Plan), "trial"), quantity.Counted(r.Blocks, "block"),
		quantity.Wait(takes))
	if s.Repeat > 0 {
		text += fmt.Sprintf(" and at most %s more to repeat spoiled trials",
			quantity.Wait(time.Duration(s.Repeat*float64(takes))))
	}
	return text
}

// warn prints a warning about something that disturbs the whole run, unless a warning with this code has been printed.
func (p *progress) warn(code, text string) {
	if slices.Contains(p.warned, code) {
		return
	}
	p.warned = append(p.warned, code)
	if code == record.OtherRun {
		text += "; end one of them and run again"
	}
	p.note("warning: %s", text)
}

// note prints a separate line. On a terminal it first erases the progress line.
func (p *progress) note(format string, args ...any) {
	p.clear()
	fmt.Fprintf(p.w, format+"\n", args...)
}

func (p *progress) say(at engine.Progress) {
	if t := at.Last; t != nil {
		for _, w := range t.Warned() {
			if w.Code == record.OtherRun || w.Code == record.LeftBehind {
				p.warn(w.Code, w.Message)
			}
		}
	}
	if t := at.Last; t != nil && t.Validity.Failed == "" {
		if failed := t.FailedNodes(len(t.Nodes)); failed != "" {
			p.note("%s failed at nodes: %s", attemptOf(t, at), text.Line(failed))
		}
	}
	if t := at.Last; t != nil && !t.Validity.Valid {
		p.note("%s %s", attemptOf(t, at), whatIsWrong(t.Validity))
		if t.Validity.Failed != "" { // its warnings may explain the failure
			for _, w := range t.Warnings {
				fmt.Fprintf(p.w, "  warning: %s\n", text.Line(w.Message))
			}
		}
	}
	if at.Note != "" {
		p.note("%s", at.Note)
	}
	if at.Next.Arm == "" {
		return
	}
	n := at.Next
	trial := fmt.Sprintf("trial %d", n.Index+1)
	where := fmt.Sprintf("block %d of %d", n.Block+1, at.Blocks)
	left := quantity.Wait(at.Left) + " left"
	if at.Open {
		where, left = fmt.Sprintf("block %d", n.Block+1), "at most "+left
		if at.Look > 0 {
			left += fmt.Sprintf(", looked at after block %d", at.Look)
		}
		if at.Why != "" {
			left += "; " + at.Why
		}
	} else {
		trial += fmt.Sprintf(" of %d", at.Total)
	}
	if at.Attempt > 0 {
		trial += " again"
	}
	switch {
	case p.terminal:
		arm := n.Arm
		if level := record.LevelName(n.Factors); level != "" {
			arm += ", " + level
		}
		p.clear()
		fmt.Fprintf(p.w, "%s, %s: %s; %s", trial, where, arm, left)
	case n.Block != p.block:
		fmt.Fprintf(p.w, "%s, %s; %s\n", where, trial, left)
	}
	p.block = n.Block
}

// attemptOf describes an attempt at a trial.
func attemptOf(t *record.Trial, at engine.Progress) string {
	text := fmt.Sprintf("trial %d of %d (%s)", t.Index+1, at.Total, t.Arm)
	if at.Open {
		text = fmt.Sprintf("trial %d (%s)", t.Index+1, t.Arm)
	}
	if t.Attempt > 0 {
		text += fmt.Sprintf(", attempt %d,", t.Attempt+1)
	}
	return text
}

// whatIsWrong describes why a trial failed or tripped gates, with the causes and the number of metrics lost.
func whatIsWrong(v record.Validity) string {
	if v.Failed != "" {
		return "failed: " + v.Failed
	}
	var messages []string
	for _, r := range v.Reasons {
		text := r.Message
		if r.CauseShare != nil {
			text += fmt.Sprintf(" (%s: %.0f %% of the CPU time)", r.Cause, 100**r.CauseShare)
		} else if r.Cause != "" {
			text += fmt.Sprintf(" (cause: %s)", r.Cause)
		}
		messages = append(messages, text)
	}
	what := "is invalid: "
	switch voids, all := v.Voided(); {
	case all:
	case voids == 0:
		what = "tripped a gate, but all its metrics are good: "
	default:
		what = fmt.Sprintf("has lost %s: ", quantity.Counted(voids, "metric"))
	}
	return what + strings.Join(messages, "; ")
}

// clear erases the progress line, if the output is a terminal.
func (p *progress) clear() {
	if p.terminal {
		fmt.Fprint(p.raw, "\r\x1b[K")
	}
}

func (p *progress) done() { p.clear() }

// interrupted may be called while the method say is running, so it writes with a single call.
func (p *progress) interrupted() {
	text := "tare: interrupted; taking the trial down\n"
	if p.terminal {
		text = "\r\x1b[K" + text
	}
	fmt.Fprint(p.raw, text)
}
