package spec

import (
	"strings"
	"testing"

	"tare/internal/experiment/record"
)

// TestVariant: an arm's settings hold for that arm alone, at each level of the factors.
func TestVariant(t *testing.T) {
	text := strings.NewReplacer("light: {subject: kernelmesh}",
		`light: {subject: variant, set: "server.delay=1.5ms, other.body=256"}`).Replace(goodSpec)
	s, err := Parse("s.yaml", []byte(text), testFeatures)
	if err != nil {
		t.Fatal(err)
	}
	level := s.At(Level{"rate": "500", "arms.*.steps": "10"})
	for arm, want := range map[string][2]string{record.Direct: {"1ms", "128"}, record.AA: {"1ms", "128"},
		"heavy": {"1ms", "128"}, "light": {"1.5ms", "256"}} {
		c := level.As(arm)
		got := [2]string{c.Applications["server"].Options["delay"], c.Applications["other"].Options["body"]}
		if got != want || c.Loads["client"].Options["rate"] != "500" {
			t.Errorf("%s: delay and body are %v, want %v; the rate is %s", arm, got, want, c.Loads["client"].Options["rate"])
		}
	}
	if s.Of("light") != nil || s.Of("heavy") == nil || len(s.Subjects()) != 1 {
		t.Errorf("a variant of a baseline without a subject has %v", s.Of("light"))
	}
}
