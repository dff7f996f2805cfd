// Package deploy holds what runs tare-agent for good: Kubernetes manifests, Prometheus' rules and alerts, and a Grafana
// dashboard. It has no code but tests, which hold these files against the programs that read them. README.md says how
// to use them.
package deploy
