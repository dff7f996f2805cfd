package tracer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/lib/param"
	"tare/internal/scale/charge"
	"tare/internal/scale/ledger"
	"tare/internal/workloads/subject/installed"
)

// asInstalled is a tracer that the user has installed on the nodes of a cluster, such as by a DaemonSet. Its events are
// counted in the logs of its containers.
type asInstalled struct{}

func init() { kind.Register(kind.Subject, asInstalled{}) }

const (
	settingLogs  = "logs"
	settingLines = "lines"
)

func (asInstalled) About() kind.About {
	return kind.About{
		Name:    "installed-tracer",
		Summary: "a tracer that is installed in a cluster, for kubectl tare run",
		Settings: []param.Setting{
			installed.Components,
			{Name: settingLogs, Type: param.TypeText, Reach: param.ReachNothing,
				Doc: "its containers, whose logs have its events: a rule with a namespace, such as " +
					"`namespace=tracing,container=exectrace`"},
			{Name: settingLines, Type: param.TypeText, Reach: param.ReachNothing,
				Doc: "regular expression of the lines that are one event of the load each"},
		},
		TakesLonger: func(param.Values) time.Duration { return settling },
	}
}

// Marks implements kind.Marked.
func (asInstalled) Marks(v param.Values) (kind.Marks, error) {
	m, err := installed.Marks(v)
	if err != nil {
		return m, err
	}
	lines, err := compile(v[settingLines])
	if err != nil {
		return m, fmt.Errorf("%s: the pattern %w", settingLines, err)
	}
	of, err := charge.ParseFlag(ledger.ChargeTare, v[settingLogs])
	switch {
	case v[settingLogs] == "" || v[settingLines] == "":
		return m, errors.New("say whose logs have its events, and which lines: logs and lines")
	case err != nil:
		return m, fmt.Errorf("%s: %w", settingLogs, err)
	case of.Namespace == "" || strings.ContainsAny(of.Namespace, "*?["):
		return m, fmt.Errorf("%s: name the namespace of its pods, such as 'namespace=tracing'", settingLogs)
	case of.Patterns != charge.Patterns{Namespace: of.Namespace, Pod: of.Pod, Container: of.Container}:
		return m, fmt.Errorf("%s: a log is one of a container: select by namespace, pod and container", settingLogs)
	}
	m.Logs = &kind.Logs{Of: of, Event: lines.match}
	return m, nil
}

func (g asInstalled) Check(v param.Values) error {
	_, err := g.Marks(v)
	return err
}

// CheckSetup checks that there is a load whose events the tracer can deliver.
func (g asInstalled) CheckSetup(s *kind.Setup, _ string, _ *kind.Part) error {
	return needsEvents(s, g.About().Name)
}

// Version implements kind.Versioned. It returns nothing, because trials record the images of pods.
func (asInstalled) Version(context.Context, param.Values, string) (name, version string) {
	return "", ""
}

// Metrics returns the metrics of all tracers.
func (asInstalled) Metrics() []measured.Metric { return metrics }
