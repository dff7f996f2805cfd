// Package variant is an arm that weighs a setting and no subject: the baseline again, with other settings of its
// applications or loads. For example, a delay planted in the application of one arm is a known difference.
package variant

import (
	"fmt"
	"strings"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
)

func init() { kind.Register(kind.Subject, guest{}) }

type guest struct{}

// Settings are what specs set of a variant.
var Settings = []param.Setting{{
	Name: "set", Type: param.TypeText, Reach: param.ReachNothing, // what it sets has its own
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

// Sets is what the arm sets, as assignments.
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
