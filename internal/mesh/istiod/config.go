package istiod

import (
	"encoding/json"
	"net/netip"
)

// defaultNamespace is the namespace of services without one.
const defaultNamespace = "default"

// Service is one service of the mesh. Its host is NAME.mesh.test.
type Service struct {
	Name      string
	Address   netip.AddrPort // the address that callers connect to
	Protocol  string         // in Istio's spelling: TCP, HTTP, ...
	Endpoints []netip.AddrPort
	Namespace string // used by Object only; default "default"
}

// Host returns the host name by which callers and other objects refer to the service.
func (s Service) Host() string { return s.Name + ".mesh.test" }

// Scope returns the Sidecar object with which the proxies of a namespace get the given services only.
func Scope(namespace string, services ...Service) Object {
	hosts := []string{}
	for _, s := range services {
		hosts = append(hosts, "*/"+s.Host())
	}
	return objectOf("Sidecar", namespace, "scope", object{"egress": []object{{"hosts": hosts}}})
}

// objectOf returns an object with the given spec.
func objectOf(kind, namespace, name string, spec object) Object {
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err) // encoding texts and numbers cannot fail
	}
	return Object{Kind: kind, Namespace: namespace, Name: name, Spec: text}
}
