// Package istiodtest writes Istio's configuration as YAML, for tests of what istiod sends.
package istiodtest

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Put writes a file into istiod's configuration directory in one step, so that istiod never reads part of it.
func Put(t testing.TB, dir, file, yaml string) {
	t.Helper()
	hidden := filepath.Join(filepath.Dir(dir), "new-"+file)
	if err := os.WriteFile(hidden, []byte(yaml), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(hidden, filepath.Join(dir, file)); err != nil {
		t.Fatal(err)
	}
}

// Service is a service outside of Kubernetes. Its host is NAME.mesh.test.
type Service struct {
	Name      string
	Address   netip.AddrPort // to which callers connect
	Protocol  string         // in Istio's spelling: TCP, HTTP, ...
	Endpoints []netip.AddrPort
}

// Host is the name by which callers and other objects know the service.
func (s Service) Host() string { return s.Name + ".mesh.test" }

// Entry returns the service's ServiceEntry. Its endpoints have the version labels v1, v2 and so on.
func (s Service) Entry() string {
	var b strings.Builder
	fmt.Fprintf(&b, `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: default}
spec:
  hosts: [%s]
  addresses: ["%s"]
  ports: [{number: %d, name: main, protocol: %s}]
  location: MESH_INTERNAL
  resolution: STATIC
  endpoints:
`, s.Name, s.Host(), s.Address.Addr(), s.Address.Port(), s.Protocol)
	for i, e := range s.Endpoints {
		fmt.Fprintf(&b, "  - {address: \"%s\", ports: {main: %d}, labels: {version: v%d}}\n", e.Addr(), e.Port(), i+1)
	}
	return b.String()
}

// Weighted returns the ServiceEntry, a DestinationRule with its first two endpoints as subsets v1 and v2, and a
// VirtualService that sends v1 per cent of the traffic to the subset v1 and the rest to v2.
func (s Service) Weighted(v1 int) string {
	kind := "tcp"
	if s.Protocol == "HTTP" {
		kind = "http"
	}
	return s.Entry() + fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: %[1]s, namespace: default}
spec:
  host: %[2]s
  subsets: [{name: v1, labels: {version: v1}}, {name: v2, labels: {version: v2}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: default}
spec:
  hosts: [%[2]s]
  %[3]s:
  - route:
    - {destination: {host: %[2]s, subset: v1}, weight: %[4]d}
    - {destination: {host: %[2]s, subset: v2}, weight: %[5]d}
`, s.Name, s.Host(), kind, v1, 100-v1)
}

// Policy returns an AuthorizationPolicy with which every workload of the namespace default accepts only requests that
// one of the rules allows. Rules are Istio's, in YAML's flow form.
func Policy(rules ...string) string {
	return `apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: policy, namespace: default}
spec: {action: ALLOW, rules: [` + strings.Join(rules, ", ") + `]}
`
}
