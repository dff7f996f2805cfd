package local

import (
	"errors"

	"tare/internal/experiment/link"
	"tare/internal/scale/host/feature"
)

// Features returns the probe for whether one machine can be many nodes.
func Features() []*feature.Probe {
	return []*feature.Probe{feature.New(feature.Status{
		Name: "local-nodes",
		Needs: "CAP_SYS_ADMIN and CAP_NET_ADMIN, network namespaces (CONFIG_NET_NS) and pairs of virtual interfaces " +
			"(CONFIG_VETH)",
		Lost: "many nodes on one machine (tare run --local-nodes); nodes on machines of their own (--nodes-listen) do " +
			"not need it",
		Hint: "run as root; load the module veth",
	}, probeNodes)}
}

// probeNodes makes a pair of interfaces in a new namespace.
func probeNodes() (string, error) {
	n, err := link.NewNamespace()
	if err != nil {
		return "", err
	}
	err = n.Do(func() error { return link.MakePair("tare0", "tare1", n) })
	if err := errors.Join(err, n.Close()); err != nil {
		return "", err
	}
	return "network namespaces, and pairs of virtual interfaces between them", nil
}
