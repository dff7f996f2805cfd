// Package storeload provides the load with which all stores are measured: the two resources of the benchmarks in
// Kmesh's map update proposal, services like those of a mesh, and queries in the kernel.
package storeload

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"tare/internal/mesh"
)

// ClusterName returns the name of the cluster ClusterLoad(i). All these names have 6 characters.
func ClusterName(i int) string {
	const digits = "abcdefghijklmnopqrstuvwxyz012345"
	var name [6]byte
	for at := range name {
		name[len(name)-1-at] = digits[i>>(5*at)&31]
	}
	return string(name[:])
}

// ClusterLoad returns a cluster like that of the cluster benchmark in Kmesh's map update proposal: ten localities of
// one endpoint each, a connect timeout and four circuit breakers. Each i has a different name and different endpoints.
func ClusterLoad(i int) *mesh.Cluster {
	c := &mesh.Cluster{
		Name:           ClusterName(i),
		Policy:         mesh.RoundRobin,
		ConnectTimeout: time.Second,
		Breakers:       mesh.Breakers{MaxConnections: 1 + uint32(i), MaxPending: 1024, MaxRequests: 1024, MaxRetries: 3},
		Localities:     make([]mesh.Locality, 10),
	}
	endpoints := make([]mesh.Endpoint, len(c.Localities))
	for j := range c.Localities {
		endpoints[j] = mesh.Endpoint{Address: netip.AddrPortFrom(nth(0x0a000000, i*len(endpoints)+j), 8080), Weight: 1,
			Health: mesh.Healthy}
		c.Localities[j].Endpoints = endpoints[j : j+1 : j+1]
	}
	return c
}

// ListenerLoad returns a listener like that of the listener benchmark in Kmesh's map update proposal: five filter
// chains with one TCP proxy each and no match, so that only the first can be chosen. The first chain goes to
// ClusterLoad(i). Listener 0 has the proposal's address, and every other listener a different one.
func ListenerLoad(i int) *mesh.Listener {
	l := &mesh.Listener{
		Name:     fmt.Sprintf("listener-%d", i),
		Address:  ServiceAddress(i),
		Protocol: mesh.TCP,
		Chains:   make([]mesh.Chain, 5),
	}
	for j := range l.Chains {
		l.Chains[j] = mesh.Chain{
			Name: fmt.Sprintf("chain-%d", j),
			Proxy: mesh.Proxy{
				StatPrefix:         fmt.Sprintf("stat-%d", j),
				Clusters:           []mesh.WeightedCluster{{Name: ClusterName(i + j), Weight: 1}},
				MaxConnectAttempts: uint32(1 + j),
			},
		}
	}
	return l
}

// ServiceAddress returns the address of ListenerLoad(i).
func ServiceAddress(i int) netip.AddrPort {
	return netip.AddrPortFrom(nth(192<<24|168<<16|127<<8|244, i), 80)
}

// nth returns the IPv4 address i after first.
func nth(first uint32, i int) netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], first+uint32(i))
	return netip.AddrFrom4(b)
}

// Services returns n services, which surround the measured resources in the store. Each is a cluster with its endpoints
// in one locality, and a listener that sends all connections to that cluster. Their names and addresses differ from
// those of ClusterLoad and ListenerLoad.
func Services(n, endpoints int) (change mesh.Change) {
	for i := range n {
		name := fmt.Sprintf("service-%d", i)
		c := &mesh.Cluster{Name: name, ConnectTimeout: time.Second,
			Localities: []mesh.Locality{{Endpoints: make([]mesh.Endpoint, endpoints)}}}
		for j := range c.Localities[0].Endpoints {
			c.Localities[0].Endpoints[j] = mesh.Endpoint{Address: netip.AddrPortFrom(nth(0x64400000, i*endpoints+j), 8080),
				Weight: 1, Health: mesh.Healthy}
		}
		change.Clusters = append(change.Clusters, c)
		change.Listeners = append(change.Listeners, &mesh.Listener{
			Name: name, Address: ServiceOf(i), Protocol: mesh.TCP,
			Chains: []mesh.Chain{{Name: "all", Proxy: mesh.Proxy{StatPrefix: name,
				Clusters: []mesh.WeightedCluster{{Name: name, Weight: 1}}, MaxConnectAttempts: 1}}},
		})
	}
	return change
}

// ServiceOf returns the address of service i of Services, in 10.96.0.0/12, the usual range of Kubernetes services.
func ServiceOf(i int) netip.AddrPort { return netip.AddrPortFrom(nth(10<<24|96<<16|1, i), 80) }
