// Tare weighs infrastructure: what service meshes, eBPF programs, sandboxes and tracers cost a machine and its
// applications.
package main

import (
	"os"

	"tare/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:]))
}
