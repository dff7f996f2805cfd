package controlplane

import "tare/internal/mesh/controlplane/proxyconfig"

// The contents of a mesh file, and what they mean for a node; see package proxyconfig.
type (
	Config    = proxyconfig.Config
	Endpoint  = proxyconfig.Endpoint
	Resources = proxyconfig.Resources
)

const example = proxyconfig.Example
