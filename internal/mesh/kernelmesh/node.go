package kernelmesh

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
)

// The settings about how the data plane identifies itself to its control plane, and how they communicate.
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

// Variants are the values of the setting variant.
var Variants = []string{VariantDeltas, VariantWorld}

// instanceIPs is the name of the metadata in which Istio's proxies send all addresses of the workload, separated by
// commas (NodeMetadata of istio.io/istio/pkg/model).
const instanceIPs = "INSTANCE_IPS"

// Node identifies the data plane to a control plane.
type Node struct {
	ID       string            `json:"id"`       // empty: the default of xds.Options.Node
	Metadata map[string]string `json:"metadata"` // further information, by name
}

// nodeOf parses a node's settings. A name may be repeated to give several values, which are joined with commas.
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

// String returns the metadata in the form that nodeOf parses.
func (n Node) String() string {
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(n.Metadata)) {
		for value := range strings.SplitSeq(n.Metadata[name], ",") {
			parts = append(parts, name+"="+value)
		}
	}
	return strings.Join(parts, ",")
}

// own returns the addresses of the workload that the data plane represents to the control plane: the address in the
// second part of an id in Istio's form, and the addresses in the metadata. It ignores invalid addresses.
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
