package cli

import (
	"context"
	"os"

	"github.com/spf13/cobra"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/role"
	"tare/internal/lib/privilege"
)

func init() { register(newPlay) }

// newPlay is the process of any guest that plays (kind.Player), in an experiment. It is not for people.
func newPlay() *cobra.Command {
	return &cobra.Command{
		Use:                kind.PlayCommand,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			conn := unprivileged(cmd.Context())
			if len(args) > 0 && kind.Role(args[0]) == kind.Subject { // eBPF programs, interfaces: subjects need theirs
				conn = role.NewConn(os.Stdin, os.Stdout)
			}
			ctx := withoutHangup(cmd.Context()) // by which a guest may read its files again; its parent ends it
			return reported(conn, kind.Play(ctx, conn, args))
		},
	}
}

// ownProcess is the key in the context of a command that a process is there for alone.
type ownProcess struct{}

// unprivileged speaks with the parent of an application or a load. The process gives up all capabilities once that is
// set up, if it is there for this command alone.
func unprivileged(ctx context.Context) *role.Conn {
	conn := role.NewConn(os.Stdin, os.Stdout)
	if ctx.Value(ownProcess{}) != nil {
		conn.BeforeReady(privilege.Drop)
	}
	return conn
}
