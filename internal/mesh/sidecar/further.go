package sidecar

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
)

// Other is a further service of the mesh, without callers and servers. Its only cost is the configuration that proxies
// hold for it.
type Other struct {
	Name     string
	Identity string // the SPIFFE ID of its servers
	Listen   string // host:port at which the proxy accepts connections to the service; empty: it accepts none
	To       string // host:port of its endpoint
}

// The names of the settings about the mesh, for all kinds of proxies.
const (
	settingServices  = "services"
	settingDiscovery = "discovery"
	settingThen      = "then-services"
	settingRules     = "rules"
	settingLife      = "certificate-life"
)

// Values of the setting discovery.
const (
	DiscoveryPolicy     = "policy"
	DiscoveryPermissive = "permissive"
)

// maxServices and maxRules limit the size of a configuration.
const (
	maxServices = 10_000
	maxRules    = 10_000
)

var meshSettings = []param.Setting{
	{Name: settingServices, Type: param.TypeCount, Default: "1", Min: 1, Max: maxServices,
		Phrase: map[string]string{"": "with {} services", "1": "with one service"},
		Doc:    "services of the mesh: one for each application, and others without callers and servers"},
	{Name: settingDiscovery, Type: param.TypeWord, Default: DiscoveryPolicy,
		Words: []string{DiscoveryPolicy, DiscoveryPermissive},
		Phrase: map[string]string{
			"policy": "with discovery by policy", "permissive": "with permissive discovery",
		},
		Doc: "services that a proxy knows: those that it may call (`policy`), or all; each has an upstream, and a listener " +
			"in the client's proxy"},
	{Name: settingThen, Type: param.TypeCount, Min: 1, Max: maxServices,
		Doc: "services to keep after the load, when memory is read again; only for proxies that a control plane configures"},
	{Name: settingRules, Type: param.TypeCount, Default: "0", Max: maxRules,
		Phrase: map[string]string{"": "with {} access rules", "1": "with one access rule", "0": "without access rules"},
		Doc: "access rules of each application, checked by the server's proxy; each allows one identity, the last the " +
			"client's"},
	{Name: settingLife, Type: param.TypeDuration, Min: 1, Max: 86400,
		Phrase: map[string]string{"": "with certificates that end after {}"},
		Doc: "life of certificates, which are replaced at half of it; only for proxies that a control plane configures; " +
			"1h when left out"},
}

// Rules returns the number of access rules in the options.
func Rules(o param.Values) int { return o.Int(settingRules) }

// CertificateLife returns the life of certificates in the options, or 0 for the control plane's default.
func CertificateLife(o param.Values) time.Duration { return o.Duration(settingLife) }

// checkMesh refuses settings about the mesh that contradict other settings, or that the kind of proxy does not support.
func (g Guest) checkMesh(o param.Values) error {
	if Rules(o) > 0 && (!MTLS(o) || ProtocolOf(o) == ProtocolTCP) {
		return fmt.Errorf("%q check who makes a request, so they need two hops, mtls, and a protocol other than %s",
			settingRules, ProtocolTCP)
	}
	if o[settingLife] != "" {
		if _, driven := g.Proxy.(Driven); !driven || !MTLS(o) {
			return fmt.Errorf("%q needs two hops, mtls, and proxies that a control plane configures, unlike %s",
				settingLife, g.Proxy.About().Name)
		}
	}
	if o[settingThen] == "" {
		return nil
	}
	if _, ok := g.Proxy.(Changer); !ok {
		return fmt.Errorf("%q needs proxies whose services can change while they run, unlike those of %s",
			settingThen,
			g.Proxy.About().Name)
	}
	if o.Int(settingThen) > o.Int(settingServices) {
		return fmt.Errorf("%q is more than %q", settingThen, settingServices)
	}
	return nil
}

// callers returns the identities of n access rules, in the order in which they are checked. The last is the identity of
// the caller.
func callers(n int, caller string) (all []string) {
	for i := range n - 1 {
		all = append(all, fmt.Sprintf("spiffe://%s/ns/default/sa/caller-%05d", trustDomain, i+1))
	}
	if n > 0 {
		all = append(all, caller)
	}
	return all
}

// others returns count further services for a proxy of the given component. If that is Client, the proxy listens for
// them at separate addresses and one port. The port must be reserved at 127.0.0.1, so that the kernel does not give it
// to another process as a free port (process.Reservation). Other components ignore it.
func others(component string, count int, port string) (all []Other) {
	for n := range count {
		// Proxies listen in 127.64.0.0/10, where no other process listens. Endpoints are in 198.18.0.0/15, which is reserved
		// for benchmarks.
		o := Other{
			Name: fmt.Sprintf("further-%05d", n+1),
			To:   fmt.Sprintf("198.%d.%d.%d:8080", 18+n>>16&1, n>>8&0xff, n&0xff),
		}
		o.Identity = "spiffe://" + trustDomain + "/ns/default/sa/" + o.Name
		if component == Client {
			o.Listen = net.JoinHostPort(fmt.Sprintf("127.%d.%d.%d", 64+n>>16, n>>8&0xff, n&0xff), port)
		}
		all = append(all, o)
	}
	return all
}

// know sets p.Others, the further services that a proxy knows. Each application already has one of the mesh's services.
func (j *joined) know(p *Place, applications int) error {
	o := j.part.Options
	count := o.Int(settingServices) - applications
	if count <= 0 || j.driven() == nil && o[settingDiscovery] == DiscoveryPolicy {
		return nil
	}
	port := ""
	if p.Component == Client {
		r, err := j.reserve(p.Component)
		if err != nil {
			return err
		}
		if _, port, err = net.SplitHostPort(r.Address); err != nil {
			return err
		}
	}
	p.Others = others(p.Component, count, port)
	return nil
}

// settled waits until every proxy has put all of its configuration into effect. The argument what describes the
// configuration in errors. If the kind of proxy is not a Settler, settled does not wait.
func (j *joined) settled(ctx context.Context, what string) error {
	s, ok := j.proxy.(Settler)
	if !ok {
		return nil
	}
	within := j.part.Options.Duration(settingReady)
	ctx, cancel := context.WithTimeoutCause(ctx, within, fault.New(fault.Machine, j.name, "raise "+settingReady+
		" if this machine needs longer", "the proxies had not put %s into effect within %v", what, within))
	defer cancel()
	for _, p := range j.proxies {
		for {
			done, err := s.Settled(ctx, p.place)
			if done {
				break
			}
			if died := j.died("before it had put " + what + " into effect"); died != nil {
				return died
			}
			if ended := pace.Sleep(ctx, settleEvery); ended != nil {
				return errors.Join(ended, err)
			}
		}
	}
	return nil
}

const (
	settleEvery = 20 * time.Millisecond
	// giveBack is how long proxies get to return freed memory.
	giveBack = 200 * time.Millisecond
)

// readingFewer is the name of the reading that a trial takes after services were removed (record.Trial.Further).
const readingFewer = "fewer"

// down removes services while the proxies run, as the setting then-services says, and reads all counters again once the
// proxies have dropped them.
func (j *joined) down(ctx context.Context) error {
	c, ok := j.proxy.(Changer)
	if !ok || j.part.Options[settingThen] == "" || len(j.proxies) == 0 {
		return nil
	}
	left := max(0, j.part.Options.Int(settingThen)-len(j.trial.Applications()))
	places := make([]Place, len(j.proxies))
	for i, p := range j.proxies {
		p.place.Others = p.place.Others[:min(left, len(p.place.Others))]
		places[i] = p.place
	}
	control, err := c.Change(ctx, places[0].Control,
		Drive{Trial: j.trial, Part: j.part, Dir: j.files.Path(), Proxies: places})
	if err != nil {
		return fmt.Errorf("taking services away from %s: %w", j.name, err)
	}
	for _, p := range j.proxies {
		p.place.Control = control
	}
	if err := j.settled(ctx, "the removal of services"); err != nil {
		return err
	}
	if err := pace.Sleep(ctx, giveBack); err != nil {
		return err
	}
	if err := j.trial.Read(ctx, readingFewer); err != nil {
		return err
	}
	for i, p := range j.proxies {
		if j.evidence.Proxies[i].OwnFewer, err = j.own(ctx, p); err != nil {
			j.evidence.Proxies[i].Unsaid = err.Error()
		}
	}
	return nil
}
