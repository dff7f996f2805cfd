package kernelmesh

import (
	"tare/internal/lib/param"
	"tare/internal/mesh/store"
)

// Settings are the data plane's settings in specs and on the command line.
var Settings = []param.Setting{
	{Name: "store", Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "design of the configuration store, one of those of `subject: store`"},
	{Name: "fail", Type: param.TypeWord, Words: Fails,
		Doc: "what happens to connections before the first configuration arrives"},
	{Name: "peer", Type: param.TypeWord, Words: Peers,
		Doc: "what applications see as the peer of a connection"},
	{Name: "work", Type: param.TypeWord, Words: Works(),
		Doc: "replace: replace the configuration as fast as possible; push: time the changes that a control plane pushes"},
	{Name: "steps", Type: param.TypeCount, Default: "0", Max: MaxSteps,
		Phrase: map[string]string{"": "with {} extra steps in each program"},
		Doc:    "extra steps in each run of the connect programs: a planted weight"},
	{Name: "sockops-steps", Type: param.TypeCount, Default: "0", Max: MaxSteps,
		Doc: "extra steps in each run of the sockops program"},
	{Name: nodeKey, Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "node ID to give to a control plane, such as sidecar~IP~NAME.NAMESPACE~DOMAIN for istiod"},
	{Name: metadataKey, Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "node metadata to give to a control plane: NAME=VALUE, separated by commas, such as ISTIO_VERSION=1.31.1"},
	{Name: variantKey, Type: param.TypeWord, Words: Variants,
		Doc: "variant of xDS: deltas (default), or the whole state of a resource type"},
	{Name: "max-services", Type: param.TypeCount, Min: 1, Max: maxServices,
		Doc: "services that the maps can hold"},
	{Name: "max-endpoints", Type: param.TypeCount, Min: 1, Max: maxEndpoints,
		Doc: "endpoints that the maps can hold"},
}

// OptionsOf converts settings to options. It returns an error for an unknown store or invalid metadata.
func OptionsOf(v param.Values) (Options, error) {
	o := Options{
		Store: v["store"], Fail: v["fail"], Peer: v["peer"], Work: v["work"],
		Steps: uint32(v.Int("steps")), SockopsSteps: uint32(v.Int("sockops-steps")),
		MaxServices: uint32(v.Int("max-services")), MaxEndpoints: uint32(v.Int("max-endpoints")),
	}
	o.StateOfTheWorld = v[variantKey] == VariantWorld
	var err error
	if o.Node, err = nodeOf(v[nodeKey], v[metadataKey]); err != nil || o.Store == "" {
		return o, err
	}
	_, _, err = store.Lookup(o.Store)
	return o, err
}
