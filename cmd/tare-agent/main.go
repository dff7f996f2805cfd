// Tare-agent weighs the machine that it runs on for as long as it runs: what each component, pod, container and eBPF
// program uses, as Prometheus metrics, with a CPU budget that closes.
package main

import (
	"os"

	"tare/internal/agent"
)

func main() {
	os.Exit(agent.Main(os.Args[1:]))
}
