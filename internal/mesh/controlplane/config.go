package controlplane

import (
	"tare/internal/lib/fault"
	"tare/internal/mesh/controlplane/proxyconfig"
)

// What a mesh file says, and what it means to a node; see package proxyconfig.
type (
	Config    = proxyconfig.Config
	Service   = proxyconfig.Service
	Endpoint  = proxyconfig.Endpoint
	Resources = proxyconfig.Resources
)

const example = proxyconfig.Example

// Parse makes resources of a mesh file in YAML that tells every node the same; name is the file's, for errors. What it
// does not know is a *fault.Error of code Usage.
func Parse(name string, data []byte) (Resources, error) {
	return shared(name)(proxyconfig.Parse(name, data))
}

func shared(name string) func(*proxyconfig.Mesh, error) (Resources, error) {
	return func(m *proxyconfig.Mesh, err error) (Resources, error) {
		if err != nil {
			return Resources{}, err
		}
		r, err := m.Shared()
		return r, fault.Wrap(err, fault.Usage, name, example, "the configuration is wrong")
	}
}
