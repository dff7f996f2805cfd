package burn

import "tare/internal/param"

// Settings are what specs and the command line set of the neighbour.
var Settings = []param.Setting{
	{Name: "share", Type: param.TypeNumber, Default: "1", Max: 1,
		Doc: "part of each CPU that it uses: 1 is all of it, 0 none"},
}

// OptionsOf are the options by their settings.
func OptionsOf(v param.Values) (Options, error) { return Options{Share: v.Float("share")}, nil }
