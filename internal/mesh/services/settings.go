package services

import (
	"strconv"

	"tare/internal/lib/param"
)

// Settings are the mesh's settings in specs and on the command line.
var Settings = []param.Setting{
	{Name: "services", Type: param.TypeCount, Default: "100", Min: 1, Max: MaxServices,
		Phrase: map[string]string{"": "in a mesh of {} services", "1": "in a mesh of one service"},
		Doc:    "services of the mesh, each a cluster and a UDP listener"},
	{Name: "endpoints", Type: param.TypeCount, Default: strconv.Itoa(DefaultEndpoints), Min: 1, Max: MaxEndpoints,
		Doc: "endpoints of each service, without a listener"},
}

// listenSetting is a setting of the process, not of specs. In an experiment the control plane takes a free port.
var listenSetting = param.Setting{
	Name: "listen", Type: param.TypeText, Reach: param.ReachAddress, Default: "127.0.0.1:0",
	Doc: "address of the control plane; port 0 takes a free one",
}

// optionsOf converts settings to options.
func optionsOf(v param.Values) Options {
	return Options{Services: v.Int("services"), Endpoints: v.Int("endpoints"), Listen: v[listenSetting.Name]}
}
