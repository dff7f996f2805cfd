package push

import (
	"encoding/json"
	"fmt"
	"strconv"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/mesh/services"
)

func init() { kind.Register(kind.Load, guest{}) }

// guest is the load as the engine knows it.
type guest struct{}

// About says what it is.
func (guest) About() kind.About {
	return kind.About{
		Name: "push",
		Summary: "changes of a mesh's endpoints, one after the other, and connections until they show each; " +
			"the subject must be a data plane with `xds`, and `peer: endpoint`",
		Settings: Settings,
		Protocol: services.Protocol,
	}
}

// Command starts it with the address at which the application takes changes.
func (guest) Command(at kind.Site) []string {
	var app services.Ready
	_ = json.Unmarshal(at.Ready, &app) // what is none of a mesh has no such address, and the load cannot dial that
	return []string{"load", "push", "--role", "--mesh=" + app.Control, "--seed=" + strconv.FormatUint(at.Seed, 10)}
}

// CheckSetup refuses an application that is no mesh: nothing else takes changes.
func (guest) CheckSetup(s *kind.Setup, _ string, part *kind.Part) error {
	if a := s.Applications[part.To]; a != nil && a.Kind.About().Protocol != services.Protocol {
		return fmt.Errorf("a load of kind push cannot go to an application of kind %s", a.Name())
	}
	return nil
}

// Metrics are those of its changes.
func (guest) Metrics() []measured.Metric { return metrics }
