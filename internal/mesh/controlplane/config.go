package controlplane

import "tare/internal/mesh/controlplane/proxyconfig"

// What a mesh file says, and what it means to a node; see package proxyconfig.
type (
	Config    = proxyconfig.Config
	Endpoint  = proxyconfig.Endpoint
	Resources = proxyconfig.Resources
)

const example = proxyconfig.Example
