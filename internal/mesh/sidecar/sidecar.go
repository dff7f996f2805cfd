// Package sidecar is what subjects made of sidecar proxies share: which proxies stand between a load and an
// application, how they are started, known to be ready, watched and ended, and what is kept of them. A kind of proxy
// says how one of it is configured and started (Proxy); the rest is here.
//
// Each proxy is a component of the subject in a control group of its own, and serves one application:
//
//	hops: 2   load -> proxy.client -> (mTLS) -> proxy.server -> application
//	hops: 1   load -> proxy.server -> application, as through an ingress
//	hops: 0   load -> application
//
// They are on this machine's loopback interface, or in two pods (package redirect), which is where connections can be
// redirected to them.
package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/process"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
	"tare/internal/mesh/redirect"
	"tare/internal/scale/host/feature"
)

// The components of a subject, by which records know the proxies.
const (
	Client = "proxy.client" // beside the load
	Server = "proxy.server" // beside the application
)

// Proxy is one kind of proxy. Its methods may be used concurrently.
type Proxy interface {
	About() About
	// Command writes the files of a proxy into its directory, with mode 0600, and gives the command that runs it there
	// until it is told to end. The command listens at p.Listen once it can serve, and keeps no other process waiting.
	Command(p Place) (process.Command, error)
}

// About is what a kind of proxy says of itself.
type About struct {
	Name    string // of the subject, as a spec has it
	Summary string // one line, for lists
	Program string // its name, which is looked for on the PATH and where system programs are
	Hint    string // how to install it: "apt-get install haproxy"
	// Version finds the version of the program in what it prints when it is run with VersionFlag: its first group.
	VersionFlag string
	Version     func() *regexp.Regexp
}

// version is that of the program at a path; empty where it does not say.
func (a About) version(ctx context.Context, program string) string {
	if m := a.Version().FindStringSubmatch(process.Printed(ctx, program, a.VersionFlag)); m != nil {
		return text.Plain(m[1])
	}
	return ""
}

// What else a proxy can have, found by type assertion.
type (
	// Checker checks the settings of a kind of proxy together. Its error reads on after the part's place in the spec.
	Checker interface {
		Check(o param.Values) error
	}

	// Needer is a proxy that needs more than its program for some settings. Lacks is an error of code fault.Machine that
	// says what is missing.
	Needer interface {
		Lacks(ctx context.Context, program string, o param.Values) error
	}

	// Changer is a Driven proxy whose control plane can be told of other services while the proxies run. Change gives what
	// Drive gave, as it is afterwards, and does not wait for the proxies.
	Changer interface {
		Change(ctx context.Context, control any, d Drive) (any, error)
	}

	// Settler is a proxy that says whether it has put to work all that it was told. An error is why that cannot be said
	// now.
	Settler interface {
		Settled(ctx context.Context, p Place) (bool, error)
	}

	// Teller is a proxy that counts what it does. Own is its own word, by its own names, from its start until now: it is
	// kept in the record as that, and no metric is made of it.
	Teller interface {
		Own(ctx context.Context, p Place) (map[string]float64, error)
	}

	// Redirectable is a proxy that cannot take connections in every way. The error of Takes says why it cannot; it reads
	// on after the part's place in the spec.
	Redirectable interface {
		Takes(way string) error
	}

	// Driven is a proxy that a control plane configures. Drive starts the control plane, as a component of the subject,
	// before any proxy, and configures it for all of them; what it returns is in Place.Control. The proxies then get their
	// certificates from there, and no files of them.
	Driven interface {
		Drive(ctx context.Context, d Drive) (control any, err error)
	}
)

// Drive is what a control plane is started with.
type Drive struct {
	Trial   kind.Trial
	Part    *kind.Part
	Dir     string // of its files, which goes with the trial; others than its user can pass, and not list it
	Host    string // IP address at which it can be reached by all proxies
	Proxies []Place
}

// Place is where one proxy stands: between what comes to Listen and what is at To.
type Place struct {
	Component string       // Client or Server
	App       string       // the application that it serves
	Options   param.Values // of the subject
	Self      string       // path of the tare binary
	Program   string       // path of its own program
	Dir       string       // of its files: absolute, made for it, and gone with the trial

	// Listen and To are host:port on this machine. Listen is held for the proxy, so that nobody else is given that port:
	// a socket that sets SO_REUSEADDR, as servers do, can be bound to it and listen there.
	Listen, To string

	// From is the address that its clients connect to where their connections are redirected to the proxy; empty: they
	// connect to Listen. A proxy that learns where connections were going takes no others. Transparent says that packets
	// come as they are, to From, for which its socket must be ready (IP_TRANSPARENT).
	From        string
	Transparent bool

	// Dial connects to an IP address where the proxy is; nil: on this machine's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// AcceptTLS and DialTLS say on which side the proxy speaks mutual TLS. Its certificate and the roots are then in
	// Dir, in the files IdentityFile and RootsFile.
	AcceptTLS, DialTLS bool
	Identity           string // its SPIFFE ID
	Peer               string // SPIFFE ID of the proxy on the other side of the TLS; empty where there is none
	PeerName           string // DNS name in that proxy's certificate

	// Rules are the identities that may call the application, in the order in which they are to be looked through for
	// every request. The last is that of the peer. Empty: there are none, and the peer alone may call.
	Rules []string

	// Others are the further services that the proxy is to know. One that a control plane drives has all of the mesh here,
	// and the options say what it is to be told.
	Others []Other

	Workers     int    // threads or processes that carry requests
	Connections int    // that it must be able to carry at once
	Protocol    string // ProtocolHTTP and so on: what it understands, and speaks on both sides

	// User and Group are whom it must run as once it has read its files, by name and by number; empty: nobody else than
	// who started it.
	User, Group string
	UID, GID    int

	Control any // what Driven.Drive gave
}

// The protocols. The first is what applications and loads of HTTP/1.1 call it, too.
const (
	ProtocolHTTP  = "http"  // HTTP/1.1, request by request
	ProtocolHTTP2 = "http2" // HTTP/2, without TLS by prior knowledge
	ProtocolGRPC  = "grpc"  // the same, with trailers
	ProtocolTCP   = "tcp"   // bytes, connection by connection
)

// OverHTTP2 says whether requests of a protocol are carried over HTTP/2.
func OverHTTP2(protocol string) bool { return protocol == ProtocolHTTP2 || protocol == ProtocolGRPC }

// The settings that all kinds of proxies have.
const (
	settingHops        = "hops"
	settingMTLS        = "mtls"
	settingWorkers     = "workers"
	settingProtocol    = "protocol"
	settingConnections = "connections"
	settingNetwork     = "network"
	settingRedirect    = "redirect"
	settingReady       = "ready-timeout"
	settingProgram     = "program"
	settingOptional    = "optional"
)

var commonSettings = []param.Setting{
	{Name: settingHops, Type: param.TypeCount, Default: "2", Max: 2,
		Phrase: map[string]string{"0": "through no proxy", "1": "through one proxy", "2": "through two proxies"},
		Doc: "proxies between a load and an application: 2, the client's and the server's; 1, the server's alone, as of an " +
			"ingress; 0, none"},
	{Name: settingMTLS, Type: param.TypeSwitch, Default: "true",
		Phrase: map[string]string{"true": "with mTLS", "false": "without mTLS"},
		Doc: "whether the two proxies use mutual TLS, and the server's accepts nothing else; no effect with fewer " +
			"than two proxies"},
	{Name: settingWorkers, Type: param.TypeCount, Default: "1", Min: 1, Max: 256,
		Phrase: map[string]string{"": "with {} workers", "1": "with one worker"},
		Doc:    "threads or processes of each proxy that carry requests"},
	{Name: settingProtocol, Type: param.TypeWord, Default: ProtocolHTTP,
		Words:  []string{ProtocolHTTP, ProtocolHTTP2, ProtocolGRPC, ProtocolTCP},
		Phrase: map[string]string{"http": "over HTTP/1.1", "http2": "over HTTP/2", "grpc": "over gRPC", "tcp": "over TCP"},
		Doc: "what the proxies understand: requests of HTTP/1.1, of HTTP/2 or of gRPC, which share connections that are " +
			"kept open, or bytes of TCP"},
	{Name: settingConnections, Type: param.TypeCount, Default: "4096", Min: 1, Max: 100_000,
		Doc: "connections that each proxy is configured to carry at once: some proxies set memory aside for them"},
	{Name: settingNetwork, Type: param.TypeWord, Default: hostNetwork, Words: []string{hostNetwork, podNetwork},
		Doc: "where all of it is: on this machine's loopback interface (`host`), or in two network namespaces, of " +
			"the loads and of the applications, joined by a veth pair (`pods`)"},
	{Name: settingRedirect, Type: param.TypeWord, Default: redirect.Explicit, Words: redirect.Ways,
		Phrase: map[string]string{"": "redirected by {}", redirect.Explicit: "by explicit address"},
		Doc: "how connections reach the proxies: addressed to them (`explicit`), or redirected: by nf_tables rules " +
			"as iptables makes them (`iptables`), with transparent proxying in the applications' pod " +
			"(`tproxy`), or by eBPF programs (`ebpf`); all but the first need `network: pods`"},
	{Name: settingReady, Type: param.TypeDuration, Default: "30s", Min: 0.1, Max: 600,
		Doc: "time from the start of the proxies in which a request must have gone through all of them"},
	{Name: settingProgram, Type: param.TypeText, Reach: param.ReachCommand,
		Doc: "the proxy's program, by its path or by a name on the PATH; its usual name when left out"},
	{Name: settingOptional, Type: param.TypeSwitch, Default: "false",
		Doc: "true: where its program is not installed, the run goes on without the arm and says so"},
}

// The networks.
const (
	hostNetwork = "host"
	podNetwork  = "pods"
)

// inPods reports whether options have a network of their own.
func inPods(o param.Values) bool { return o[settingNetwork] == podNetwork }

// wayOf is how connections come to the proxies.
func wayOf(o param.Values) string {
	if Hops(o) == 0 {
		return redirect.Explicit
	}
	return o[settingRedirect]
}

// Hops is how many proxies options put between a load and an application.
func Hops(o param.Values) int { return o.Int(settingHops) }

// MTLS reports whether options make two proxies speak mutual TLS with each other.
func MTLS(o param.Values) bool { return Hops(o) == 2 && o.On(settingMTLS) }

// Settings are those of all kinds of proxies.
func Settings() []param.Setting { return slices.Concat(commonSettings, meshSettings) }

// Guest is a kind of proxy as a subject of experiments.
type Guest struct{ Proxy Proxy }

// spreading is until a proxy that knows all services has them: Envoy takes 2.3 ms for each.
func spreading(o param.Values) time.Duration {
	if o[settingDiscovery] != DiscoveryPermissive {
		return 0
	}
	return time.Duration(o.Int(settingServices)) * time.Millisecond
}

// Register registers a kind of proxy as a subject; for init functions.
func Register(p Proxy) { kind.Register(kind.Subject, Guest{p}) }

// About is kind.Guest's.
func (g Guest) About() kind.About {
	a := g.Proxy.About()
	settings := Settings()
	return kind.About{
		Name: a.Name, Summary: a.Summary, Settings: settings, Process: slices.Concat(settings, askingSettings),
		InPath: kind.Always, TakesLonger: spreading, Probes: g.probes,
	}
}

// Check is kind.Checker's.
func (g Guest) Check(o param.Values) error {
	if err := g.checkMesh(o); err != nil {
		return err
	}
	way := o[settingRedirect]
	if way != redirect.Explicit && !inPods(o) {
		return fmt.Errorf("%q is made in network namespaces of the trial: write %s: %s", settingRedirect+": "+way,
			settingNetwork, podNetwork)
	}
	if r, ok := g.Proxy.(Redirectable); ok {
		if err := r.Takes(way); err != nil {
			return err
		}
	}
	if c, ok := g.Proxy.(Checker); ok {
		return c.Check(o)
	}
	return nil
}

// CheckSetup refuses applications that speak what the proxies do not understand.
func (g Guest) CheckSetup(s *kind.Setup, _ string, part *kind.Part) error {
	understands := part.Options[settingProtocol]
	for name, a := range s.Applications {
		switch speaks := spoken(a); {
		case speaks == "" || speaks == kind.AnyProtocol || understands == ProtocolTCP:
		case slices.Contains(servedOver[understands], speaks):
		default:
			return fmt.Errorf("its proxies understand %s, and the application %s speaks %s: write protocol: %s, and they "+
				"carry bytes", understands, name, speaks, ProtocolTCP)
		}
	}
	if len(s.Loads) > 0 && !slices.ContainsFunc(loadsOf(s), func(p *kind.Part) bool { return p.To != "" }) {
		return errors.New("proxies stand between loads and applications, and no load goes to an application")
	}
	return nil
}

// servedOver are what applications may speak behind proxies that understand a protocol. An application of HTTP/2 serves
// HTTP/1.1 as well.
var servedOver = map[string][]string{
	ProtocolHTTP:  {ProtocolHTTP, "http1", "http2"},
	ProtocolHTTP2: {"http2"},
	ProtocolGRPC:  {"grpc"},
}

// spoken is what an application speaks: what it is set to where it has such a setting, as those of kind http have, and
// else what its kind does.
func spoken(app *kind.Part) string {
	if set := app.Options["protocol"]; set != "" {
		return set
	}
	return app.Kind.About().Protocol
}

func loadsOf(s *kind.Setup) (loads []*kind.Part) {
	for _, p := range s.Loads {
		loads = append(loads, p)
	}
	return loads
}

// Installed is kind.Installed's.
func (g Guest) Installed(ctx context.Context, o param.Values) error {
	if inPods(o) {
		if err := lacks(wayOf(o)).Err(); err != nil {
			return missing(err)
		}
	}
	if Hops(o) == 0 {
		return nil
	}
	program, err := g.program(o)
	if err != nil {
		return err
	}
	if n, ok := g.Proxy.(Needer); ok {
		return n.Lacks(ctx, program, o)
	}
	return nil
}

// Optional is kind.Installed's.
func (Guest) Optional(o param.Values) bool { return o.On(settingOptional) }

// Version is kind.Versioned's.
func (g Guest) Version(ctx context.Context, o param.Values, _ string) (name, version string) {
	program, err := g.program(o)
	if err != nil {
		return g.Proxy.About().Name, ""
	}
	name = g.Proxy.About().Name
	if o[settingProgram] != "" {
		name = filepath.Base(program)
	}
	return name, g.Proxy.About().version(ctx, program)
}

// probes are of the kind's program, and of what all kinds share.
func (g Guest) probes() []*feature.Probe {
	a := g.Proxy.About()
	status := feature.Status{
		Name: a.Program, Needs: "the program " + a.Program, Lost: "arms of experiments with the subject " + a.Name,
		Hint: a.Hint,
	}
	probes := []*feature.Probe{feature.New(status, func() (string, error) {
		program, err := Find(a, nil)
		if err != nil {
			return "not installed", err
		}
		return strings.TrimSpace(program + " " + a.version(context.Background(), program)), nil
	}), sidecars}
	for _, way := range redirect.Ways[1:] {
		probes = append(probes, lacks(way))
	}
	return probes
}

// sidecars is the feature that experiments with sidecars name among their needs.
var sidecars = newSidecars()

// newSidecars probes for the kinds of proxies that every built-in experiment can use. nginx is not among them: it
// cannot identify callers, and speaks no HTTP/2 to servers.
func newSidecars() *feature.Probe {
	return feature.New(feature.Status{
		Name: "sidecars", Needs: "the program envoy or haproxy", Lost: "experiments with sidecar proxies",
		Hint: "run 'make envoy' in Tare's sources, or 'apt-get install haproxy'",
	}, func() (string, error) {
		var found []string
		var err error
		for _, program := range []string{"envoy", "haproxy"} {
			path, missing := Find(About{Program: program}, nil)
			if missing != nil {
				err = missing
				continue
			}
			found = append(found, path)
		}
		if len(found) == 0 {
			return "neither is installed", err
		}
		return strings.Join(found, ", "), nil
	})
}

// Speaks: what proxies use is what they are weighed for.
func (Guest) Speaks(*kind.Setup) []string { return []string{"subject_cpus"} }

// Join is kind.Joiner's.
func (g Guest) Join(t kind.Trial, name string, part *kind.Part) (any, error) {
	j := &joined{proxy: g.Proxy, guest: g, trial: t, name: name, part: part}
	if inPods(part.Options) {
		return &networked{joined: j}, nil
	}
	return j, nil
}

var (
	_ kind.Guest        = Guest{}
	_ kind.Checker      = Guest{}
	_ kind.SetupChecker = Guest{}
	_ kind.Installed    = Guest{}
	_ kind.Versioned    = Guest{}
	_ kind.Joiner       = Guest{}
	_ kind.Player       = Guest{}
	_ measured.Speaker  = Guest{}
	_ measured.Teller   = Guest{}
)

// Permissive reports whether options have every proxy know every service.
func Permissive(o param.Values) bool { return o[settingDiscovery] == DiscoveryPermissive }

// ProtocolOf is what options say that the proxies understand.
func ProtocolOf(o param.Values) string { return o[settingProtocol] }
