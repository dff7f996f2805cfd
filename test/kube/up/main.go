// Command up runs a Kubernetes cluster on this machine until it is interrupted, to try things out:
//
//	make kube build
//	go run ./test/kube/up -nodes 3 other-image.tar
//
// Every node has tare-agent:0.1.0 of this source tree, and the images whose archives are named.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"tare/test/kube"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "up:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	o := kube.Options{}
	flag.IntVar(&o.Nodes, "nodes", 3, "number of nodes")
	flag.IntVar(&o.MachineNodes, "machine", 1, "how many of them share the machine's PIDs and control groups")
	flag.IntVar(&o.Emulated, "emulated", 0, "how many of them are emulated machines, with cgroup v2 alone")
	flag.StringVar(&o.MicroVM, "microvm", "", "program with the command line of tare microvm, for the handler microvm")
	flag.Parse()
	dir, err := os.MkdirTemp("", "tare-up-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	agent, err := kube.AgentImage(dir, "kubectl-tare")
	if err != nil {
		return err
	}
	o.Images = []string{agent}
	for _, archive := range flag.Args() {
		path, err := filepath.Abs(archive)
		if err != nil {
			return err
		}
		o.Images = append(o.Images, path)
	}
	bin, err := kube.Bin()
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c, err := kube.Start(o)
	if err != nil {
		return err
	}
	fmt.Printf("export KUBECONFIG=%s PATH=%s:$PATH\n", c.Kubeconfig, bin)
	<-ctx.Done()
	return c.Down()
}
