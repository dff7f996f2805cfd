package analysis

import (
	"testing"

	"tare/internal/experiment/record"
)

func TestAt(t *testing.T) {
	s := &Summary{Phrases: []record.Phrase{
		{Factor: "*.resource", Words: map[string]string{"": "for a {}"}},
		{Factor: "*.operation", Words: map[string]string{"insert": "inserted", "delete": "deleted"}},
		{Factor: "*.from", Words: map[string]string{"struct": "from decoded form"}},
	}}
	for _, c := range []struct {
		level map[string]string
		want  string
	}{
		{nil, ""},
		{map[string]string{"rate": "1000", "connections": "64"}, "at connections 64, rate 1000"},
		{map[string]string{"*.from": "struct", "*.operation": "insert", "*.resource": "cluster"},
			"for a cluster inserted from decoded form"},
		{map[string]string{"*.operation": "lookup", "*.resource": "listener", "rate": "5"},
			"for a listener at operation lookup, rate 5"},
	} {
		if got := s.At(c.level); got != c.want {
			t.Errorf("%v reads %q, want %q", c.level, got, c.want)
		}
	}
	all := s.AtAll([]factors{{"rate": "1"}, {"rate": "2"}, {"*.resource": "cluster"}})
	if want := "at rate 1, rate 2 and for a cluster"; all != want {
		t.Errorf("%q, want %q", all, want)
	}
}
