// Package deploy holds the files for running tare-agent permanently: Kubernetes manifests, rules and alerts for
// Prometheus, and a Grafana dashboard. Its only code embeds the manifests. Its tests check the files with the programs
// that read them, such as promtool. README.md says how to use the files.
package deploy

import _ "embed" // for the manifests

// AgentManifests are the objects that run tare-agent on every node of a cluster, as YAML documents. The name of their
// image has no registry.
//
//go:embed kubernetes/agent.yaml
var AgentManifests []byte

// WeighRights are the roles that a user needs to weigh a cluster (kubectl tare), as YAML documents.
//
//go:embed kubernetes/weigh.yaml
var WeighRights []byte

// RunRights are the roles that a user needs, in addition to WeighRights, to run experiments in a cluster, as YAML
// documents.
//
//go:embed kubernetes/run.yaml
var RunRights []byte

// CoordinatorRights are the service account that the coordinator of an experiment runs as, and its roles, as YAML
// documents.
//
//go:embed kubernetes/coordinator.yaml
var CoordinatorRights []byte

// The namespaces in WeighRights, RunRights and CoordinatorRights. Programs replace them with the namespaces that the
// user chose.
const (
	RunsNamespace   = "tare-experiments" // of the pods of experiments
	AgentsNamespace = "kube-system"      // of agents that run for one command
)
