package kernelmesh

import (
	"tare/internal/lib/param"
	"tare/internal/mesh/store"
)

// Settings are the data plane's settings in specs and on the command line.
var Settings = []param.Setting{
	{Name: "store", Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "design of its configuration store, as of `subject: store`"},
	{Name: "fail", Type: param.TypeWord, Words: Fails,
		Doc: "what happens to connections before its first configuration"},
	{Name: "peer", Type: param.TypeWord, Words: Peers,
		Doc: "what applications see as the peer of a connection"},
	{Name: "work", Type: param.TypeWord, Words: Works(),
		Doc: "replace: its process replaces configuration as fast as it can; push: it times the changes that a " +
			"control plane pushes"},
	{Name: "steps", Type: param.TypeCount, Default: "0", Max: MaxSteps,
		Phrase: map[string]string{"": "with {} extra steps in each program"},
		Doc:    "extra steps in each run of its connect programs: a planted weight"},
	{Name: "sockops-steps", Type: param.TypeCount, Default: "0", Max: MaxSteps, Doc: "the same in its sockops program"},
	{Name: nodeKey, Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "its id for a control plane, such as istiod's sidecar~IP~NAME.NAMESPACE~DOMAIN"},
	{Name: metadataKey, Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "its metadata for a control plane: NAME=VALUE, separated by commas, such as ISTIO_VERSION=1.31.1"},
	{Name: variantKey, Type: param.TypeWord, Words: Variants,
		Doc: "variant of xDS: deltas, or the whole state of a kind; deltas when left out"},
	{Name: "max-services", Type: param.TypeCount, Min: 1, Max: maxServices,
		Doc: "services that its maps hold"},
	{Name: "max-endpoints", Type: param.TypeCount, Min: 1, Max: maxEndpoints,
		Doc: "endpoints that its maps hold"},
}

// OptionsOf converts settings to options. It returns an error for an unknown store.
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
