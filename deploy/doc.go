// Package deploy holds what runs tare-agent for good: Kubernetes manifests, Prometheus' rules and alerts, and a
// Grafana dashboard. Its only code gives programs the manifests; the tests hold these files against the programs that
// read them. README.md says how to use them.
package deploy

import _ "embed" // for the manifests

// AgentManifests are the objects that run tare-agent on every node of a cluster, as YAML documents. Their image has
// no registry.
//
//go:embed kubernetes/agent.yaml
var AgentManifests []byte

// WeighRights are the roles of who weighs a cluster, as YAML documents.
//
//go:embed kubernetes/weigh.yaml
var WeighRights []byte

// RunRights are the roles of who runs experiments in a cluster, beside WeighRights.
//
//go:embed kubernetes/run.yaml
var RunRights []byte

// CoordinatorRights are whom the coordinator of an experiment runs as, and its roles, as YAML documents.
//
//go:embed kubernetes/coordinator.yaml
var CoordinatorRights []byte

// The namespaces of RunRights and CoordinatorRights, in whose places are those that a user names.
const (
	RunsNamespace   = "tare-experiments"
	AgentsNamespace = "kube-system"
)
