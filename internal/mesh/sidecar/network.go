package sidecar

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/link"
	"tare/internal/experiment/process"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/mesh/redirect"
	"tare/internal/scale/host/feature"
)

// networked holds the proxies of a trial in separate pods. It makes the pods when the first process needs them.
type networked struct {
	*joined
	once sync.Once
	err  error
}

// The interfaces that the engine looks for in addition to those of joined.
var _ interface {
	kind.Networked
	kind.Hoster
} = (*networked)(nil)

// ready makes the pods, unless they exist.
func (n *networked) ready() error {
	n.once.Do(func() { n.pods, n.err = redirect.NewPods() })
	return n.err
}

// Network implements kind.Networked. It returns the network of the loads' pod for a load, and the network of the
// applications' pod for an application or a component. A control plane is therefore in the applications' pod.
func (n *networked) Network(as kind.Role, _ string) (string, error) {
	if err := n.ready(); err != nil {
		return "", err
	}
	if as == kind.Load {
		return n.networkOf(Client), nil
	}
	return n.networkOf(Server), nil
}

// Host returns the address of the applications' pod.
func (n *networked) Host(string) (string, error) { return n.host(Server).String(), n.ready() }

// Start starts the proxies in the pods.
func (n *networked) Start(ctx context.Context) error {
	if err := n.ready(); err != nil {
		return err
	}
	return n.joined.Start(ctx)
}

// pod returns the pod of a component, or nil if the component is in the host's network.
func (j *joined) pod(component string) *link.Namespace {
	switch {
	case j.pods == nil:
		return nil
	case component == Client:
		return j.pods.Client
	}
	return j.pods.Server
}

// networkOf returns the path of a component's network namespace, or "" for the host's.
func (j *joined) networkOf(component string) string {
	if pod := j.pod(component); pod != nil {
		return pod.Path()
	}
	return ""
}

// host returns the address at which a component listens.
func (j *joined) host(component string) netip.Addr {
	if inPods(j.part.Options) && component != Client {
		return redirect.Server
	}
	return loopback
}

var loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})

// reserve reserves a port for a component in its network.
func (j *joined) reserve(component string) (r *process.Reservation, err error) {
	hold := func() error {
		r, err = process.Reserve(j.host(component))
		return err
	}
	if pod := j.pod(component); pod != nil {
		err = pod.Do(hold)
	} else {
		err = hold()
	}
	if err == nil {
		j.held = append(j.held, r)
	}
	return r, err
}

// dialer returns a function that connects from a component's network, or nil if that is the host's network.
func (j *joined) dialer(component string) func(ctx context.Context, network, address string) (net.Conn, error) {
	if pod := j.pod(component); pod != nil {
		return pod.DialContext
	}
	return nil
}

// from returns the address that clients connect to if their connections are redirected to a component: the service's
// address for the proxy beside a load, and the application's address for the proxy beside the application. It returns
// "" if clients connect to the component itself.
func (j *joined) from(component, address string) (string, error) {
	if wayOf(j.part.Options) == redirect.Explicit {
		return "", nil
	}
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return "", fmt.Errorf("redirecting connections to %s: %w", address, err)
	}
	if component == Client {
		at = netip.AddrPortFrom(redirect.Service, at.Port())
	}
	return at.String(), nil
}

// checkPlaces checks that the applications listen in their pod.
func (j *joined) checkPlaces(apps map[string]kind.App) error {
	if j.pods == nil {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(apps)) {
		at, err := netip.ParseAddrPort(apps[name].Address)
		if err != nil || at.Addr() != redirect.Server {
			return fault.New(fault.Usage, j.name, "write "+settingNetwork+": "+hostNetwork+", or have it listen at the "+
				"address that it gets", "the application %s serves at %s, which is not in its pod (%s)", name,
				apps[name].Address, redirect.Server)
		}
	}
	return nil
}

// redirect sets up the redirection of connections to the proxies.
func (j *joined) redirect() error {
	t := redirect.Taking{Way: wayOf(j.part.Options)}
	if t.Way == redirect.Explicit {
		return nil
	}
	if t.Way == redirect.EBPF {
		t.Connections = j.part.Options.Int(settingConnections)
		if t.Loads = j.trial.WorkDir(); t.Loads == "" {
			return redirect.NoHierarchy(j.name)
		}
	}
	for _, p := range j.proxies {
		from, err1 := netip.ParseAddrPort(p.place.From)
		to, err2 := netip.ParseAddrPort(p.place.Listen)
		if err := errors.Join(err1, err2, j.enter(p)); err != nil {
			return err
		}
		taken := redirect.Taken{To: from, Proxy: to}
		if p.place.Component == Server {
			t.Inbound = append(t.Inbound, taken)
			continue
		}
		t.Outbound = append(t.Outbound, taken)
		if t.Way == redirect.EBPF {
			t.Proxies = append(t.Proxies, p.group.V2Dir())
		}
	}
	var err error
	if j.rules, err = t.Install(j.pods); err != nil {
		return err
	}
	if t.Way == redirect.EBPF {
		j.trial.SetSubject(j.rules.Objects(), nil)
	}
	return nil
}

// Asked configures a process that checks, from the place where a load will run, that traffic gets through to an
// application.
type Asked struct {
	Over    string   `json:"over"`    // ProtocolHTTP and so on; for TCP, a connection that stays open is enough
	Listens []string `json:"listens"` // addresses that must accept a connection first
}

// Settings of the process that checks. Only Tare itself sets them.
const (
	addressKey = "address" // host:port to which a load will connect
	askedKey   = "asked"   // an Asked as JSON
)

var askingSettings = []param.Setting{
	{Name: addressKey, Type: param.TypeText, Reach: param.ReachAddress, Doc: "address to check, host:port"},
	{Name: askedKey, Type: param.TypeText, Reach: param.ReachAddress, Doc: "how to check the address, JSON"},
}

// At implements kind.Sited for the process that checks. Its at.Ready is an Asked, not an application's ready message.
func (Guest) At(at kind.Site) param.Values {
	return param.Values{addressKey: at.Address, askedKey: string(at.Ready)}
}

// Play runs the process that checks. It sends its ready message once traffic gets through to the application, and then
// waits until the parent closes its end.
func (Guest) Play(ctx context.Context, conn *role.Conn, o param.Values) error {
	var asked Asked
	if err := json.Unmarshal([]byte(o[askedKey]), &asked); err != nil {
		return fault.Wrap(err, fault.Usage, "", "tare calls this command itself", "--"+askedKey+" is invalid")
	}
	how, ok := asks[asked.Over]
	if !ok {
		return fmt.Errorf("there is no check over the protocol %q", asked.Over)
	}
	asking := func(ctx context.Context) error {
		// This comes first, because a packet to a proxy that does not listen yet can be lost, and would be sent again only a
		// second later.
		if err := knock(ctx, asked.Listens); err != nil {
			return err
		}
		return how(ctx, o[addressKey])
	}
	within, cancel := context.WithTimeout(ctx, o.Duration(settingReady))
	defer cancel()
	if err := until(within, asking); err != nil {
		return err
	}
	if err := conn.Send(role.Ready, struct{}{}); err != nil {
		return err
	}
	for {
		if _, err := conn.Receive(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// until calls asking, every askEvery, until it returns nil or ctx ends. If ctx ends, until returns the last error from
// before its end, or else the first error from after it.
func until(ctx context.Context, asking func(context.Context) error) error {
	var reason error
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for {
		err := asking(ctx)
		if err == nil {
			return nil
		}
		if reason == nil || ctx.Err() == nil {
			reason = err
		}
		select {
		case <-ctx.Done():
			return reason
		case <-tick.C:
		}
	}
}

// reachFromLoad waits until traffic gets through to an application from where a load will run. A process in the load's
// control group and network checks this, because connections of other processes are not redirected in the same way.
func (j *joined) reachFromLoad(ctx context.Context, app string) error {
	loads := j.trial.Setup().Loads
	names := slices.Sorted(maps.Keys(loads))
	at := slices.IndexFunc(names, func(name string) bool { return loads[name].To == app })
	if at < 0 {
		return nil // no load uses the application
	}
	asked := Asked{Over: j.over(app), Listens: j.listens(app)}
	ready, err := json.Marshal(asked)
	if err != nil {
		return fmt.Errorf("encoding a readiness check: %w", err)
	}
	argv, err := kind.Command(kind.Subject, j.guest, kind.Site{Address: j.entry[app], Ready: ready})
	if err != nil {
		return err
	}
	begin, err := j.trial.Begin(ctx, names[at])
	if err != nil {
		return err
	}
	argv = slices.Concat([]string{j.trial.Self()}, argv, j.part.Options.Args(j.guest.About().Settings))
	asker, err := role.Launch("the readiness check of "+app, argv, begin, func(error) {})
	if err != nil {
		return err
	}
	defer asker.Stop()
	within := j.part.Options.Duration(settingReady)
	dying, stop := context.WithCancel(ctx)
	var watching sync.WaitGroup
	for _, p := range j.proxies {
		watching.Go(func() {
			select {
			case <-p.running.Ended():
				stop()
			case <-dying.Done():
			}
		})
	}
	_, err = asker.ReadyWithin(dying, within+role.ReadyTimeout)
	stop()
	watching.Wait()
	if died := j.died("before it was ready"); died != nil {
		return died
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return j.unreached(err, app, within)
	}
	return nil
}

// lacks returns the probe for the kernel features that a way of redirection needs (see redirect.Ways).
var lacks = func() func(way string) *feature.Probe {
	probes := map[string]*feature.Probe{}
	for _, way := range redirect.Ways {
		name, needs := "redirect-"+way, "network namespaces; "+redirect.Needs(way)
		if way == redirect.Explicit {
			name, needs = "pods", "network namespaces and pairs of virtual interfaces (CONFIG_NET_NS, CONFIG_VETH)"
		}
		hint := "run as root, or with CAP_SYS_ADMIN and CAP_NET_ADMIN, on a kernel that has these features built in or " +
			"as modules (loaded modules stay loaded)"
		if way == redirect.EBPF {
			needs = "a mounted v2 hierarchy of control groups; " + needs
			hint += "; " + fault.HintOf(redirect.NoHierarchy(""))
		}
		probes[way] = feature.New(feature.Status{
			Name: name, Needs: needs, Lost: "arms with " + settingRedirect + ": " + way,
			Hint: hint, Leaves: "modules of the kernel loaded",
		}, func() (string, error) {
			if err := redirect.Check(way); err != nil {
				return "", err
			}
			return "works in network namespaces; kernel modules that this check loaded stay loaded", nil
		})
	}
	return func(way string) *feature.Probe { return probes[way] }
}()

// missing converts the error for a missing feature into a fault for the user who runs an experiment.
func missing(err error) error {
	if f, is := errors.AsType[*fault.Error](err); is {
		return f
	}
	hint := "see 'tare doctor'"
	if f, is := errors.AsType[*feature.MissingError](err); is && f.Hint != "" {
		hint = f.Hint
	}
	return fault.Wrap(err, fault.Machine, "", hint, "this machine lacks a feature that the arm needs")
}
