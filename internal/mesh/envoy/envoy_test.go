package envoy

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	httprbacv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"

	"tare/internal/lib/param"
	"tare/internal/mesh/sidecar"
	"tare/internal/mesh/sidecar/driven"
	"tare/test/driventest"
	envoytest "tare/test/envoy"
	"tare/test/sidecartest"
	"tare/test/speed"
	"tare/test/vm/guest"
)

// TestMain lets the test binary be the control plane when it is started with tare's arguments.
func TestMain(m *testing.M) {
	driventest.ControlPlane()
	sidecartest.Main(m)
}

// TestConform runs real Envoys with the real control plane.
func TestConform(t *testing.T) {
	envoy := envoytest.Path(t)
	t.Setenv("PATH", filepath.Dir(envoy)+":"+os.Getenv("PATH"))
	sidecartest.Conform(t, proxy{}, sidecartest.Options{
		Identities: true, Needs: "envoy",
		Validate: func(t *testing.T, f sidecar.Found, dir string) {
			bootstrap := filepath.Join(filepath.Dir(dir), "credentials", f.Component+"-"+f.App, "envoy.json")
			if out, err := exec.Command(envoy, "--mode", "validate", "-c", bootstrap).CombinedOutput(); err != nil {
				t.Errorf("%s: Envoy says of its bootstrap: %v\n%s", f.Component, err, out)
			}
			requests, rejected := 0.0, 0.0
			for name, v := range f.Own {
				switch {
				case strings.HasSuffix(name, ".downstream_rq_total"):
					requests += v
				case strings.HasSuffix(name, ".update_rejected"):
					rejected += v
				}
			}
			if allocated, heap := f.Own["memory.allocated"], f.Own["memory.heap_size"]; allocated < 1e6 || heap < allocated {
				t.Errorf("%s says that %g bytes of a heap of %g are in use", f.Component, allocated, heap)
			}
			if requests < 1 || rejected > 0 || f.Own["control_plane.connected_state"] != 1 {
				t.Errorf("%s counted %v", f.Component, f.Own)
			}
		},
	})
}

// ungranted are Envoys in a mesh without the last access rule, which is the client's.
type ungranted struct{ proxy }

func (ungranted) Drive(ctx context.Context, d sidecar.Drive) (any, error) {
	c := driven.MeshOf(d.Proxies)
	s := &c.Services[0]
	s.Access = s.Access[:len(s.Access)-1]
	c.Discovery = "permissive" // so that the client gets the service nevertheless
	return driven.StartMesh(ctx, d, c)
}

// TestRulesDecide: without the client's rule Envoy checks all the other rules and refuses the request. The error comes
// when the time limit is over, in which Envoy must have started; otherwise the limit is raised.
func TestRulesDecide(t *testing.T) {
	t.Setenv("PATH", filepath.Dir(envoytest.Path(t))+":"+os.Getenv("PATH"))
	refused := false
	for _, limit := range []time.Duration{2 * time.Second, 10 * time.Second, time.Minute} {
		t.Run(limit.String(), func(t *testing.T) { // a subtest, so that its groups are gone before the next
			app := sidecartest.NewApp(t, "server")
			x := sidecartest.NewTrial(t, map[string]string{"server": app.Address})
			_, err := x.Start(sidecar.Guest{Proxy: ungranted{}},
				param.Values{"rules": "60", "ready-timeout": speed.Scale(limit).String()})
			if n := app.Requests.Load(); err == nil || n != 0 {
				t.Fatalf("without the rule for the client: %v; %d requests reached the application", err, n)
			}
			refused = strings.Contains(err.Error(), "the answer was status 403")
			t.Log(err)
		})
		if refused || t.Failed() {
			return
		}
	}
	t.Error("without the rule for the client, no answer came")
}

// TestRulesInOrder: the names of the policies, by which Envoy sorts them, are in the order of the rules.
func TestRulesInOrder(t *testing.T) {
	guest.KernelFree(t)
	server := sidecar.Place{Component: sidecar.Server, App: "server", Protocol: "http", AcceptTLS: true,
		Identity: "spiffe://mesh.local/ns/default/sa/server", Listen: "127.0.0.1:1", To: "127.0.0.1:2",
		Options: param.Values{"discovery": "policy"}}
	client := sidecar.Place{Component: sidecar.Client, App: "server", Identity: "spiffe://mesh.local/ns/default/sa/me",
		Listen: "127.0.0.1:3"}
	for i := range 150 {
		server.Rules = append(server.Rules, fmt.Sprintf("spiffe://mesh.local/ns/default/sa/caller-%d", i))
	}
	server.Rules = append(server.Rules, client.Identity)
	m, err := driven.MeshOf([]sidecar.Place{server, client}).Compile()
	if err != nil {
		t.Fatal(err)
	}
	r, err := m.For(driven.Node(server))
	if err != nil {
		t.Fatal(err)
	}
	var hcm hcmv3.HttpConnectionManager
	if err := r.Listeners[0].FilterChains[0].Filters[0].GetTypedConfig().UnmarshalTo(&hcm); err != nil {
		t.Fatal(err)
	}
	var rbac httprbacv3.RBAC
	if err := hcm.HttpFilters[0].GetTypedConfig().UnmarshalTo(&rbac); err != nil {
		t.Fatal(err)
	}
	policies := rbac.GetRules().GetPolicies()
	names := slices.Sorted(maps.Keys(policies))
	if len(names) != len(server.Rules) {
		t.Fatalf("%d policies of %d rules", len(names), len(server.Rules))
	}
	for i, name := range names {
		got := policies[name].GetPrincipals()[0].GetAuthenticated().GetPrincipalName().GetExact()
		if got != server.Rules[i] {
			t.Fatalf("policy %d, %s, is for %s, not %s", i, name, got, server.Rules[i])
		}
	}
}

// TestDecode: invalid statistics are an error, and similar names are distinguished.
func TestDecode(t *testing.T) {
	guest.KernelFree(t)
	own, err := decode(strings.NewReader(`{"stats":[{"name":"http.in.downstream_rq_total","value":7},
		{"name":"http.admin.downstream_rq_total","value":9},{"name":"other","value":1},{"histograms":{}},
		{"name":"text.update_success","value":"many"}]}`), kept)
	if err != nil || len(own) != 1 || own["http.in.downstream_rq_total"] != 7 {
		t.Errorf("%v, %v", own, err)
	}
	if _, err := decode(strings.NewReader(`{"stats":[`), kept); err == nil {
		t.Error("half an answer is taken")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"stats":[{"name":"http.in.downstream_rq_total","value":7}]}`)
	f.Fuzz(func(_ *testing.T, text string) { _, _ = decode(strings.NewReader(text), kept) })
}
