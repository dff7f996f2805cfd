package burn

import "tare/internal/lib/param"

// Settings are the settings of the neighbour, in specs and on the command line.
var Settings = []param.Setting{
	{Name: "share", Type: param.TypeNumber, Default: "1", Max: 1, Phrase: neighbours,
		Doc: "part of each CPU that it uses, 0 to 1"},
}

// neighbours holds the phrases for the setting share.
var neighbours = map[string]string{
	"0": "without a busy neighbour", "1": "beside a neighbour on every CPU",
	"": "beside a neighbour that takes {} of each CPU",
}
