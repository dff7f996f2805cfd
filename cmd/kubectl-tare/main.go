// Kubectl-tare weighs a Kubernetes cluster, as kubectl tare: what its workloads use, and what infrastructure uses on
// their behalf.
package main

import (
	"os"

	_ "tare/internal/all" // applications, loads and subjects of experiments
	"tare/internal/kube/plugin"
)

func main() {
	os.Exit(plugin.Main(os.Args[1:]))
}
