package spec

import (
	"maps"
	"slices"

	"tare/internal/experiment/record"
)

// Phrases returns the words with which sentences state the levels of the spec's factors, in the order of the factors. A
// factor has a phrase only if all settings that it sets have the same phrase, and no other factor has that phrase.
// Otherwise reports use the factor's name.
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

// phrase returns the phrase that all settings of one factor share, or nil if they differ.
func (s *Spec) phrase(f Factor) (words map[string]string) {
	if f.cases != nil {
		return map[string]string{"": "under {}"}
	}
	read := false
	for _, path := range f.paths {
		t, known := s.target(path)
		if !known {
			continue // the setting belongs to an arm that the short form leaves out
		}
		if read && !maps.Equal(t.setting.Phrase, words) {
			return nil
		}
		words, read = t.setting.Phrase, true
	}
	return words
}
