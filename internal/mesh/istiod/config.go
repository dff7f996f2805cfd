package istiod

import (
	"encoding/json"
	"net/netip"
)

// defaultNamespace is where services are that say nothing else.
const defaultNamespace = "default"

// Service is one service of the mesh. Its host is NAME.mesh.test.
type Service struct {
	Name      string
	Address   netip.AddrPort // where callers ask for it
	Protocol  string         // as Istio has them: TCP, HTTP, ...
	Endpoints []netip.AddrPort
	Namespace string // of Object alone; default "default"
}

// Host is the name by which callers and other objects know the service.
func (s Service) Host() string { return s.Name + ".mesh.test" }

// Scope is the Sidecar of a namespace: its proxies are told of some services alone.
func Scope(namespace string, services ...Service) Object {
	hosts := []string{}
	for _, s := range services {
		hosts = append(hosts, "*/"+s.Host())
	}
	return objectOf("Sidecar", namespace, "scope", object{"egress": []object{{"hosts": hosts}}})
}

func objectOf(kind, namespace, name string, spec object) Object {
	text, err := json.Marshal(spec)
	if err != nil {
		panic(err) // of texts and numbers there is none
	}
	return Object{Kind: kind, Namespace: namespace, Name: name, Spec: text}
}
