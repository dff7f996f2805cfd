package experiment

import "tare/internal/app/burn"

// burnApp is the application that is a busy neighbour: no load goes to it.
var burnApp = &Kind{
	Name:     "burn",
	Summary:  "a neighbour that keeps every CPU busy, or a part of each; no load goes to it",
	Settings: burn.Settings,
	idle:     true,
	command:  func(site) []string { return []string{"app", "burn", "--role"} },
}
