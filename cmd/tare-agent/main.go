// Tare-agent weighs its machine for as long as it runs. It serves the usage of each component, pod, container and eBPF
// program as Prometheus metrics, with a CPU budget that adds up.
package main

import (
	"os"

	"tare/internal/agent"
)

func main() {
	os.Exit(agent.Main(os.Args[1:]))
}
