// Kubectl-tare is the plugin behind 'kubectl tare'. It weighs a Kubernetes cluster: what its workloads use, and what
// infrastructure uses on their behalf.
package main

import (
	"os"

	_ "tare/internal/all" // applications, loads and subjects of experiments
	"tare/internal/kube/plugin"
)

func main() {
	os.Exit(plugin.Main(os.Args[1:]))
}
