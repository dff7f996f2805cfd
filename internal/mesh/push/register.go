package push

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/mesh/services"
)

func init() { kind.Register(kind.Load, guest{}) }

// guest implements the load for the engine.
type guest struct{}

// About implements kind.Guest.
func (guest) About() kind.About {
	return kind.About{
		Name: "push",
		Summary: "changes of a mesh's endpoints, one after the other, and connections until they show each; " +
			"the subject must be a data plane with `xds`, and `peer: endpoint`, or the mesh `cluster-services`",
		Settings: Settings, InPods: true,
		Protocol: services.Protocol,
		Process:  slices.Concat(Settings, processSettings),
		Alone: &kind.Alone{Argument: meshKey, Warmup: 200 * time.Millisecond, Duration: 5 * time.Second, Examples: []string{
			"127.0.0.1:18001 --duration 10s",
			"127.0.0.1:18001 --what all",
		}},
	}
}

// At implements kind.Sited. It returns the address at which the application accepts changes.
func (guest) At(at kind.Site) param.Values {
	var app services.Ready
	_ = json.Unmarshal(at.Ready, &app) // another application's message has no such address, so dialling fails
	v := param.Values{meshKey: app.Control}
	if app.Key != "" {
		v[keyName] = app.Key
	}
	return v
}

// Play runs the load's process.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	return Run(ctx, optionsOf(v), conn)
}

// CheckSetup refuses an application that is not a mesh, because no other kind accepts changes.
func (guest) CheckSetup(s *kind.Setup, _ string, part *kind.Part) error {
	if a := s.Applications[part.To]; a != nil && a.Kind.About().Protocol != services.Protocol {
		return fmt.Errorf("a load of kind push cannot go to an application of kind %s", a.Name())
	}
	return nil
}

// Metrics returns the metrics of changes.
func (guest) Metrics() []measured.Metric { return metrics }
