package kernelmesh

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/mesh/connect"
	"tare/internal/mesh/push"
	"tare/internal/mesh/services"
)

// The interfaces that the engine looks for.
var _ interface {
	kind.Checker
	kind.SetupChecker
	kind.Joiner
	connect.Server
} = guest{}

func TestCheck(t *testing.T) {
	for _, c := range []struct {
		options param.Values
		wrong   string
	}{
		{param.Values{}, ""},
		{param.Values{"services": "1024"}, ""},
		{param.Values{"services": "5", "then-services": "1000"}, ""},
		{param.Values{"services": "5000", "fit": "true"}, ""},
		{param.Values{"services": "5000", "max-services": "5000"}, ""},
		{param.Values{"services": "1025"}, `1025 services are more than the 1024 that its maps hold`},
		{param.Values{"services": "5", "then-services": "2000"}, "2000 services"},
		{param.Values{"services": "5", "fit": "true", "max-services": "9"}, `"max-services" cannot be combined`},
		{param.Values{"services": "5", "then-services": "6", "fit": "true"}, "must be at most"},
		{param.Values{"store": "pooled:ondemand", "fail": "closed", "peer": "endpoint"}, ""},
		{param.Values{"store": "shelf"}, `there is no store "shelf"`},
		{param.Values{"store": "sized:xl"}, `no variant "xl"`},
	} {
		if err := (guest{}).Check(c.options); c.wrong == "" && err != nil || c.wrong != "" && !errorHas(err, c.wrong) {
			t.Errorf("%v: %v, want %q", c.options, err, c.wrong)
		}
	}
}

func errorHas(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }

// other is a guest of any kind.
type other kind.About

func (o other) About() kind.About { return kind.About(o) }

// setup is an experiment with a mesh, a server, an application without callers, and a subject that uses the mesh.
func setup() *kind.Setup {
	app := func(protocol string) *kind.Part {
		return &kind.Part{Kind: other{Protocol: protocol}, Options: param.Values{}}
	}
	part := partOf(param.Values{"xds": "mesh", "peer": PeerEndpoint, "work": WorkPush})
	return &kind.Setup{
		Applications: map[string]*kind.Part{"mesh": app(services.Protocol), "web": app("http"), "neighbour": app("")},
		Baseline:     part,
		Arms:         map[string]*kind.Part{"arm": part},
	}
}

// TestCheckSetup: a data plane and its control plane must match.
func TestCheckSetup(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*kind.Setup, param.Values)
		wrong  string
	}{
		{"good", func(*kind.Setup, param.Values) {}, ""},
		{"neither", func(_ *kind.Setup, o param.Values) { delete(o, "xds"); delete(o, "work") }, ""},
		{"other kind", func(_ *kind.Setup, o param.Values) { o["xds"] = "web" },
			`"xds" must be the name of one application of kind mesh or istiod, and "web" is not`},
		{"nobody", func(_ *kind.Setup, o param.Values) { o["xds"] = "none" }, `and "none" is not`},
		{"two", func(s *kind.Setup, _ param.Values) { s.Applications["mesh"].Options[kind.CountSetting] = "2" },
			`and "mesh" is not`},
		{"both", func(_ *kind.Setup, o param.Values) { o["services"] = "5" }, `"services" cannot be combined with "xds"`},
		{"none to time", func(_ *kind.Setup, o param.Values) { delete(o, "xds") },
			`"work: push" times the changes of a control plane`},
	} {
		s := setup()
		c.change(s, s.Baseline.Options)
		err := guest{}.CheckSetup(s, "baseline", s.Baseline)
		if c.wrong == "" && err != nil || c.wrong != "" && !errorHas(err, c.wrong) {
			t.Errorf("%s: %v, want %q", c.name, err, c.wrong)
		}
	}
	if p := kind.Find(kind.Load, "push"); p == nil || p.About().Protocol != services.Protocol || push.Generator != "push" {
		t.Error("the load that asks the mesh for changes does not speak with it")
	}
}

// TestCheckServices: the load connect needs services without an application, or those that are replaced.
func TestCheckServices(t *testing.T) {
	for _, c := range []struct {
		options param.Values
		serves  bool
	}{
		{param.Values{"work": WorkReplace, "peer": PeerEndpoint}, true},
		{param.Values{"work": WorkReplace}, false},
		{param.Values{"work": WorkReplace, "services": "9", "protocol": "udp"}, false},
		{param.Values{"services": "3", "protocol": "udp"}, true},
		{param.Values{"services": "3"}, false},
		{param.Values{"services": "3", "protocol": "tcp"}, false},
		{param.Values{"services": "2", "protocol": "udp"}, false}, // exactly those of the applications
		{param.Values{"protocol": "udp"}, false},
	} {
		s := setup()
		s.Baseline, s.Arms = partOf(c.options), nil
		if err := (guest{}).CheckServices(s, s.Baseline); (err == nil) != c.serves {
			t.Errorf("%v: %v", c.options, err)
		}
		l := kind.Find(kind.Load, "connect").(kind.SetupChecker)
		err := l.CheckSetup(s, "loads.client", nil)
		var at *kind.ElsewhereError
		if c.serves && err != nil || !c.serves && (!errors.As(err, &at) || at.Path != "baseline") {
			t.Errorf("%v: the load says %v", c.options, err)
		}
	}
}

func TestWorks(t *testing.T) {
	if partOf(nil).Works() || !partOf(param.Values{"work": WorkPush}).Works() || partOf(nil).WorksAlone() {
		t.Error("it works when it is not asked to, or does not when it is, or works alone")
	}
	if got := (guest{}).About().Trait(param.Values{"store": "snapshot"}); got != "whole per change" {
		t.Errorf("the trait of snapshot is %q", got)
	}
	if got := (guest{}).About().Trait(param.Values{}); got != "" {
		t.Errorf("the trait of no store is %q", got)
	}
}

func TestProcessOptions(t *testing.T) {
	got := processOptions(param.Values{"services": "7", "then-services": "1", "fit": "true", "steps": "3"}, 7)
	if len(got) != 3 || got["max-services"] != "7" || got["max-endpoints"] != "7" || got["steps"] != "3" {
		t.Errorf("fitted: %v", got)
	}
	given := param.Values{"services": "7", "max-services": "9"}
	if got := processOptions(given, 7); len(got) != 1 || got["max-services"] != "9" || len(given) != 2 {
		t.Errorf("sized: %v of %v", got, given)
	}
	got = processOptions(param.Values{"services": "30", "endpoints": "4", "protocol": "udp", "fit": "true"}, 30)
	if len(got) != 2 || got["max-services"] != "30" || got["max-endpoints"] != "120" {
		t.Errorf("fitted with endpoints: %v", got)
	}
}

// TestWriteServicesFile: the process can read the file, which has the applications first, and no address twice.
func TestWriteServicesFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), servicesFile)
	applications := []string{"127.0.0.1:4712", "127.0.0.1:4711"}
	for _, n := range []int{0, 2, 300, 70_000} {
		if err := writeServicesFile(file, applications, n, filler{each: 1}); err != nil {
			t.Fatal(err)
		}
		services, err := ReadFile(file)
		if err != nil {
			t.Fatalf("%d services: %v", n, err)
		}
		second := fmt.Sprint(services[1].Address, services[1].Endpoints[0].Address)
		if len(services) != max(n, 2) || second != "10.96.0.2:80 127.0.0.1:4711" {
			t.Errorf("asked for %d services: %d, the second is %+v", n, len(services), services[1])
		}
	}
	// The reader refuses duplicate addresses, so all 70,000 are distinct; addresses beyond need no file.
	if a, b := serviceIP(1_000_000), fillerIP(1_000_000); a != "10.111.66.64:80" || b != "198.19.66.64:8087" {
		t.Errorf("the last service is %s at %s", a, b)
	}
	if err := writeServicesFile(file, nil, 0, filler{}); err != nil {
		t.Fatal(err)
	}
	if services, err := ReadFile(file); err != nil || len(services) != 0 {
		t.Errorf("of none there are %d, %v", len(services), err)
	}
	if err := writeServicesFile(filepath.Join(file, "no"), nil, 1, filler{}); fault.CodeOf(err) != fault.Machine {
		t.Errorf("no such place: %v", err)
	}
}

// TestFillers: a UDP socket can connect to every endpoint of the services for a load of connections.
func TestFillers(t *testing.T) {
	file := filepath.Join(t.TempDir(), servicesFile)
	if err := writeServicesFile(file, nil, 30, filler{each: 4, protocol: "udp"}); err != nil {
		t.Fatal(err)
	}
	services, err := ReadFile(file)
	if err != nil || len(services) != 30 {
		t.Fatalf("%d services, %v", len(services), err)
	}
	seen := map[string]bool{}
	for _, s := range services {
		for _, e := range s.Endpoints {
			if a := e.Address.String(); seen[a] || !e.Address.Addr().IsLoopback() || e.Address.Addr().As4()[1] < 128 {
				t.Errorf("endpoint %s", a)
			}
			seen[e.Address.String()] = true
		}
	}
	if len(seen) != 120 || services[0].Address.String() != "10.96.0.1:80" || services[29].Protocol != UDP {
		t.Errorf("%d endpoints, first %v", len(seen), services[0])
	}
}

// TestInstalled: a control plane must be installed only if it is selected.
func TestInstalled(t *testing.T) {
	t.Setenv("TARE_ISTIOD", filepath.Join(t.TempDir(), "none"))
	if err := (guest{}).Installed(t.Context(), nil); err != nil {
		t.Error(err)
	}
	under := param.Values{controlKey: underIstio}
	if err := (guest{}).Installed(t.Context(), under); fault.CodeOf(err) != fault.Machine {
		t.Errorf("without istiod: %v", err)
	}
	if o := (guest{}).Optional(under); o {
		t.Error("the arm may be left out, and nobody said so")
	}
	under[optionalKey] = "true"
	if o := (guest{}).Optional(under); !o {
		t.Error("the arm may not be left out")
	}
}
