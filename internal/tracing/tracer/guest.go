package tracer

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
	execload "tare/internal/tracing/exec"
	"tare/internal/workloads/subject/command"
)

// asSubject is a tracer of the catalogue as a subject of experiments.
type asSubject struct{ *Entry }

func init() {
	for i := range Catalogue {
		if Catalogue[i].Name != command.Name { // anyCommand registers that one
			kind.Register(kind.Subject, asSubject{&Catalogue[i]})
		}
	}
}

// The settings of all tracers.
const (
	settingDrain = "drain"
	settingLate  = "late-after"
)

// commonSettings are settings that all tracers have in addition to their own.
var commonSettings = []param.Setting{
	{Name: settingDrain, Type: param.TypeDuration, Default: "3s", Max: 600,
		Doc: "longest wait after the load for events, before the tracer is asked to end"},
	{Name: settingLate, Type: param.TypeDuration, Default: "100ms", Max: 600,
		Doc: "time after the load's end from which events are late"},
	command.Optional,
}

func (g asSubject) About() kind.About {
	return kind.About{
		Name: g.Name, Summary: g.Summary, Settings: slices.Concat(g.Settings, commonSettings), Process: g.Process,
		Alone: g.Alone,
		Tail:  g.tail,
		// The tracer must start, and the counts must become stable before the window and after it.
		TakesLonger: func(param.Values) time.Duration { return settling },
	}
}

// make makes the tracer that the options describe.
func (g asSubject) make(o param.Values) (*Tracer, error) {
	t, err := g.Make(o)
	if err != nil {
		return nil, fmt.Errorf("a tracer of kind %s %w", g.Name, err)
	}
	return t, nil
}

func (g asSubject) Check(o param.Values) error {
	_, err := g.make(o)
	return err
}

// CheckSetup checks that there is a load whose events the tracer can deliver.
func (g asSubject) CheckSetup(s *kind.Setup, _ string, _ *kind.Part) error {
	return needsEvents(s, g.Name)
}

// needsEvents returns an error if no load makes events.
func needsEvents(s *kind.Setup, tracer string) error {
	if s.EventLoad() == "" {
		return fmt.Errorf("a tracer (%s) needs something to trace: give the spec a load of kind %s", tracer, execload.Name)
	}
	return nil
}

func (g asSubject) Installed(_ context.Context, o param.Values) error {
	t, err := g.make(o)
	if err != nil {
		return err
	}
	return t.Installed()
}

func (asSubject) Optional(o param.Values) bool { return o.On(command.Optional.Name) }

// Version returns the tracer's name and version. If the tracer is any command line, the name is that of its program.
func (g asSubject) Version(ctx context.Context, o param.Values, own string) (name, version string) {
	t, err := g.make(o)
	switch {
	case err != nil:
		return g.Name, "" // Check has returned the error
	case t.Self():
		return g.Name, own
	}
	name = g.Name
	if name == command.Name {
		name = filepath.Base(t.Argv[0])
	}
	return name, strings.TrimPrefix(t.VersionText(ctx), name+" ")
}

// tail returns the longest time that can pass from the load's end until the tracer has ended: until events are late,
// then the drain, and then the tracer's end.
func (g asSubject) tail(o param.Values) time.Duration {
	most := o.Duration(settingDrain) + o.Duration(settingLate)
	if t, err := g.make(o); err == nil {
		most += t.StopTime
	}
	return most
}

// settling estimates the time that counting events adds to a trial: the tracer must start, and the counts must become
// stable before the window and after it. Measured: 0.75 s with exectrace, 1.2 s with bpftrace.
const settling = 900 * time.Millisecond

// Join registers the tracer with the load as the deliverer of its events.
func (g asSubject) Join(t kind.Trial, _ string, part *kind.Part) (any, error) {
	described, err := g.make(part.Options)
	if err != nil {
		return nil, err
	}
	name := t.Setup().EventLoad()
	counting, ok := t.Joined(name).(*execload.Counting)
	if !ok {
		return nil, fmt.Errorf("a tracer (%s) cannot deliver the events of the load %q", g.Name, name)
	}
	j := &joined{trial: t, part: part, tracer: described, counting: counting}
	counting.Deliver(j)
	return j, nil
}
