// Package plane is the subject "controlplane": a control plane with a generated mesh, for a fleet of proxies (package
// fleet). The control plane is Tare's own, or another for comparison.
package plane

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tare/internal/experiment/child"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/process"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
	"tare/internal/mesh/controlplane"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/proxyconfig"
	"tare/internal/mesh/fleet"
	"tare/internal/mesh/istiod"
	"tare/internal/mesh/plane/snapshot"
	"tare/internal/mesh/services"
)

func init() { kind.Register(kind.Subject, guest{}) }

// Names of the settings.
const (
	servicesKey    = "services"
	callsKey       = "calls"
	proxiesKey     = "proxies"
	mtlsKey        = "mtls"
	credentialsKey = "credentials"
	programKey     = "program"
	debounceKey    = "debounce"
	admitsKey      = "admits"
	optionalKey    = "optional"
	envoysKey      = "envoys"
	envoyKey       = "envoy-program"
	effectKey      = "effect"
)

// The control planes.
const (
	programTare     = "tare"
	programSnapshot = "snapshot"
	programIstiod   = "istiod"
)

var settings = []param.Setting{
	{Name: servicesKey, Type: param.TypeCount, Default: "100", Min: 1, Max: fleet.MaxServices,
		Phrase: map[string]string{"": "in a mesh of {} services", "1": "in a mesh of one service"},
		Doc:    "services of the mesh; proxy i serves service i modulo their number"},
	{Name: callsKey, Type: param.TypeCount, Default: "10", Max: fleet.MaxServices,
		Phrase: map[string]string{"0": "where each gets all services"},
		Doc:    "services that each proxy may call, and so gets; 0: all"},
	{Name: mtlsKey, Type: param.TypeSwitch, Default: "false",
		Phrase: map[string]string{"true": "with mutual TLS"},
		Doc:    "proxies connect with certificates, and also get them as resources"},
	{Name: programKey, Type: param.TypeWord, Default: programTare,
		Words:  []string{programTare, programSnapshot, programIstiod},
		Phrase: map[string]string{programSnapshot: "by go-control-plane's snapshot cache", programIstiod: "by istiod"},
		Doc: "Tare's; go-control-plane's snapshot cache and server; or Istio's, with a ServiceEntry for each service and " +
			"a Sidecar for its proxies. Only Tare's has certificates here"},
	{Name: debounceKey, Type: param.TypeDuration, Default: "100ms", Max: 60,
		Doc: "time that istiod waits for more changes before it pushes them (PILOT_DEBOUNCE_AFTER)"},
	{Name: admitsKey, Type: param.TypeCount, Default: "1000", Max: 1_000_000,
		Doc: "connections that istiod accepts per second (PILOT_MAX_REQUESTS_PER_SECOND); 0: its own default, 25 with " +
			"two CPUs"},
	{Name: optionalKey, Type: param.TypeSwitch, Default: "false",
		Doc: "skip the arm where istiod or Envoy is needed and not installed"},
	{Name: proxiesKey, Type: param.TypeCount, Default: "0", Max: fleet.MaxProxies,
		Doc: "proxies of the mesh; 0: as many as the load has"},
	{Name: envoysKey, Type: param.TypeCount, Default: "0", Max: 20,
		Phrase: map[string]string{"": "with {} Envoys", "1": "with one Envoy", "0": ""},
		Doc: "Envoys beside the light proxies; every fourth change moves a service that they call between the first two " +
			"applications of kind http (whose `body` must differ)"},
	{Name: envoyKey, Type: param.TypeText, Reach: param.ReachCommand, Default: "envoy",
		Doc: "Envoy's program, by path or name"},
	{Name: effectKey, Type: param.TypeText, Reach: param.ReachAddress,
		Doc: "the two applications of `envoys`, as ADDRESS=BODY,ADDRESS=BODY; set by an experiment"},
	{Name: credentialsKey, Type: param.TypeText, Reach: param.ReachFile,
		Doc: "directory of the proxies' credentials; an experiment makes one"},
}

// guest implements the subject for the engine.
type guest struct{}

// Interfaces that the engine looks for.
var (
	_ kind.Player        = guest{}
	_ kind.Joiner        = guest{}
	_ kind.Checker       = guest{}
	_ kind.Installed     = guest{}
	_ fleet.ControlPlane = guest{}
)

// About implements kind.Guest.
func (guest) About() kind.About {
	return kind.About{
		Name:     "controlplane",
		Summary:  "a control plane (xDS), Tare's own or another, with a mesh made up for a load of kind `fleet`",
		Settings: settings,
	}
}

// Check implements kind.Checker.
func (guest) Check(v param.Values) error {
	program := v[programKey]
	if program != programTare && v.On(mtlsKey) {
		return fmt.Errorf("%s: %s has no certificates: leave %s out", programKey, program, mtlsKey)
	}
	if program == programIstiod && v.Int(envoysKey) > 0 {
		return fmt.Errorf("%s: %s would need Istio's agent beside each: leave %s out", programKey, program, envoysKey)
	}
	_, err := effectOf(v[effectKey])
	return err
}

// Installed implements kind.Installed: everything but istiod and Envoy is in this program.
func (guest) Installed(_ context.Context, v param.Values) error {
	if v.Int(envoysKey) > 0 {
		if _, err := child.Find(v[envoyKey]); err != nil {
			return fault.Wrap(err, fault.Machine, v[envoyKey], "install it, or put it on the PATH: 'make envoy' fetches one",
				"Envoy is not installed")
		}
	}
	if v[programKey] == programIstiod {
		_, err := istiod.Find()
		return err
	}
	return nil
}

// Optional implements kind.Installed.
func (guest) Optional(v param.Values) bool { return v.On(optionalKey) }

// ServesFleets implements fleet.ControlPlane.
func (guest) ServesFleets() {}

// joined is the control plane in a trial.
type joined struct {
	trial kind.Trial
	part  *kind.Part
	dir   string // of credentials; empty: there are none
}

// Join implements kind.Joiner.
func (g guest) Join(t kind.Trial, _ string, part *kind.Part) (any, error) {
	return &joined{trial: t, part: part}, nil
}

// Start starts the process, and returns when it listens.
func (j *joined) Start(ctx context.Context) error {
	options := j.part.Options.Clone()
	if options.Int(proxiesKey) == 0 {
		most := 0
		for _, l := range j.trial.Setup().Loads {
			if f, ok := l.Kind.(interface{ Proxies(param.Values) int }); ok {
				most = max(most, f.Proxies(l.Options))
			}
		}
		options[proxiesKey] = strconv.Itoa(most)
	}
	if options.Int(envoysKey) > 0 {
		names, err := endpointsOf(j.trial.Setup())
		if err != nil {
			return err
		}
		var words []string
		for _, name := range names {
			words = append(words, j.trial.Applications()[name].Address+"="+j.trial.Setup().Applications[name].Options["body"])
		}
		options[effectKey] = strings.Join(words, ",")
	}
	if options.On(mtlsKey) || options.Int(envoysKey) > 0 {
		j.dir = filepath.Join(j.trial.Dir(), "controlplane-credentials")
		if err := os.Mkdir(j.dir, 0o700); err != nil {
			return fmt.Errorf("making the directory of the proxies' credentials: %w", err)
		}
		options[credentialsKey] = j.dir
	}
	argv, err := kind.Command(kind.Subject, guest{}, kind.Site{})
	if err != nil {
		return err
	}
	argv = append(append([]string{j.trial.Self()}, argv...), options.Args(settings)...)
	p, err := j.trial.StartSubject(ctx, "", j.part.Limits, argv)
	if err != nil {
		return err
	}
	raw, err := p.Ready(ctx)
	if err != nil {
		return err
	}
	j.trial.SetSubject(kind.Objects{}, raw)
	return nil
}

// Close removes the proxies' credentials.
func (j *joined) Close() error {
	if j.dir == "" {
		return nil
	}
	return files.RemoveAll(j.dir)
}

// Play runs a control plane until the parent closes its end.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	o := options{Shape: fleet.Shape{Proxies: v.Int(proxiesKey), Services: v.Int(servicesKey), Calls: v.Int(callsKey)},
		mtls: v.On(mtlsKey), credentials: v[credentialsKey], program: v[programKey],
		debounce: v.Duration(debounceKey), admits: v.Int(admitsKey), envoys: v.Int(envoysKey), envoy: v[envoyKey]}
	var err error
	if o.effect, err = effectOf(v[effectKey]); err != nil {
		return err
	}
	return role.Play(ctx, conn, func(ctx context.Context) error {
		return serve(ctx, o, func(r fleet.Ready) error { return conn.Send(role.Ready, r) })
	})
}

type options struct {
	fleet.Shape
	mtls        bool
	credentials string
	program     string
	debounce    time.Duration
	admits      int
	envoys      int
	envoy       string     // Envoy's program
	effect      []endpoint // two, if there are Envoys
	listen      []string   // where each Envoy accepts connections to the service that shows the effect
}

// served is a control plane under test.
type served interface {
	// ready returns the address of the control plane, and the form of its proxies' nodes.
	ready() fleet.Ready
	setEndpoints(ctx context.Context, of map[string][]proxyconfig.Endpoint) error
	// run returns when ctx ends, or with an error.
	run(ctx context.Context) error
	close() error
}

// within is a control plane in this process.
type within struct {
	plane interface {
		Serve(net.Listener) error
		Close()
		SetEndpoints(ctx context.Context, of map[string][]proxyconfig.Endpoint) (int64, error)
	}
	l    net.Listener
	work func(context.Context) error // runs while the plane serves, and returns when ctx ends
}

// tare makes this project's control plane.
func (o options) tare(ctx context.Context) (served, error) {
	m, err := o.meshOf().Compile()
	if err != nil {
		return nil, err
	}
	p, err := controlplane.NewPlane(ctx, m, controlplane.PlaneOptions{})
	if err != nil {
		return nil, err
	}
	if o.mtls {
		if err := o.write(p, m); err != nil {
			p.Close()
			return nil, err
		}
	}
	return listening(&within{plane: p, work: func(ctx context.Context) error {
		defer controlplane.BoundGarbage()()
		return p.Run(ctx)
	}})
}

// cached makes go-control-plane's control plane.
func (o options) cached(ctx context.Context) (served, error) {
	m, err := o.meshOf().Compile()
	if err != nil {
		return nil, err
	}
	p, err := snapshot.New(ctx, m)
	if err != nil {
		return nil, err
	}
	return listening(&within{plane: p, work: func(ctx context.Context) error {
		<-ctx.Done()
		return nil
	}})
}

// listening makes a control plane listen, and closes it if that fails.
func listening(p *within) (served, error) {
	var err error
	if p.l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		p.plane.Close()
		return nil, fmt.Errorf("listening for proxies: %w", err)
	}
	return p, nil
}

func (p *within) ready() fleet.Ready { return fleet.Ready{Address: p.l.Addr().String()} }

func (p *within) setEndpoints(ctx context.Context, of map[string][]proxyconfig.Endpoint) error {
	_, err := p.plane.SetEndpoints(ctx, of)
	return err
}

func (p *within) run(ctx context.Context) error {
	return role.Together(ctx, p.plane.Close, func(context.Context) error { return p.plane.Serve(p.l) }, p.work)
}

func (p *within) close() error {
	p.plane.Close()
	return nil
}

// meshOf returns the configuration of the mesh: its services, its proxies, and the Envoys.
func (o options) meshOf() *proxyconfig.Config {
	c := &proxyconfig.Config{}
	if o.Calls > 0 {
		c.Discovery = "policy"
	}
	if o.mtls {
		c.MTLS = "strict"
	}
	for i := range o.Services {
		name := fleet.ServiceName(i)
		s := proxyconfig.Service{Name: name, Protocol: "http", Endpoints: endpoints(i, 1),
			Address: fmt.Sprintf("10.96.%d.%d:80", i>>8, i&255)}
		if o.Calls > 0 {
			s.Access = []proxyconfig.Access{} // no caller
			if from := lists.Map(o.Callers(i), fleet.ServiceName); len(from) > 0 {
				s.Access = append(s.Access, proxyconfig.Access{From: from})
			}
		}
		c.Services = append(c.Services, s)
	}
	for i := range o.Proxies {
		name := fleet.ServiceName(o.ServiceOf(i))
		c.Proxies = append(c.Proxies, proxyconfig.Proxy{ID: fleet.NodeID(i), Identity: name,
			Inbound: map[string]proxyconfig.Inbound{name: {Listen: "0.0.0.0:15006", To: "127.0.0.1:80"}}})
	}
	o.toEnvoys(c)
	return c
}

func endpoints(service, change int) []proxyconfig.Endpoint {
	return []proxyconfig.Endpoint{{Address: fleet.Endpoint(service, change).String()}}
}

// serve starts the control plane, calls ready, and serves proxies and requests for changes until ctx ends.
func serve(ctx context.Context, o options, ready func(fleet.Ready) error) (err error) {
	for range o.envoys {
		r, err := process.Reserve(netip.AddrFrom4([4]byte{127, 0, 0, 1}))
		if err != nil {
			return err
		}
		defer r.Release() // by then each Envoy listens or has ended
		o.listen = append(o.listen, r.Address)
	}
	of := map[string]func(context.Context) (served, error){programTare: o.tare, programSnapshot: o.cached,
		programIstiod: o.istiod}
	p, err := of[cmp.Or(o.program, programTare)](ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.close()) }()
	control, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening for changes: %w", err)
	}
	effects := 0
	change := func(ctx context.Context, number int, changed []int) (services.Change, error) {
		of := map[string][]proxyconfig.Endpoint{}
		for _, service := range changed {
			if service == o.Services {
				effects++
				of[effectService] = o.shown(effects)
			} else {
				of[fleet.ServiceName(service)] = endpoints(service, number)
			}
		}
		c := services.Change{Set: pace.Now()}
		return c, p.setEndpoints(ctx, of)
	}
	shown := o.Services
	if o.envoys > 0 {
		shown++
	}
	r := p.ready()
	var signs *authority.Authority // nil unless the control plane is Tare's
	if w, is := p.(*within); is {
		if plane, is := w.plane.(*controlplane.Plane); is {
			signs = plane.Authority()
		}
	}
	if r.Effect, err = o.bootstraps(r.Address, signs); err != nil {
		return errors.Join(err, control.Close())
	}
	r.Shape, r.Control = o.Shape, control.Addr().String()
	if o.mtls {
		r.Credentials = o.credentials
	}
	return role.Together(ctx, func() {}, func(ctx context.Context) error {
		if err := ready(r); err != nil {
			return errors.Join(err, control.Close())
		}
		return p.run(ctx)
	}, func(ctx context.Context) error {
		return services.ServeChanges(ctx, control, services.Ready{Services: shown, Endpoints: 1}, fleet.Changes, change)
	})
}

// write writes the credentials of each service's proxies into a directory named after the service.
func (o options) write(p *controlplane.Plane, m *proxyconfig.Mesh) error {
	for i := range min(o.Services, o.Proxies) {
		c, err := p.Authority().Credentials(m.Identity(fleet.NodeID(i)))
		if err != nil {
			return err
		}
		dir := filepath.Join(o.credentials, fleet.ServiceName(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return fmt.Errorf("making a directory for credentials: %w", err)
		}
		if err := c.WriteFiles(dir); err != nil {
			return err
		}
	}
	return nil
}
