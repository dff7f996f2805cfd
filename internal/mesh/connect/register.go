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

// guest is the load as the engine knows it. It speaks no protocol: it goes to no application.
type guest struct{}

// About says what it is.
func (guest) About() kind.About {
	return kind.About{
		Name: "connect",
		Summary: "UDP sockets that connect to services as fast as it goes, and send nothing: where the subject replaces " +
			"its configuration (`work: replace`), every connection is judged by the endpoint that it comes to",
		Process: processSettings,
		Alone: &kind.Alone{Argument: serviceKey, Examples: []string{
			"10.96.0.1:80 --services 1000 --duration 5s",
			"--replacer 4711 # judges which endpoints connections come to while that process replaces them",
		}},
	}
}

// The names of the settings.
const (
	serviceKey   = "service"
	servicesKey  = "services"
	endpointsKey = "endpoints"
	replacerKey  = "replacer"
)

// processSettings are those of the process; specs have none.
var processSettings = []param.Setting{
	{Name: serviceKey, Type: param.TypeText, Reach: param.ReachAddress,
		Doc: "the first service, an IPv4 address and a port: 10.96.0.1:80"},
	{Name: servicesKey, Type: param.TypeCount, Default: "1", Min: 1, Max: MaxServices,
		Doc: "number of services from that address on; each connection goes to a random one"},
	{Name: endpointsKey, Type: param.TypeSwitch, Default: "false",
		Doc: "fail unless a connection to each service shows an endpoint as its peer"},
	{Name: replacerKey, Type: param.TypeCount,
		Doc: "process id of a data plane that replaces its configuration (--work replace): connect to its services, and " +
			"judge"},
	kind.SeedSetting,
}

// Play is the load's process.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) (err error) {
	o := Options{Services: v.Int(servicesKey), Endpoints: v.On(endpointsKey), Replacer: v.Int(replacerKey),
		Seed: v.Uint(kind.SeedSetting.Name)}
	if text, given := v[serviceKey]; given {
		if o.First, err = netip.ParseAddrPort(text); err != nil {
			return fault.New(fault.Usage, "--service", "write it as 10.96.0.1:80", "%q is no address", text)
		}
	}
	return Run(ctx, o, conn)
}

// Server is a subject that can serve something by itself, beside the applications.
type Server interface {
	// CheckServices is nil where a part of the subject does so. Else it says what to write for it to.
	CheckServices(s *kind.Setup, part *kind.Part) error
}

// Serving is the part that such a subject has in a trial.
type Serving interface {
	Services() Services
}

// Services are those that a subject serves by itself.
type Services struct {
	First     string // host:port; the others follow it, by address
	Count     int
	Endpoints bool // connections to them show endpoints
	Replacer  int  // process that replaces them by package generation; 0: none does
}

// At is kind.Sited's: the services of the subject.
func (guest) At(at kind.Site) param.Values {
	var to Services
	if s, ok := at.Subject.(Serving); ok { // CheckSetup has seen to that
		to = s.Services()
	}
	if to.Replacer != 0 {
		return param.Values{replacerKey: strconv.Itoa(to.Replacer)}
	}
	return param.Values{
		serviceKey: to.First, servicesKey: strconv.Itoa(to.Count), endpointsKey: strconv.FormatBool(to.Endpoints),
	}
}

// CheckSetup sees that there is something to connect to in every arm.
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

// Judge: a connection that came to a wrong endpoint or to none is what is asked for, and no fault of the trial.
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

// Metrics are those of its connections, and of the changes that they are made during.
func (guest) Metrics() []measured.Metric { return metrics }
