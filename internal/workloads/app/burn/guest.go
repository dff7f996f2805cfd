package burn

import "tare/internal/experiment/kind"

func init() { kind.Register(kind.Application, guest{}) }

// guest is the busy neighbour as the engine knows it: no load goes to it.
type guest struct{}

func (guest) About() kind.About {
	return kind.About{
		Name:     "burn",
		Summary:  "a neighbour that keeps every CPU busy, or a part of each; no load goes to it",
		Settings: Settings,
	}
}

func (guest) Command(kind.Site) []string { return []string{"app", "burn", "--role"} }
