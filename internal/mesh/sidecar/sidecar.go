// Package sidecar implements subjects that consist of sidecar proxies. It places proxies between loads and
// applications, starts them, waits until they are ready, watches and ends them, and records facts about them. A kind of
// proxy implements only how one proxy is configured and started (Proxy). Start reading at joined.Start.
//
// Each proxy is a component of the subject in a separate control group, and serves one application:
//
//	hops: 2   load -> proxy.client -> (mTLS) -> proxy.server -> application
//	hops: 1   load -> proxy.server -> application, as through an ingress
//	hops: 0   load -> application
//
// The proxies are on this machine's loopback interface, or in two pods (package redirect). Connections can be
// redirected to them only in pods.
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

// The names of the components of a subject. Records identify the proxies by them.
const (
	Client = "proxy.client" // beside the load
	Server = "proxy.server" // beside the application
)

// Proxy is one kind of proxy. Its methods may be called concurrently.
type Proxy interface {
	About() About
	// Command writes the files of a proxy into its directory, with mode 0600, and returns the command that runs the proxy
	// there until a signal ends it. The program listens at p.Listen as soon as it can serve.
	Command(p Place) (process.Command, error)
}

// About describes a kind of proxy.
type About struct {
	Name    string // the name of the subject in a spec
	Summary string // one line, for lists
	Program string // the name of the program, by which Find looks for it
	Hint    string // how to install it, such as "install it (apt-get install haproxy)"
	// The first group of Version matches the version in the program's output with the argument VersionFlag.
	VersionFlag string
	Version     func() *regexp.Regexp
}

// version returns the version of the program at a path, or "" if it is unknown.
func (a About) version(ctx context.Context, program string) string {
	if m := a.Version().FindStringSubmatch(process.Printed(ctx, program, a.VersionFlag)); m != nil {
		return text.Plain(m[1])
	}
	return ""
}

// Optional interfaces of a Proxy, found by type assertion.
type (
	// Checker is a proxy that checks combinations of its settings. Its error continues a sentence that begins with the
	// part's place in the spec.
	Checker interface {
		Check(o param.Values) error
	}

	// Needer is a proxy that needs more than its program for some settings. Lacks returns an error of code fault.Machine
	// that says what is missing.
	Needer interface {
		Lacks(ctx context.Context, program string, o param.Values) error
	}

	// Changer is a Driven proxy whose control plane can replace the services while the proxies run. The argument control
	// is the result of Drive or of the last Change. Change returns the new Place.Control of the proxies. It does not wait
	// until they have the new services.
	Changer interface {
		Change(ctx context.Context, control any, d Drive) (any, error)
	}

	// Settler is a proxy that reports whether it has put all of its configuration into effect. If it has not, or if that
	// is unknown, the error says why.
	Settler interface {
		Settled(ctx context.Context, p Place) (bool, error)
	}

	// Teller is a proxy that has its own counters. Own returns their values since the start of the proxy. The keys are the
	// proxy's names for the counters. The values are recorded unchanged, and no metric is computed from them.
	Teller interface {
		Own(ctx context.Context, p Place) (map[string]float64, error)
	}

	// Redirectable is a proxy that supports only some ways of redirection. Takes returns an error for a way that it does
	// not support. The error says why, and continues a sentence that begins with the part's place in the spec.
	Redirectable interface {
		Takes(way string) error
	}

	// Driven is a proxy that a control plane configures. Drive starts the control plane, as a component of the subject,
	// before any proxy, and configures it for all of them. Its result becomes Place.Control. The proxies then get their
	// certificates from the control plane, not from files.
	Driven interface {
		Drive(ctx context.Context, d Drive) (control any, err error)
	}
)

// Drive holds the arguments for starting a control plane.
type Drive struct {
	Trial   kind.Trial
	Part    *kind.Part
	Dir     string // for the control plane's files; removed with the trial; other users can enter it, but not list it
	Host    string // IP address at which all proxies can reach it
	Proxies []Place
}

// Place describes one proxy between its clients, which connect to Listen, and the server at To.
type Place struct {
	Component string       // Client or Server
	App       string       // the application that it serves
	Options   param.Values // of the subject
	Self      string       // path of the tare binary
	Program   string       // path of the proxy's program
	Dir       string       // for the proxy's files: absolute, made for it, and removed with the trial

	// Listen and To are host:port on this machine. The port of Listen is reserved for the proxy: a socket with
	// SO_REUSEADDR, which servers set, can bind it and listen there.
	Listen, To string

	// From is the address that clients connect to if their connections are redirected to the proxy. It is empty if they
	// connect to Listen. If the proxy can read the original destination of a connection, it refuses connections to any
	// other address. Transparent means that packets arrive with their original destination, From, so that the proxy's
	// socket needs IP_TRANSPARENT.
	From        string
	Transparent bool

	// Dial connects to an IP address in the proxy's network. It is nil if that is the host's network.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// AcceptTLS means that the proxy uses mutual TLS with its clients, and DialTLS that it uses mutual TLS with the
	// server. Its certificate and the roots are then in Dir, in the files IdentityFile and RootsFile, unless the proxy is
	// Driven: a Driven proxy gets them from its control plane.
	AcceptTLS, DialTLS bool
	Identity           string // its SPIFFE ID
	Peer               string // SPIFFE ID of the proxy at the other end of the TLS connections; empty: there is no TLS
	PeerName           string // DNS name in that proxy's certificate

	// Rules are the identities that may call the application, in the order in which every request must be checked against
	// them. The last is the peer's. Without Rules, a proxy with AcceptTLS admits only the peer, or, if it cannot identify
	// callers, every client whose certificate a root has signed.
	Rules []string

	// Others are the further services that the proxy knows. For a proxy with a control plane they are all further services
	// of the mesh, and the options determine which of them the proxy gets.
	Others []Other

	Workers     int    // threads or processes that carry requests
	Connections int    // number of connections that the proxy must be able to carry at the same time
	Protocol    string // ProtocolHTTP and so on, on both sides

	// User and Group are the names, and UID and GID the numbers, of an unprivileged user and group. A proxy that can
	// change its user runs as them once it has read its files. The names are empty, and the numbers 0, if this process
	// does not run as root: proxies then run as the user of this process.
	User, Group string
	UID, GID    int

	Control any // the result of Driven.Drive, or of the last Changer.Change; nil if the proxy is not Driven
}

// The protocols of the proxies. HTTP/1.1 applications and loads use the name ProtocolHTTP too.
const (
	ProtocolHTTP  = "http"  // HTTP/1.1
	ProtocolHTTP2 = "http2" // HTTP/2; without TLS, with prior knowledge
	ProtocolGRPC  = "grpc"  // HTTP/2, with trailers
	ProtocolTCP   = "tcp"   // the bytes of TCP connections
)

// OverHTTP2 reports whether a protocol uses HTTP/2.
func OverHTTP2(protocol string) bool { return protocol == ProtocolHTTP2 || protocol == ProtocolGRPC }

// The names of the settings of all kinds of proxies.
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
		Doc:    "proxies between a load and an application: 2, the client's and the server's; 1, the server's; 0, none"},
	{Name: settingMTLS, Type: param.TypeSwitch, Default: "true",
		Phrase: map[string]string{"true": "with mTLS", "false": "without mTLS"},
		Doc: "whether the two proxies use mutual TLS, and the server's accepts nothing else; no effect with fewer " +
			"than two"},
	{Name: settingWorkers, Type: param.TypeCount, Default: "1", Min: 1, Max: 256,
		Phrase: map[string]string{"": "with {} workers", "1": "with one worker"},
		Doc:    "threads or processes of each proxy that carry requests"},
	{Name: settingProtocol, Type: param.TypeWord, Default: ProtocolHTTP,
		Words:  []string{ProtocolHTTP, ProtocolHTTP2, ProtocolGRPC, ProtocolTCP},
		Phrase: map[string]string{"http": "over HTTP/1.1", "http2": "over HTTP/2", "grpc": "over gRPC", "tcp": "over TCP"},
		Doc:    "what the proxies carry: requests of HTTP/1.1, HTTP/2 or gRPC, or the bytes of TCP connections"},
	{Name: settingConnections, Type: param.TypeCount, Default: "4096", Min: 1, Max: 100_000,
		Doc: "connections that each proxy is configured for; some proxies reserve memory for them"},
	{Name: settingNetwork, Type: param.TypeWord, Default: hostNetwork, Words: []string{hostNetwork, podNetwork},
		Doc: "`host`: all on the loopback interface; `pods`: loads and applications in two network namespaces, " +
			"joined by a veth pair"},
	{Name: settingRedirect, Type: param.TypeWord, Default: redirect.Explicit, Words: redirect.Ways,
		Phrase: map[string]string{"": "redirected by {}", redirect.Explicit: "by explicit address"},
		Doc: "how connections reach the proxies: `explicit`, clients connect to them; with `network: pods` " +
			"also redirected by nf_tables rules like those of iptables (`iptables`), by such rules with " +
			"transparent proxying in the applications' pod (`tproxy`), or by eBPF programs (`ebpf`)"},
	{Name: settingReady, Type: param.TypeDuration, Default: "30s", Min: 0.1, Max: 600,
		Doc: "longest time until a request has passed through all proxies"},
	{Name: settingProgram, Type: param.TypeText, Reach: param.ReachCommand,
		Doc: "the proxy's program, by path or name; its usual name when left out"},
	{Name: settingOptional, Type: param.TypeSwitch, Default: "false",
		Doc: "skip the arm where its program is not installed"},
}

// Values of the setting network.
const (
	hostNetwork = "host"
	podNetwork  = "pods"
)

// inPods reports whether the options put the trial into separate network namespaces.
func inPods(o param.Values) bool { return o[settingNetwork] == podNetwork }

// wayOf returns the way in which connections reach the proxies (see redirect.Ways). Without proxies it is Explicit.
func wayOf(o param.Values) string {
	if Hops(o) == 0 {
		return redirect.Explicit
	}
	return o[settingRedirect]
}

// Hops returns the number of proxies between a load and an application.
func Hops(o param.Values) int { return o.Int(settingHops) }

// MTLS reports whether two proxies use mutual TLS with each other.
func MTLS(o param.Values) bool { return Hops(o) == 2 && o.On(settingMTLS) }

// Settings returns the settings of all kinds of proxies.
func Settings() []param.Setting { return slices.Concat(commonSettings, meshSettings) }

// Guest is a kind of proxy as a subject of experiments.
type Guest struct{ Proxy Proxy }

// spreading estimates how much longer a trial takes because every proxy gets the configuration of every service: 1 ms
// for each service. It returns 0 if discovery is by policy.
func spreading(o param.Values) time.Duration {
	if o[settingDiscovery] != DiscoveryPermissive {
		return 0
	}
	return time.Duration(o.Int(settingServices)) * time.Millisecond
}

// Register registers a kind of proxy as a subject. Init functions call it.
func Register(p Proxy) { kind.Register(kind.Subject, Guest{p}) }

// About implements kind.Guest.
func (g Guest) About() kind.About {
	a := g.Proxy.About()
	settings := Settings()
	return kind.About{
		Name: a.Name, Summary: a.Summary, Settings: settings, Process: slices.Concat(settings, askingSettings),
		InPath: kind.Always, TakesLonger: spreading, Probes: g.probes,
	}
}

// Check implements kind.Checker.
func (g Guest) Check(o param.Values) error {
	if err := g.checkMesh(o); err != nil {
		return err
	}
	way := o[settingRedirect]
	if way != redirect.Explicit && !inPods(o) {
		return fmt.Errorf("%q works only in pods: write %s: %s", settingRedirect+": "+way,
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

// CheckSetup implements kind.SetupChecker. It refuses applications whose protocol the proxies do not understand, and
// setups with loads none of which goes to an application.
func (g Guest) CheckSetup(s *kind.Setup, _ string, part *kind.Part) error {
	understands := part.Options[settingProtocol]
	for name, a := range s.Applications {
		switch speaks := spoken(a); {
		case speaks == "" || speaks == kind.AnyProtocol || understands == ProtocolTCP:
		case slices.Contains(servedOver[understands], speaks):
		default:
			return fmt.Errorf("its proxies understand %s, and the application %s speaks %s: write protocol: %s to have "+
				"them carry bytes", understands, name, speaks, ProtocolTCP)
		}
	}
	if len(s.Loads) > 0 && !slices.ContainsFunc(loadsOf(s), func(p *kind.Part) bool { return p.To != "" }) {
		return errors.New("proxies stand between loads and applications, and no load goes to an application")
	}
	return nil
}

// servedOver maps the protocol of the proxies to the protocols that the applications behind them may have. An HTTP/2
// application also serves HTTP/1.1.
var servedOver = map[string][]string{
	ProtocolHTTP:  {ProtocolHTTP, "http1", "http2"},
	ProtocolHTTP2: {"http2"},
	ProtocolGRPC:  {"grpc"},
}

// spoken returns the protocol of an application: the value of its setting protocol, which applications of kind http
// have, and otherwise the protocol of its kind.
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

// Installed implements kind.Installed.
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

// Optional implements kind.Installed.
func (Guest) Optional(o param.Values) bool { return o.On(settingOptional) }

// Version implements kind.Versioned.
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

// probes returns probes for the kind's program, and for the features that all kinds need.
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

// sidecars is the feature that experiments with sidecars require.
var sidecars = newSidecars()

// newSidecars returns a probe for the kinds of proxies that every built-in experiment can use. nginx is not one of
// them: it cannot identify callers, and package nginx does not configure it for HTTP/2.
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

// Speaks implements measured.Speaker: the CPU time that proxies use is the metric to report.
func (Guest) Speaks(*kind.Setup) []string { return []string{"subject_cpus"} }

// Join implements kind.Joiner.
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

// Permissive reports whether every proxy knows every service.
func Permissive(o param.Values) bool { return o[settingDiscovery] == DiscoveryPermissive }

// ProtocolOf returns the protocol of the proxies.
func ProtocolOf(o param.Values) string { return o[settingProtocol] }
