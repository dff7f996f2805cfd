package analysis

import (
	"maps"
	"strings"

	"tare/internal/experiment/record"
)

// At describes a level for use in a sentence. The run's phrases come first, in their order ("for a cluster inserted
// from decoded form"), and then the factors without a phrase, by name ("at rate 1000, connections 64").
func (s *Summary) At(level map[string]string) string {
	var parts []string
	rest := maps.Clone(level)
	for _, p := range s.Phrases {
		value, is := rest[p.Factor]
		if !is {
			continue
		}
		if text := p.Of(value); text != "" {
			parts = append(parts, text)
			delete(rest, p.Factor)
		}
	}
	if len(rest) > 0 {
		parts = append(parts, "at "+record.LevelName(rest))
	}
	return strings.Join(parts, " ")
}

// AtAll describes several levels: "at rate 100, rate 1000 and rate 4000", "under keepalive and execs".
func (s *Summary) AtAll(levels []factors) string {
	var all []string
	for i, at := range levels {
		text := s.At(at)
		if lead, level, _ := strings.Cut(text, " "); i > 0 && isLevel(at, level) {
			text = strings.TrimPrefix(text, lead+" ")
		}
		if i > 0 {
			text = strings.TrimPrefix(text, "at ")
		}
		all = append(all, text)
	}
	return Join(all)
}

// isLevel reports whether a text is the value of a level's only factor. AtAll passes what follows the first word of the
// level's description; if it is the value, that word need not be repeated.
func isLevel(at factors, text string) bool {
	for _, level := range at {
		return len(at) == 1 && level == text
	}
	return false
}
