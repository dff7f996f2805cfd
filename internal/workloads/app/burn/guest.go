package burn

import (
	"context"
	"fmt"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
)

func init() { kind.Register(kind.Application, guest{}) }

// guest implements the busy neighbour for the engine: no load uses it.
type guest struct{}

func (guest) About() kind.About {
	return kind.About{
		Name:     "burn",
		Summary:  "a neighbour that keeps every CPU busy, or a part of each; no load goes to it",
		Settings: Settings,
		InPods:   true,
		Alone:    &kind.Alone{Ready: kind.Worded(burning), Examples: []string{"", "--share 0.5"}},
	}
}

// burning formats the ready message for people.
func burning(v param.Values, r Ready) string {
	threads := quantity.Counted(r.Threads, "thread")
	return fmt.Sprintf("burning %s of each CPU with %s (Ctrl-C ends it)", v["share"], threads)
}

func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	return Run(ctx, Options{Share: v.Float("share")}, conn)
}
