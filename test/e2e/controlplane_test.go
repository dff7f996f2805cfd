package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"google.golang.org/protobuf/proto"

	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/proxyconfig"
	"tare/internal/mesh/fleet"
	"tare/test/envoy/secret"
	"tare/test/fleettest"
	"tare/test/long"
	"tare/test/ring"
)

// meshOf returns a ring with mutual TLS after the given number of changes. Each changes all endpoints, and who may call
// one of the services.
func meshOf(services, change int) *proxyconfig.Config {
	c := ring.Mesh{Services: services, Calls: 3, MTLS: "strict"}.Config(1 + change)
	s := &c.Services[change%services]
	s.Access = append(s.Access, proxyconfig.Access{From: []string{ring.Service((change + 5) % services)}})
	return c
}

// TestControlPlaneKilled: whenever a control plane is killed, and whatever changes meanwhile, the one that is started
// in its place gives each proxy, in the end, exactly the resources that the configuration says.
func TestControlPlaneKilled(t *testing.T) {
	long.Test(t, "6 s: a control plane killed while trials run")
	const proxies = 30
	kills := 4
	if os.Getenv("TARE_KILLS") != "" {
		kills = 20
	}
	for _, delta := range []bool{false, true} {
		t.Run(map[bool]string{false: "world", true: "delta"}[delta], func(t *testing.T) {
			seed := uint64(time.Now().UnixNano())
			random := rand.New(rand.NewPCG(seed, 0))
			t.Logf("seed %d", seed)
			dir := t.TempDir()
			credentials, roots, file := filepath.Join(dir, "credentials"), filepath.Join(dir, "roots"), filepath.Join(dir,
				"mesh.yaml")
			for _, name := range []string{credentials, roots} {
				if err := os.Mkdir(name, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			write := func(c *proxyconfig.Config) {
				t.Helper()
				b, err := json.Marshal(c)
				if err == nil {
					err = os.WriteFile(file+".new", b, 0o600)
				}
				if err == nil {
					err = os.Rename(file+".new", file)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			write(meshOf(proxies, 0))
			l, err := net.Listen("tcp", "127.0.0.1:0") // only to find a port that each control plane in turn can use
			if err != nil {
				t.Fatal(err)
			}
			address := l.Addr().String()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			start := func() *process {
				t.Helper()
				p := command{timeout: 10 * time.Minute, args: []string{"controlplane", "--human", "--config", file,
					"--listen", address, "--credentials", credentials, "--roots", roots}}.start(t)
				p.waitFor(t, "listens at")
				return p
			}
			plane := start()
			var kept fleettest.Kept
			f := fleet.New(proxies, fleet.Options{
				Address: address, Delta: delta, OnHave: kept.Keep, Again: 50 * time.Millisecond,
				Node:   func(i int) *corev3.Node { return &corev3.Node{Id: ring.Proxy(i)} },
				MarkOf: func(*endpointv3.ClusterLoadAssignment) fleet.Mark { return fleet.Mark{} },
				TLS: func(i int) *tls.Config {
					own := func() (authority.Credentials, error) {
						return secret.Credentials(filepath.Join(credentials, ring.Proxy(i)))
					}
					return authority.ClientTLS(own, authority.ControlPlane(authority.DefaultTrustDomain))
				},
			})
			defer f.Close()
			if err := f.Connect(t.Context(), 0, proxies); err != nil {
				t.Fatal(err)
			}
			converges(t, f, &kept, meshOf(proxies, 0))
			for i := range kills {
				next := meshOf(proxies, i+1)
				before, moment := random.IntN(2) == 0, time.Duration(random.IntN(300))*time.Millisecond
				if before { // it is killed while it sends the change
					write(next)
				}
				time.Sleep(moment)
				plane.signal(t, syscall.SIGKILL)
				<-plane.done
				if !before {
					write(next)
				}
				plane = start()
				if random.IntN(3) == 0 { // and once more while all come back
					time.Sleep(time.Duration(random.IntN(100)) * time.Millisecond)
					plane.signal(t, syscall.SIGKILL)
					<-plane.done
					plane = start()
				}
				converges(t, f, &kept, next)
				if t.Failed() {
					t.Fatalf("kill %d, written before it: %v, after %s", i, before, moment)
				}
			}
			plane.signal(t, syscall.SIGTERM)
			if o := plane.wait(t); o.code != 0 {
				t.Error(o)
			}
			t.Logf("%+v", f.Counts())
		})
	}
}

// converges waits until each proxy has what a configuration says for it, and its secrets.
func converges(t *testing.T, f *fleet.Fleet, kept *fleettest.Kept, c *proxyconfig.Config) {
	t.Helper()
	m, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range f.Len() {
		want := toldBy(t, f, m, ring.Proxy(i))
		for !hasAll(kept.Has(i), want) {
			select {
			case <-ctx.Done():
				t.Errorf("proxy %d has %v, want %v and secrets", i, kept.Has(i), want)
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// toldBy returns what a mesh sends to a proxy, as digests by type and name, without secrets.
func toldBy(t *testing.T, f *fleet.Fleet, m *proxyconfig.Mesh, id string) map[string]map[string]uint64 {
	t.Helper()
	r, err := m.For(id)
	if err != nil {
		t.Fatal(err)
	}
	want, err := fleettest.Digests(f.Digest, slices.Concat(messages(r.Clusters), messages(r.Endpoints),
		messages(r.Listeners), messages(r.Routes)))
	if err != nil {
		t.Fatal(err)
	}
	return want
}

// hasAll reports whether a proxy has what the mesh sends it and nothing else, and both of its secrets, whose content
// differs each time.
func hasAll(has, want map[string]map[string]uint64) bool {
	return hasTold(has, want) &&
		slices.Equal(slices.Sorted(maps.Keys(has[resource.SecretType])),
			[]string{authority.IdentitySecret, authority.RootsSecret})
}

// hasTold is like hasAll, but does not look at the secrets.
func hasTold(has, want map[string]map[string]uint64) bool {
	for _, url := range []string{resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType} {
		if !maps.Equal(has[url], want[url]) {
			return false
		}
	}
	return true
}

// messages converts a list of messages of one type to a list of any messages.
func messages[T proto.Message](list []T) (out []proto.Message) {
	for _, m := range list {
		out = append(out, m)
	}
	return out
}
