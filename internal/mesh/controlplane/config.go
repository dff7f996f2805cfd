package controlplane

import "tare/internal/mesh/controlplane/proxyconfig"

// Types of package proxyconfig: the content of a mesh file, and the resources of a node.
type (
	Config    = proxyconfig.Config
	Endpoint  = proxyconfig.Endpoint
	Resources = proxyconfig.Resources
)

const example = proxyconfig.Example
