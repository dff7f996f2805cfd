package plane

import (
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"tare/internal/experiment/child"
	"tare/internal/experiment/kind"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/bootstrap"
	"tare/internal/mesh/controlplane/proxyconfig"
	"tare/internal/mesh/fleet"
)

// CheckSetup implements kind.SetupChecker.
func (guest) CheckSetup(s *kind.Setup, _ string, part *kind.Part) error {
	if part.Options.Int(envoysKey) == 0 {
		return nil
	}
	_, err := endpointsOf(s)
	return err
}

// endpointsOf returns the names of the two applications between which changes of effectService alternate.
func endpointsOf(s *kind.Setup) (names [2]string, err error) {
	n := 0
	for _, name := range slices.Sorted(maps.Keys(s.Applications)) {
		if s.Applications[name].Name() == "http" && n < 2 {
			names[n] = name
			n++
		}
	}
	if n < 2 || s.Applications[names[0]].Options["body"] == s.Applications[names[1]].Options["body"] {
		return names, fmt.Errorf("%s need two applications of kind http whose body differs, to distinguish their answers",
			envoysKey)
	}
	return names, nil
}

// endpoint is an application that shows a change by the length of its answers, in bytes.
type endpoint struct {
	address string
	length  int
}

// effectOf parses the setting effect. It returns nil if the text is empty.
func effectOf(text string) (two []endpoint, err error) {
	if text == "" {
		return nil, nil
	}
	for word := range strings.SplitSeq(text, ",") {
		address, length, _ := strings.Cut(word, "=")
		n, err := strconv.Atoi(length)
		if _, wrong := netip.ParseAddrPort(address); wrong != nil || err != nil {
			return nil, fmt.Errorf("%s: write ADDRESS=BODY,ADDRESS=BODY, and not %q", effectKey, text)
		}
		two = append(two, endpoint{address, n})
	}
	if len(two) != 2 {
		return nil, fmt.Errorf("%s: %d applications, and not two", effectKey, len(two))
	}
	return two, nil
}

// effectService is the name of the service that shows the effect of a change. envoyName is the identity and the cluster
// name of all Envoys, and the prefix of their ids.
const (
	effectService = "effect"
	envoyName     = "envoy"
)

func envoyID(i int) string { return fmt.Sprint(envoyName, "-", i) }

// toEnvoys adds the Envoys, and the service that only they call. No proxy of the mesh serves it, so it is called
// without TLS.
func (o options) toEnvoys(c *proxyconfig.Config) {
	if len(o.listen) == 0 {
		return
	}
	c.Services = append(c.Services, proxyconfig.Service{Name: effectService, Protocol: "http", Endpoints: o.shown(0),
		Access: []proxyconfig.Access{{From: []string{envoyName}}}})
	for i, at := range o.listen {
		c.Proxies = append(c.Proxies, proxyconfig.Proxy{ID: envoyID(i), Identity: envoyName,
			Outbound: map[string]string{effectService: at}})
	}
}

// shown returns the endpoint that effectService has after the given number of changes.
func (o options) shown(changes int) []proxyconfig.Endpoint {
	return []proxyconfig.Endpoint{{Address: o.effect[changes%2].address}}
}

// bootstraps writes the bootstraps of Envoys. It returns nil if there are none.
func (o options) bootstraps(address string, by *authority.Authority) (*fleet.Effect, error) {
	if len(o.listen) == 0 {
		return nil, nil
	}
	program, err := child.Find(o.envoy)
	if err != nil {
		return nil, fmt.Errorf("looking for Envoy: %w", err)
	}
	e := &fleet.Effect{Program: program, Service: o.Services, Lengths: [2]int{o.effect[0].length, o.effect[1].length}}
	for i, at := range o.listen {
		dir := filepath.Join(o.credentials, envoyID(i))
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, fmt.Errorf("making an Envoy's directory: %w", err)
		}
		var c authority.Credentials
		if o.mtls {
			id, err := authority.Identity(by.TrustDomain(), envoyName)
			if err != nil {
				return nil, err
			}
			if c, err = by.Credentials(id); err != nil {
				return nil, err
			}
		}
		b := bootstrap.Envoy{Node: envoyID(i), Cluster: envoyName, ControlPlane: address}
		if err := c.WriteEnvoy(dir, b); err != nil {
			return nil, err
		}
		file := filepath.Join(dir, authority.EnvoyBootstrapFile)
		e.Envoys = append(e.Envoys, fleet.Envoy{Bootstrap: file, Listen: at})
	}
	return e, nil
}
