package all

import (
	"slices"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
)

// harmless lists the text settings by which nobody can run, open or look into anything. Before you add one, read how
// its values are used.
var harmless = []string{
	"app command ready-line",
	"subject command json", "subject command lines", "subject command lost-json", "subject command lost-lines",
	"subject command lost-prometheus", "subject command prometheus", "subject command ready", "subject command ready-line",
	"subject command serves",
	"subject installed annotations", "subject installed applied", "subject installed components",
	"subject installed labels",
	"subject installed parts",
	"subject installed runtime-class", // of pods, in a cluster
	"subject installed-tracer components", "subject installed-tracer lines", "subject installed-tracer logs",
	"subject kernelmesh metadata", "subject kernelmesh node", "subject kernelmesh store", "subject kernelmesh xds",
	"subject store store",
	"subject variant set", // it only sets settings of other guests, and the test checks those guests too
}

// TestTextsSayHowFarTheyReach: a node decides by the Reach of each text setting which requests of a coordinator it
// refuses, so every text setting must have one.
func TestTextsSayHowFarTheyReach(t *testing.T) {
	var nothing []string
	look := func(whose string, settings []param.Setting) {
		for _, s := range settings {
			name := whose + " " + s.Name
			switch text := s.Type == param.TypeText; {
			case text && s.Reach == "":
				t.Errorf("%s is a text and does not say how far it reaches: give it a Reach", name)
			case !text && (s.Reach != "" || s.Known != nil):
				t.Errorf("%s is a %s, whose values are all the guest's own, and reaches %q", name, s.Type, s.Reach)
			case s.Reach == param.ReachNothing:
				nothing = append(nothing, name)
			}
			if s.Type == param.TypeText && s.Reach != param.ReachNothing && s.Reaches("/x") != s.Reach {
				t.Errorf("%s reaches no further with /x than by default", name)
			}
		}
	}
	guests := 0
	for _, role := range []kind.Role{kind.Application, kind.Load, kind.Subject} {
		for _, g := range kind.All(role) {
			guests++
			look(string(role)+" "+g.About().Name, g.About().Settings)
		}
	}
	look("every part's", kind.CopySettings)
	look("limits'", kind.LimitSettings)
	if guests < 25 {
		t.Errorf("only %d guests were looked at", guests)
	}
	slices.Sort(nothing)
	if !slices.Equal(nothing, harmless) {
		t.Errorf("texts that reach nothing are\n%q, and read were\n%q", nothing, harmless)
	}
}
