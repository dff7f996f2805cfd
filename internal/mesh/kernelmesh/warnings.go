package kernelmesh

import (
	"fmt"
	"slices"
	"strings"

	"tare/internal/mesh/xds"
	"tare/internal/mesh/xds/translate"
)

// maxSeen is the maximum number of warnings and refusals that are remembered, so that they are logged only once. All
// further ones may be logged repeatedly.
const maxSeen = 10_000

// Prefixes of lines in the log.
const (
	warningPrefix = "warning: "
	refusedPrefix = "refused: "
)

// warnings makes the log lines about resources of the control plane that are refused, or accepted with a different
// meaning. Each warning is logged once, and the same warning about many resources of a kind takes one line.
type warnings struct {
	seen map[string]bool
}

func newWarnings() *warnings { return &warnings{seen: map[string]bool{}} }

// first reports whether a text is new, and remembers it.
func (w *warnings) first(text string) bool {
	if w.seen[text] {
		return false
	}
	if len(w.seen) < maxSeen {
		w.seen[text] = true
	}
	return true
}

// lines returns the log lines for a response.
func (w *warnings) lines(e xds.Event) (lines []string) {
	type same struct{ kind, field, what string }
	var order []same
	names := map[same][]string{}
	for _, x := range e.Warned {
		if !w.first(x.String()) {
			continue
		}
		s := same{x.Kind, x.Field, x.What}
		if names[s] == nil {
			order = append(order, s)
		}
		names[s] = append(names[s], x.Name)
	}
	for _, s := range order {
		x := translate.Warning{Kind: s.kind, Name: names[s][0], Field: s.field, What: s.what}
		line := warningPrefix + x.String()
		if others := names[s][1:]; len(others) > 0 {
			slices.Sort(others)
			list := strings.Join(others[:min(len(others), 3)], ", ")
			if len(others) > 3 {
				list += ", ..."
			}
			line += fmt.Sprintf(" (and %d more: %s)", len(others), list)
		}
		lines = append(lines, line)
	}
	for _, err := range e.Refused {
		if text := refusedPrefix + err.Error(); w.first(text) {
			lines = append(lines, text)
		}
	}
	return lines
}
