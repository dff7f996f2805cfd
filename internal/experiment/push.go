package experiment

import (
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/app/mesh"
	"tare/internal/load"
	"tare/internal/load/push"
	"tare/internal/metric"
	"tare/internal/quantity"
	"tare/internal/stats"
)

// meshApp is the application that is a control plane with services made up.
var meshApp = &Kind{
	Name:    "mesh",
	Summary: "a whole mesh: a control plane (xDS) with services made up, which changes their endpoints when a load of kind `push` asks for it",
	Knobs: []Knob{
		{Name: knobServices, Type: TypeCount, Default: "100", Min: 1, Max: mesh.MaxServices, Phrase: map[string]string{"": "in a mesh of {} services", "1": "in a mesh of one service"}, Doc: "services of the mesh, each a cluster and a UDP listener"},
		{Name: "endpoints", Type: TypeCount, Default: strconv.Itoa(mesh.DefaultEndpoints), Min: 1, Max: mesh.MaxEndpoints, Doc: "endpoints of each service; nobody listens on them"},
	},
	steered: true,
	command: func(site) []string { return []string{"app", "mesh", "--role", "--listen=127.0.0.1:0"} },
}

// pushLoad is the load that has a mesh change, and looks for the changes in connections.
var pushLoad = &Kind{
	Name:    "push",
	Summary: "changes of a mesh's endpoints, one after the other, and connections until they show each; the subject must be a data plane with `xds`, and `peer: endpoint`",
	Knobs: []Knob{
		{Name: "what", Type: TypeWord, Default: push.One, Words: push.Whats, Phrase: map[string]string{push.One: "of one service", push.All: "of all services at once"}, Doc: "what a change is of: one service, by chance, or all at once"},
		{Name: "interval", Type: TypeDuration, Default: push.DefaultInterval.String(), Min: push.MinInterval.Seconds(), Max: push.MaxInterval.Seconds(), Doc: "time between two connections while a change is not seen yet"},
		{Name: "pause", Type: TypeDuration, Default: push.DefaultPause.String(), Max: 60, Doc: "time from one change to the next, half to one and a half times as long by chance"},
	},
	steered: true,
	command: func(at site) []string {
		return []string{"load", "push", "--role", "--mesh=" + at.control, "--seed=" + strconv.FormatUint(at.seed, 10)}
	},
	holdsConnections: func(Options) bool { return false },
}

// knobXDS names the application that a data plane has its services from. It is the engine's: the subject sees the application's address.
const knobXDS = "xds"

var xdsKnob = Knob{Name: knobXDS, Type: TypeText, Doc: "application of kind `mesh` that says what the services are, instead of a file of services"}

// checkMesh sees that those who speak with a mesh speak with one. It gives the path of the part at fault.
func (s *Spec) checkMesh() (path string, err error) {
	for _, name := range slices.Sorted(maps.Keys(s.Loads)) {
		p := s.Loads[name]
		if to := s.Applications[p.To]; to != nil && (to.Kind.steered != p.Kind.steered || to.Kind.idle) {
			return "loads." + name, fmt.Errorf("a load of kind %s cannot go to an application of kind %s", p.Kind.Name, to.Kind.Name)
		}
	}
	for _, sec := range s.sections() {
		if sec.name != "arms" && sec.name != baselineKey {
			continue
		}
		for _, name := range slices.Sorted(maps.Keys(sec.parts)) {
			if err := s.checkXDS(sec.parts[name].Options); err != nil {
				return sec.path(name), err
			}
		}
	}
	return "", nil
}

// checkXDS checks what a subject with a control plane is told beside it.
func (s *Spec) checkXDS(o Options) error {
	of := o[knobXDS]
	if of == "" {
		if o["work"] == workPush {
			return fmt.Errorf(`"work: %s" times what a control plane says: give one with %q`, workPush, knobXDS)
		}
		return nil
	}
	if a := s.Applications[of]; a == nil || !a.Kind.steered || a.count() > 1 {
		return fmt.Errorf("%q must be the name of one application of kind %s, and %q is not", knobXDS, meshApp.Name, of)
	}
	for _, k := range serviceKnobs {
		if _, set := o[k.Name]; set {
			return fmt.Errorf("%q has no meaning beside %q: the application says what the services are", k.Name, knobXDS)
		}
	}
	return nil
}

// workPush is the work that times changes.
const workPush = "push"

// works says whether the subject does measured work itself, between the same edges as loads do.
func (p *Part) works() bool { return p.Kind.Works || p.Options["work"] != "" }

// The ends of what is timed, as metrics word them.
const (
	inMaps      = "until programs find all of it in the maps"
	inProgram   = "until a new connection to each service that was changed gets an endpoint that came by it"
	fromSending = ", from when the response is encoded and about to be handed to the transport"
)

// pushMetrics are what the load and the work `push` tell of changes from a control plane.
var pushMetrics = slices.Concat(
	pushed(push.Whole, "Time of a change of one service, or of all at once, from when the control plane is told "+inProgram+"."),
	pushed(push.Sent, "The control plane's own part of it: from when it is told until the response is encoded and about to be handed to the transport."),
	pushed(push.Received, "Time of a change"+fromSending+", until the whole of it has come to the data plane as a message. Told by the data plane (`work: push`), as the next three."),
	pushed(push.Decoded, "The same until it is read and checked."),
	pushed(push.Visible, "The same "+inMaps+"."),
	pushed(push.Acked, "The same until its acknowledgement is handed to the transport."),
	pushed(push.Usable, "The same "+inProgram+". Told by the load, which tries again and again: it is too long by up to `push_gap`."),
	pushed(push.Gap, "Time between the try at which a change was seen and the one before, at which it was not."),
	[]Metric{
		{Definition: metric.Definition{Name: "push_refused_ratio", Unit: quantity.Part, Rank: metric.RankOther, Pool: metric.Merged, Better: metric.Lower, Needs: needWorkCount, Headline: true, How: "Connections that were refused, of those that the load `push` tried while a change was under way: moments in which a service has no endpoint."}, value: tried(push.Refused)},
		{Definition: metric.Definition{Name: "push_wrong_ratio", Unit: quantity.Part, Rank: metric.RankOther, Pool: metric.Merged, Better: metric.Lower, Needs: needWorkCount, Headline: true, How: "The same for connections that got what is no endpoint of their service."}, value: tried(push.Wrong)},
	},
)

// tried is a part of the connections that the loads tried.
func tried(count string) func(*measurement) (float64, bool) {
	return func(m *measurement) (float64, bool) {
		of := func(name string) float64 { return m.sum(func(r load.Result) float64 { return r.Counts[name] }) }
		tries := of(push.Tries)
		return of(count) / tries, tries > 0
	}
}

// pushHistogram is one of the load's, or of the subject's work.
func (m *measurement) pushHistogram(name string) (*hdrhistogram.Histogram, bool) {
	if m.work != nil && m.work.Generator == push.Generator {
		if h, err := m.work.Histogram(name); err == nil && h != nil {
			return h, true
		}
	}
	return m.histogram(name)
}

// pushed are the metrics of one histogram. Changes of a large mesh are few in a trial: then there is a mean and the longest, and no quantile.
func pushed(histogram, how string) []Metric {
	of := func(name, how string, value func(*hdrhistogram.Histogram) (float64, bool)) Metric {
		return Metric{
			Definition: metric.Definition{
				Name: histogram + name + "_seconds", Unit: quantity.Seconds, Rank: metric.RankOther, Pool: metric.Merged, Cost: name == "",
				Better: metric.Lower, Needs: needLatency, How: how, Headline: histogram == push.Usable && (name == "" || name == "_p50"),
			},
			value: func(m *measurement) (float64, bool) {
				h, ok := m.pushHistogram(histogram)
				if !ok {
					return 0, false
				}
				ns, ok := value(h)
				return ns / 1e9, ok
			},
		}
	}
	all := []Metric{of("", how+" Mean of all changes of the trial.", func(h *hdrhistogram.Histogram) (float64, bool) { return h.Mean(), true })}
	for _, q := range []struct {
		name string
		q    float64
	}{{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"p999", 0.999}} {
		all = append(all, of("_"+q.name, fmt.Sprintf("The same: %s quantile; left out when fewer than %g changes lie beyond it.", q.name, stats.MinBeyond(q.q)),
			func(h *hdrhistogram.Histogram) (float64, bool) { return stats.Quantile(h, q.q) }))
	}
	return append(all, of("_max", "The same: the longest.", func(h *hdrhistogram.Histogram) (float64, bool) { return float64(h.Max()), true }))
}
