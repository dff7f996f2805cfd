package istiod

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/role"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/mesh/services"
	"tare/internal/scale/host/feature"
)

func init() { kind.Register(kind.Application, guest{}) }

// guest implements the application for the engine.
type guest struct{}

// Interfaces that the engine looks for.
var (
	_ kind.Player    = guest{}
	_ kind.Checker   = guest{}
	_ kind.Installed = guest{}
)

// About implements kind.Guest.
func (guest) About() kind.About {
	return kind.About{
		Name: "istiod",
		Summary: "a whole mesh under Istio's control plane: generated services, as ServiceEntries, whose endpoints " +
			"change when a load of kind `push` asks for it",
		Settings: settings,
		Protocol: services.Protocol,
		Probes:   probes,
	}
}

// Names of the settings.
const (
	servicesKey  = "services"
	endpointsKey = "endpoints"
	debounceKey  = "debounce"
	behindKey    = "behind"
)

// maxServices limits the mesh. If 10,000 services have the maximum number of endpoints, the addresses in 127.0.0.0/8
// are enough for 13 distinguishable changes.
const maxServices = 10_000

var settings = []param.Setting{
	{Name: servicesKey, Type: param.TypeCount, Default: "100", Max: maxServices,
		Phrase: map[string]string{"": "in a mesh of {} services", "1": "in a mesh of one service"},
		Doc:    "services of the mesh, each a ServiceEntry with a TCP port"},
	{Name: endpointsKey, Type: param.TypeCount, Default: "20", Min: 1, Max: services.MaxEndpoints,
		Doc: "endpoints of each service"},
	{Name: debounceKey, Type: param.TypeDuration, Default: "100ms", Max: 60,
		Phrase: map[string]string{"": "with a debounce time of {}"},
		Doc:    "time that istiod waits for more changes before it pushes one (PILOT_DEBOUNCE_AFTER)"},
	{Name: behindKey, Type: param.TypeText, Reach: param.ReachAddress,
		Doc: "further services with one endpoint that never changes: ADDRESS=ENDPOINT, separated by commas, such as " +
			"10.96.0.1:80=127.0.0.1:8080"},
}

// Check implements kind.Checker. It checks the syntax of the setting behind.
func (guest) Check(o param.Values) error {
	_, err := behind(o[behindKey])
	return err
}

// behind parses the setting behind. Each further service has one endpoint.
func behind(text string) (all []Service, err error) {
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		at, to, _ := strings.Cut(part, "=")
		address, err := netip.ParseAddrPort(at)
		endpoint, err2 := netip.ParseAddrPort(to)
		if err := errors.Join(err, err2); err != nil {
			return nil, fmt.Errorf("%s: write ADDRESS=ENDPOINT, each IP:PORT: %q: %w", behindKey, part, err)
		}
		all = append(all, Service{
			Name: fmt.Sprintf("app-%d", len(all)), Address: address, Protocol: "TCP", Endpoints: []netip.AddrPort{endpoint},
		})
	}
	return all, nil
}

// Installed returns an error of code fault.Machine if pilot-discovery is not installed.
func (guest) Installed(context.Context, param.Values) error {
	_, err := Find()
	return err
}

// ControlPlane returns the command line with which the tare binary at the path self runs an istiod for a subject. The
// process speaks the protocol of package role, and its ready message is a services.Ready. services maps the address of
// each service to its only endpoint, both as IP:PORT.
func ControlPlane(self string, services map[string]string) ([]string, error) {
	argv, err := kind.Command(kind.Application, guest{}, kind.Site{})
	if err != nil {
		return nil, err
	}
	list := lists.Map(slices.Sorted(maps.Keys(services)), func(at string) string { return at + "=" + services[at] })
	v := param.Values{servicesKey: "0", behindKey: strings.Join(list, ",")}
	return append(append([]string{self}, argv...), v.Args(settings)...), nil
}

// Node returns the node ID and the metadata with which a data plane connects to istiod as the sidecar of a workload at
// the given address.
func Node(at netip.Addr) (id string, metadata map[string]string) {
	return NodeOf("web", defaultNamespace, at)
}

// NodeOf returns the node ID and the metadata of the sidecar of the named pod.
func NodeOf(pod, namespace string, at netip.Addr) (id string, metadata map[string]string) {
	return "sidecar~" + at.String() + "~" + pod + "." + namespace + "~" + namespace + ".svc." + domain,
		map[string]string{"ISTIO_VERSION": Version, "CLUSTER_ID": "tare", "NAMESPACE": namespace}
}

// Optional implements kind.Installed. It returns false, because there is nothing to measure without the application.
func (guest) Optional(param.Values) bool { return false }

// probes returns the probe for pilot-discovery.
func probes() []*feature.Probe {
	status := feature.Status{
		Name: name, Needs: "the program " + name, Lost: "experiments with the application istiod", Hint: buildHint,
	}
	return []*feature.Probe{feature.New(status, func() (string, error) {
		path, err := Find()
		if err != nil {
			return "not installed", err
		}
		return path, nil
	})}
}

// Play runs the application's process.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	return role.Play(ctx, conn, func(ctx context.Context) (err error) {
		others, err := behind(v[behindKey])
		if err != nil {
			return err
		}
		m, err := startMesh(ctx, v.Int(servicesKey), v.Int(endpointsKey), v.Duration(debounceKey), others)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, m.Close()) }()
		if err := conn.Send(role.Ready, m.ready); err != nil {
			return err
		}
		return m.serve(ctx)
	})
}
