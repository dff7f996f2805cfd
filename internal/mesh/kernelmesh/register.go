package kernelmesh

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/lib/param"
	"tare/internal/mesh/istiod"
	"tare/internal/mesh/services"
	"tare/internal/mesh/store"
)

func init() { kind.Register(kind.Subject, guest{}) }

// guest implements the data plane for the engine.
type guest struct{}

// About implements kind.Guest.
func (guest) About() kind.About {
	return kind.About{
		Name:     "kernelmesh",
		Summary:  "the reference eBPF mesh data plane, on the hooks of a control group",
		Settings: slices.Concat(Settings, []param.Setting{xdsSetting}, controlSettings, servicesSettings),
		Label:    "store",
		Process:  slices.Concat(processSettings, Settings),
		Alone: &kind.Alone{Ready: kind.Worded(serving), Rereads: true, Examples: []string{
			"--services services.yaml --cgroup /sys/fs/cgroup/mygroup",
			"--xds 127.0.0.1:18000 --fail closed --cgroup /sys/fs/cgroup/mygroup",
		}},
		// With "work", the process itself replaces its configuration, or measures how long changes take. Both also need a
		// load that connects.
		Works:       func(o param.Values) bool { return o["work"] != "" },
		TakesLonger: attaching,
		Trait:       func(o param.Values) string { return store.Trait(o["store"]) },
		Lacks:       lacks,
	}
}

// xdsKey names the application that is the data plane's control plane. The process gets that application's address.
const xdsKey = "xds"

var xdsSetting = param.Setting{
	Name: xdsKey, Type: param.TypeText, Reach: param.ReachNothing,
	Doc: "application of kind `mesh` or `istiod` that provides the services",
}

// The settings of a control plane that a trial starts for the data plane. The process gets its address.
const (
	controlKey  = "control-plane"
	optionalKey = "optional"
)

// underIstio is the value of controlKey for Istio's control plane.
const underIstio = "istiod"

var controlSettings = []param.Setting{
	{
		Name: controlKey, Type: param.TypeWord, Words: []string{underIstio},
		Doc: "control plane to start as a component, in place of a file of services",
	},
	{
		Name: optionalKey, Type: param.TypeSwitch,
		Doc: "skip the arm where the control plane is not installed",
	},
}

// Installed returns an error if the selected control plane is not installed.
func (guest) Installed(_ context.Context, o param.Values) error {
	if o[controlKey] != underIstio {
		return nil
	}
	_, err := istiod.Find()
	return err
}

// attaching estimates the time for attaching the programs and filling the maps.
func attaching(o param.Values) time.Duration {
	return 100*time.Millisecond + time.Duration(o.Int(servicesKey))*150*time.Microsecond
}

// Optional implements kind.Installed.
func (guest) Optional(o param.Values) bool { return o.On(optionalKey) }

// Check refuses unknown stores, and maps that are too small for the services.
func (guest) Check(o param.Values) error {
	if _, err := OptionsOf(o); err != nil {
		return err
	}
	return checkSizes(o)
}

// CheckSetup refuses a missing control plane, and settings that cannot be combined with the control plane.
func (guest) CheckSetup(s *kind.Setup, _ string, part *kind.Part) error {
	o := part.Options
	of := o[xdsKey]
	if o[controlKey] != "" {
		for _, k := range append([]param.Setting{xdsSetting, {Name: "work"}}, servicesSettings...) {
			if _, set := o[k.Name]; set {
				return fmt.Errorf("%q cannot be combined with %q: that control plane serves only the applications",
					k.Name, controlKey)
			}
		}
		return nil
	}
	if of == "" {
		if o["work"] == WorkPush {
			return fmt.Errorf(`"work: %s" times the changes of a control plane: name one with %q`, WorkPush, xdsKey)
		}
		return nil
	}
	if a := s.Applications[of]; a == nil || a.Kind.About().Protocol != services.Protocol || a.Count() > 1 {
		return fmt.Errorf("%q must be the name of one application of kind mesh or istiod, and %q is not", xdsKey, of)
	}
	for _, k := range servicesSettings {
		if _, set := o[k.Name]; set {
			return fmt.Errorf("%q cannot be combined with %q: the application provides the services", k.Name, xdsKey)
		}
	}
	return nil
}

// CheckServices checks that the data plane serves UDP services that no application backs, for the load "connect". These
// are the services that its work replaces, if applications see endpoints as peers, or services in its file.
func (guest) CheckServices(s *kind.Setup, part *kind.Part) error {
	o := part.Options
	replaces := o["work"] == WorkReplace
	if replaces && o["peer"] == PeerEndpoint {
		return nil
	}
	applications := 0
	for _, a := range s.Applications {
		if a.Kind.About().Protocol != "" {
			applications += a.Count()
		}
	}
	if !replaces && o[protocolKey] == "udp" && o.Int(servicesKey) > applications {
		return nil
	}
	return fmt.Errorf("write work: %s and peer: %s, or protocol: udp and more %q than there are applications",
		WorkReplace, PeerEndpoint, servicesKey)
}

// lacks returns the features of proxies that the data plane lacks, for answers that compare it with proxies; empty if
// there are none to compare with.
func lacks(s *kind.Setup) string {
	for _, p := range s.Subjects() {
		if p.Kind.About().InPath.With(p.Options) {
			return "it has no mutual TLS, and it knows connections and no requests (no L7: no HTTP routes, retries or rules)"
		}
	}
	return ""
}

// Join implements kind.Joiner.
func (guest) Join(t kind.Trial, name string, part *kind.Part) (any, error) {
	return &joined{trial: t, name: name, part: part}, nil
}

// Metrics returns the metrics of maps and memory.
func (guest) Metrics() []measured.Metric { return memoryMetrics }

// Speaks implements measured.Speaker: experiments about the number of services are about kernel memory.
func (guest) Speaks(s *kind.Setup) []string {
	if !anySubject(s, servicesKey) {
		return nil
	}
	return []string{"memory_kernel_bytes"}
}

// checkSizes checks that the maps are large enough.
func checkSizes(o param.Values) error {
	if o.On(fitKey) {
		if _, sized := o["max-services"]; sized {
			return errors.New(`"fit" makes the maps as large as the services need: "max-services" cannot be combined with it`)
		}
		if o.Float(thenKey) > max(o.Float(servicesKey), 1) {
			return fmt.Errorf(`with "fit", %q must be at most %q`, thenKey, servicesKey)
		}
		return nil
	}
	most := o.Float("max-services")
	if most == 0 {
		most = DefaultMaxServices
	}
	if n := max(o.Float(servicesKey), o.Float(thenKey)); n > most {
		return fmt.Errorf(`%g services are more than the %g that its maps hold: raise "max-services", or write fit: true`,
			n, most)
	}
	return nil
}

// processOptions returns the options of the process itself. If "fit" is on, they size its maps for the given number of
// services.
func processOptions(o param.Values, services int) param.Values {
	own := o.Clone()
	for _, k := range servicesSettings {
		delete(own, k.Name)
	}
	for _, k := range []string{xdsKey, controlKey, optionalKey} {
		delete(own, k)
	}
	if o.On(fitKey) {
		own["max-services"] = strconv.Itoa(services)
		// Enough for all services: each filler service has this many endpoints, and an application's service has one.
		own["max-endpoints"] = strconv.Itoa(services * fillerOf(o).each)
	}
	return own
}
