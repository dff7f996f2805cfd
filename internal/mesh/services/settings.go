package services

import (
	"strconv"

	"tare/internal/lib/param"
)

// Settings are what specs and the command line set of the mesh.
var Settings = []param.Setting{
	{Name: "services", Type: param.TypeCount, Default: "100", Min: 1, Max: MaxServices, Phrase: map[string]string{"": "in a mesh of {} services", "1": "in a mesh of one service"},
		Doc: "services of the mesh, each a cluster and a UDP listener"},
	{Name: "endpoints", Type: param.TypeCount, Default: strconv.Itoa(DefaultEndpoints), Min: 1, Max: MaxEndpoints,
		Doc: "endpoints of each service; nobody listens on them"},
}

// OptionsOf are the options by their settings.
func OptionsOf(v param.Values) (Options, error) {
	return Options{Services: v.Int("services"), Endpoints: v.Int("endpoints")}, nil
}
