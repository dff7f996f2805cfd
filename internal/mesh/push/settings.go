package push

import (
	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
)

// Settings are the load's settings in specs and on the command line.
var Settings = []param.Setting{
	{Name: "what", Type: param.TypeWord, Default: One, Words: Whats,
		Phrase: map[string]string{One: "of one service", All: "of all services at once"},
		Doc:    "what each change affects: a random service, or all services at once"},
	{Name: "interval", Type: param.TypeDuration, Default: DefaultInterval.String(),
		Min: MinInterval.Seconds(), Max: MaxInterval.Seconds(),
		Doc: "time between two connections until a change is seen"},
	{Name: "pause", Type: param.TypeDuration, Default: DefaultPause.String(), Max: 60,
		Doc: "time from one change to the next, times a random 0.5 to 1.5"},
	{Name: "peer", Type: param.TypeWord, Default: AnyPeer, Words: []string{AnyPeer, EndpointPeer},
		Doc: "with `cluster-services`: endpoint: a connection only counts if its peer is an endpoint and not the Service"},
}

// meshKey is the name of the setting with the mesh's address. Specs do not have it: the engine sets it (guest.At).
const meshKey = "mesh"

// keyName is the name of the setting with the mesh's Key. Specs do not have it either.
const keyName = "key"

// processSettings are settings of the process besides those in specs.
var processSettings = []param.Setting{
	{Name: meshKey, Type: param.TypeText, Reach: param.ReachAddress,
		Doc: "address at which the mesh accepts changes, host:port; 'tare app mesh' prints it"},
	{Name: keyName, Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "key that the mesh requires with each request, if any"},
	kind.SeedSetting,
}

// optionsOf converts settings to options.
func optionsOf(v param.Values) Options {
	return Options{What: v["what"], Interval: v.Duration("interval"), Pause: v.Duration("pause"), Mesh: v[meshKey],
		Key: v[keyName], Peer: v["peer"],
		Seed: v.Uint(kind.SeedSetting.Name)}
}
