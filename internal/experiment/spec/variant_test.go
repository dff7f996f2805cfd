package spec

import (
	"strings"
	"testing"

	"tare/internal/experiment/record"
)

// TestVariant: an arm's settings apply only to that arm, at each level of the factors.
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
	err = s.Apply(Overrides{Set: []string{"server.delay=1ms,2ms"}})
	if want := `the variant "light" sets "applications.server.delay", which the factor "server.delay" sweeps`; err == nil ||
		!strings.Contains(err.Error(), want) {
		t.Errorf("got %v, want %s", err, want)
	}
	if err := mustParse(t, text).Apply(Overrides{Set: []string{"light.limits.cpus=0.5"}}); err == nil {
		t.Error("the arm has limits, which would apply to nothing")
	}
	if err := mustParse(t, text).Apply(Overrides{Set: []string{"arms.*.limits.cpus=0.5"}}); err != nil {
		t.Errorf("the limits of all arms that have any: %v", err)
	}
}

// TestVariantWithoutPart: an arm can leave out a load or an application, but not one that a load still goes to.
func TestVariantWithoutPart(t *testing.T) {
	const text = `name: calm
question: What does the noise cost?
applications: {server: {kind: http}, other: {kind: http}}
loads: {client: {kind: http, to: server, rate: 100}, noise: {kind: http, to: other, rate: 100}}
arms: {calm: {subject: variant, set: "noise.count=0, other.count=0"}}
`
	s := mustParse(t, text).At(Level{})
	for arm, want := range map[string]int{record.Direct: 2, record.AA: 2, "calm": 1} {
		c := s.As(arm).WithCopies()
		if c.Loads["client"] == nil || len(c.Loads) != want || len(c.Applications) != want {
			t.Errorf("%s: loads %v, applications %v", arm, c.Loads, c.Applications)
		}
	}
	for _, c := range []struct{ old, by, want string }{
		{"noise.count=0, ", "", `with what it sets, loads.noise: it goes to "other", which does not run`},
		{`rate: 100}}
arms: {calm: {subject: variant, set: "noise.count=0`, `rate: 100, count: 0}}
arms: {calm: {subject: variant, set: "noise.count=1`, `"loads.noise.count" is a setting of a part that does not run`},
	} {
		_, err := Parse("s.yaml", []byte(strings.Replace(text, c.old, c.by, 1)), testFeatures)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}
