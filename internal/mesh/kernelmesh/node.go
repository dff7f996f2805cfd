package kernelmesh

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// The settings that say who the data plane is to its control plane.
const (
	nodeKey     = "node"
	metadataKey = "metadata"
	variantKey  = "variant"
)

// The variants of the protocol.
const (
	VariantDeltas = "deltas"
	VariantWorld  = "world"
)

// Variants are the words that the setting can be.
var Variants = []string{VariantDeltas, VariantWorld}

// instanceIPs is the metadata of Istio's proxies that has all addresses of the workload, with commas between
// (NodeMetadata of istio.io/istio/pkg/model).
const instanceIPs = "INSTANCE_IPS"

// Node is who the data plane is to a control plane.
type Node struct {
	ID       string            `json:"id"`       // empty: the client's default
	Metadata map[string]string `json:"metadata"` // what else is said, by name
}

// nodeOf is a node by its settings. Several values of one name are given by repeating the name: they are put together
// with commas.
func nodeOf(id, metadata string) (n Node, err error) {
	n.ID = id
	for part := range strings.SplitSeq(metadata, ",") {
		if part = strings.TrimSpace(part); part == "" {
			continue
		}
		name, value, ok := strings.Cut(part, "=")
		if !ok || name == "" {
			return n, fmt.Errorf("%s: write NAME=VALUE,NAME=VALUE; %q is no such pair", metadataKey, part)
		}
		if n.Metadata == nil {
			n.Metadata = map[string]string{}
		}
		if before, twice := n.Metadata[name]; twice {
			value = before + "," + value
		}
		n.Metadata[name] = value
	}
	return n, nil
}

// String is the metadata as nodeOf reads it.
func (n Node) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(n.Metadata)) {
		for value := range strings.SplitSeq(n.Metadata[name], ",") {
			parts = append(parts, name+"="+value)
		}
	}
	return strings.Join(parts, ",")
}

// own are the addresses of the workload that the control plane takes the data plane for: the second part of an id of
// Istio's form, and those of the metadata.
func (n Node) own() (all []netip.Addr) {
	var texts []string
	if parts := strings.Split(n.ID, "~"); len(parts) == 4 {
		texts = parts[1:2]
	}
	for _, text := range append(texts, strings.Split(n.Metadata[instanceIPs], ",")...) {
		if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !slices.Contains(all, a.Unmap()) {
			all = append(all, a.Unmap())
		}
	}
	return all
}
