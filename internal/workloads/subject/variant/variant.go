// Package variant is an arm that measures a setting instead of a subject: the baseline with other settings of its
// applications or loads. For example, a delay in the application of one arm is a known difference.
package variant

import (
	"fmt"
	"strings"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
)

func init() { kind.Register(kind.Subject, guest{}) }

type guest struct{}

// Settings are the settings of a variant in specs.
var Settings = []param.Setting{{
	Name: "set", Type: param.TypeText, Reach: param.ReachNothing, // the settings that it sets have their own Reach
	Doc: "this arm's settings, named as by factors, with commas between: `server.delay=50us`",
}}

func (guest) About() kind.About {
	return kind.About{
		Name:     "variant",
		Summary:  "the baseline with other settings of applications or loads",
		Settings: Settings,
	}
}

func (guest) Check(o param.Values) error {
	if o["set"] == "" {
		return fmt.Errorf("a variant needs %q: what differs from the baseline, such as server.delay=50us", "set")
	}
	return nil
}

// Sets returns the settings of the arm, as assignments.
func (guest) Sets(o param.Values) []string {
	if o["set"] == "" {
		return nil
	}
	assignments := strings.Split(o["set"], ",")
	for i := range assignments {
		assignments[i] = strings.TrimSpace(assignments[i])
	}
	return assignments
}
