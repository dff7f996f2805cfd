// Kubectl-tare weighs a Kubernetes cluster, as kubectl tare: what its workloads use, and what infrastructure uses on
// their behalf.
package main

import (
	"os"

	"tare/internal/kube/plugin"
)

func main() {
	os.Exit(plugin.Main(os.Args[1:]))
}
