package experiment

// burnApp is the application that is a busy neighbour: no load goes to it.
var burnApp = &Kind{
	Name:    "burn",
	Summary: "a neighbour that keeps every CPU busy, or a part of each; no load goes to it",
	Knobs: []Knob{
		{Name: "share", Type: TypeNumber, Default: "1", Max: 1, Phrase: neighbours, Doc: "part of each CPU that it uses: 1 is all of it, 0 none"},
	},
	idle:    true,
	command: func(site) []string { return []string{"app", "burn", "--role"} },
}

// neighbours is how what it uses reads in a sentence.
var neighbours = map[string]string{
	"0": "without a busy neighbour", "1": "beside a neighbour on every CPU", "": "beside a neighbour that takes {} of each CPU",
}
