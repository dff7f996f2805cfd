package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
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

	"tare/internal/load/fleet"
	"tare/internal/subject/mesh/controlplane/authority"
	"tare/internal/subject/mesh/controlplane/proxyconfig"
)

// meshOf is a mesh of HTTP services with mutual TLS, each of one proxy and called by those of the next three. Endpoints
// tell the change.
func meshOf(services, change int) *proxyconfig.Config {
	c := &proxyconfig.Config{MTLS: "strict", Discovery: "policy"}
	for i := range services {
		name := fmt.Sprint("s", i)
		s := proxyconfig.Service{Name: name, Protocol: "http", Address: fmt.Sprintf("10.0.0.%d:80", i+1),
			Endpoints: []proxyconfig.Endpoint{{Address: fmt.Sprintf("10.1.0.%d:%d", i+1, 1+change)}}}
		for j := range 3 {
			s.Access = append(s.Access, proxyconfig.Access{From: []string{fmt.Sprint("s", (i+j+1)%services)}})
		}
		if change%services == i { // one that may be called by more
			s.Access = append(s.Access, proxyconfig.Access{From: []string{fmt.Sprint("s", (i+5)%services)}})
		}
		c.Services = append(c.Services, s)
		c.Proxies = append(c.Proxies, proxyconfig.Proxy{ID: fmt.Sprint("p", i), Identity: name,
			Inbound: map[string]proxyconfig.Inbound{name: {Listen: "0.0.0.0:15006", To: "127.0.0.1:80"}}})
	}
	return c
}

// TestControlPlaneKilled: whenever a control plane is killed, and whatever changes meanwhile, proxies have in the end
// what the configuration says, resource by resource, from the one that is started in its place.
func TestControlPlaneKilled(t *testing.T) {
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
			credentials, roots, file := filepath.Join(dir, "credentials"), filepath.Join(dir, "roots"), filepath.Join(dir, "mesh.yaml")
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
			l, err := net.Listen("tcp", "127.0.0.1:0") // for a port that the next one can have too
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
			f := fleet.New(proxies, fleet.Options{
				Address: address, Delta: delta, Keep: true, Again: 50 * time.Millisecond,
				Node:   func(i int) *corev3.Node { return &corev3.Node{Id: fmt.Sprint("p", i)} },
				MarkOf: func(*endpointv3.ClusterLoadAssignment) fleet.Mark { return fleet.Mark{} },
				TLS: func(i int) *tls.Config {
					own := func() (authority.Credentials, error) {
						return authority.ReadEnvoy(filepath.Join(credentials, fmt.Sprint("p", i)))
					}
					return authority.ClientTLS(own, authority.ControlPlane(authority.DefaultTrustDomain))
				},
			})
			defer f.Close()
			if err := f.Connect(t.Context(), 0, proxies); err != nil {
				t.Fatal(err)
			}
			converges(t, f, meshOf(proxies, 0))
			for i := range kills {
				next := meshOf(proxies, i+1)
				before, moment := random.IntN(2) == 0, time.Duration(random.IntN(300))*time.Millisecond
				if before { // it is killed while it tells of the change
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
				converges(t, f, next)
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
func converges(t *testing.T, f *fleet.Fleet, c *proxyconfig.Config) {
	t.Helper()
	m, err := c.Compile()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for i := range f.Len() {
		want := toldBy(t, f, m, fmt.Sprint("p", i))
		for !hasAll(f.Has(i), want) {
			select {
			case <-ctx.Done():
				t.Errorf("proxy %d has %v, want %v and secrets", i, f.Has(i), want)
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}
}

// toldBy is what a mesh tells a proxy, by type and name, but for secrets.
func toldBy(t *testing.T, f *fleet.Fleet, m *proxyconfig.Mesh, id string) map[string]map[string]uint64 {
	t.Helper()
	r, err := m.For(id)
	if err != nil {
		t.Fatal(err)
	}
	var all []proto.Message
	all = append(all, messagesOf(r.Clusters)...)
	all = append(all, messagesOf(r.Endpoints)...)
	all = append(all, messagesOf(r.Listeners)...)
	all = append(all, messagesOf(r.Routes)...)
	want := map[string]map[string]uint64{}
	for _, x := range all {
		url, name, digest, err := f.Digest(x)
		if err != nil {
			t.Fatal(err)
		}
		if want[url] == nil {
			want[url] = map[string]uint64{}
		}
		want[url][name] = digest
	}
	return want
}

func messagesOf[T proto.Message](list []T) (out []proto.Message) {
	for _, m := range list {
		out = append(out, m)
	}
	return out
}

// hasAll says whether a proxy has what it is told and nothing else, and both of its secrets, which differ each time.
func hasAll(has, want map[string]map[string]uint64) bool {
	for _, url := range []string{resource.ClusterType, resource.EndpointType, resource.ListenerType, resource.RouteType} {
		if !maps.Equal(has[url], want[url]) {
			return false
		}
	}
	return slices.Equal(slices.Sorted(maps.Keys(has[resource.SecretType])), []string{authority.IdentitySecret, authority.RootsSecret})
}
