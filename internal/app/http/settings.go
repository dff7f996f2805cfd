package http

import "tare/internal/param"

// Settings are what specs and the command line set of the server.
var Settings = []param.Setting{
	{Name: "body", Type: param.TypeBytes, Default: "128", Max: maxEcho, Doc: "size of the answer's body"},
	{Name: "delay", Type: param.TypeDuration, Default: "0s", Max: 60, Doc: "time the server waits before it answers"},
}

// OptionsOf are the options by their settings.
func OptionsOf(v param.Values) (Options, error) {
	return Options{Body: v.Int("body"), Delay: v.Duration("delay")}, nil
}
