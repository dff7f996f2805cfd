// Package deploy holds the files that run tare-agent permanently: Kubernetes manifests, Prometheus' rules and alerts,
// and a Grafana dashboard. Its only code embeds the manifests in programs; the tests check these files with the
// programs that read them. README.md says how to use them.
package deploy

import _ "embed" // for the manifests

// AgentManifests are the objects that run tare-agent on every node of a cluster, as YAML documents. The name of their
// image has no registry.
//
//go:embed kubernetes/agent.yaml
var AgentManifests []byte

// WeighRights are the roles that a user needs to weigh a cluster, as YAML documents.
//
//go:embed kubernetes/weigh.yaml
var WeighRights []byte

// RunRights are the roles that a user needs, beside WeighRights, to run experiments in a cluster.
//
//go:embed kubernetes/run.yaml
var RunRights []byte

// CoordinatorRights are the service account that the coordinator of an experiment runs as, and its roles, as YAML
// documents.
//
//go:embed kubernetes/coordinator.yaml
var CoordinatorRights []byte

// The namespaces that RunRights and CoordinatorRights name. Programs replace them by those that the user names.
const (
	RunsNamespace   = "tare-experiments"
	AgentsNamespace = "kube-system"
)
