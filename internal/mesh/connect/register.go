package connect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/mesh/generation"
)

func init() { kind.Register(kind.Load, guest{}) }

// guest implements the load for the engine. Its About has no protocol, because the load uses no application.
type guest struct{}

// About implements kind.Guest.
func (guest) About() kind.About {
	return kind.About{
		Name: "connect",
		Summary: "UDP sockets that connect to services as fast as they can, and send nothing: if the subject replaces " +
			"its configuration (`work: replace`), every connection is judged by the endpoint that it reaches",
		Process: processSettings,
		Alone: &kind.Alone{Argument: serviceKey, Examples: []string{
			"10.96.0.1:80 --services 1000 --duration 5s",
			"--replacer 4711 # judges which endpoints connections reach while that process replaces them",
		}},
	}
}

// Names of the settings.
const (
	serviceKey   = "service"
	servicesKey  = "services"
	endpointsKey = "endpoints"
	replacerKey  = "replacer"
)

// processSettings are the settings of the load's process. Specs do not have them.
var processSettings = []param.Setting{
	{Name: serviceKey, Type: param.TypeText, Reach: param.ReachAddress,
		Doc: "the first service, an IPv4 address and a port: 10.96.0.1:80"},
	{Name: servicesKey, Type: param.TypeCount, Default: "1", Min: 1, Max: MaxServices,
		Doc: "number of services from that address on; each connection goes to a random one"},
	{Name: endpointsKey, Type: param.TypeSwitch, Default: "false",
		Doc: "fail unless the peer of a connection to each service is an endpoint, not the service"},
	{Name: replacerKey, Type: param.TypeCount,
		Doc: "process id of a data plane that replaces its configuration (--work replace): connect to its services, and " +
			"judge"},
	kind.SeedSetting,
}

// Play runs the load's process.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) (err error) {
	o := Options{Services: v.Int(servicesKey), Endpoints: v.On(endpointsKey), Replacer: v.Int(replacerKey),
		Seed: v.Uint(kind.SeedSetting.Name)}
	if text, given := v[serviceKey]; given {
		if o.First, err = netip.ParseAddrPort(text); err != nil {
			return fault.New(fault.Usage, "--service", "write it as 10.96.0.1:80", "%q is not an address", text)
		}
	}
	return Run(ctx, o, conn)
}

// Server is a subject that can serve something itself, in addition to the applications.
type Server interface {
	// CheckServices returns nil if the subject's part is configured to serve something. Otherwise its error says what to
	// write in the spec.
	CheckServices(s *kind.Setup, part *kind.Part) error
}

// Serving is a subject, running in a trial (kind.Site.Subject), that serves something itself.
type Serving interface {
	Services() Services
}

// Services describes what a subject serves itself.
type Services struct {
	First     string // host:port; the others have the following addresses
	Count     int
	Endpoints bool // connections to them have endpoints as peers
	Replacer  int  // id of the process that replaces their endpoints (package generation); 0: none
}

// At implements kind.Sited. It returns the settings that point the load to the subject's services.
func (guest) At(at kind.Site) param.Values {
	var to Services
	if s, ok := at.Subject.(Serving); ok { // ensured by CheckSetup
		to = s.Services()
	}
	if to.Replacer != 0 {
		return param.Values{replacerKey: strconv.Itoa(to.Replacer)}
	}
	return param.Values{
		serviceKey: to.First, servicesKey: strconv.Itoa(to.Count), endpointsKey: strconv.FormatBool(to.Endpoints),
	}
}

// CheckSetup checks that the subject of every arm serves something by itself.
func (g guest) CheckSetup(s *kind.Setup, path string, _ *kind.Part) error {
	if s.Baseline == nil {
		return fmt.Errorf("a load of kind %s goes to what the subject serves by itself, and the baseline has no subject: "+
			"give the spec a %q", g.About().Name, kind.BaselineKey)
	}
	return s.CheckSubjects(func(part *kind.Part) error {
		if err := serves(s, part); err != nil {
			return fmt.Errorf("%s needs a subject that serves something by itself: %w", path, err)
		}
		return nil
	})
}

func serves(s *kind.Setup, part *kind.Part) error {
	if server, ok := part.Kind.(Server); ok {
		return server.CheckServices(s, part)
	}
	return errors.New(part.Name() + " serves nothing")
}

// Judge applies the usual rules if connections were not judged. If they were judged, wrong and failed connections are
// results, not faults of the trial, so it trips only if no connection began in the window.
func (guest) Judge(m *measured.Measured, name string) []measured.Trip {
	j := m.JudgeLoad(name)
	switch n, judges := j.Result.Counts[generation.Judged]; {
	case !judges:
		j.Usual()
	case n == 0:
		j.Trip(measured.GateIdle, 0, 1, "no connection began in the window; lengthen the duration")
	}
	return j.Trips
}

// Metrics returns the metrics of connections, and of the changes during them.
func (guest) Metrics() []measured.Metric { return metrics }
