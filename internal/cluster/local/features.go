package local

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"

	"tare/internal/host/feature"
	"tare/internal/link"
)

// Features says whether one machine can be many nodes.
func Features() []*feature.Probe {
	return []*feature.Probe{feature.New(feature.Status{
		Name:  "local-nodes",
		Needs: "CAP_SYS_ADMIN and CAP_NET_ADMIN, network namespaces (CONFIG_NET_NS) and pairs of virtual interfaces (CONFIG_VETH)",
		Lost:  "many nodes on one machine (tare run --local-nodes); nodes on machines of their own (--nodes-listen) do not need it",
		Mend:  "run as root; load the module veth",
	}, probeNodes)}
}

// probeNodes makes a pair in a namespace that ends with its thread.
func probeNodes() (string, error) {
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocks: nobody else may get this thread
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			made <- fmt.Errorf("making a network namespace: %w", err)
			return
		}
		made <- link.MakePair("tare0", "tare1", unix.Gettid())
	}()
	if err := <-made; err != nil {
		return "", err
	}
	return "network namespaces, and pairs of virtual interfaces between them", nil
}
