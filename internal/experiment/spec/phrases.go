package spec

import (
	"maps"
	"slices"

	"tare/internal/experiment/record"
)

// Phrases are how the levels of the spec's factors read in sentences, in the order in which the spec has the factors. A
// factor has one where all settings that it sets read alike, and no other factor reads as it does: then names tell them
// apart.
func (s *Spec) Phrases() []record.Phrase {
	var all []record.Phrase
	for _, f := range s.Factors {
		if words := s.phrase(f); words != nil {
			all = append(all, record.Phrase{Factor: f.Name, Words: words})
		}
	}
	return slices.DeleteFunc(slices.Clone(all), func(p record.Phrase) bool {
		return slices.ContainsFunc(all, func(o record.Phrase) bool {
			return o.Factor != p.Factor && maps.Equal(o.Words, p.Words)
		})
	})
}

// phrase is that of the settings of one factor; nil where they read otherwise than each other.
func (s *Spec) phrase(f Factor) (words map[string]string) {
	if f.cases != nil {
		return map[string]string{"": "under {}"}
	}
	read := false
	for _, path := range f.paths {
		t, known := s.target(path)
		if !known {
			continue // of an arm that the short form leaves out
		}
		if read && !maps.Equal(t.knob.Phrase, words) {
			return nil
		}
		words, read = t.knob.Phrase, true
	}
	return words
}
