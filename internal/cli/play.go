package cli

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/part"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/privilege"
	"tare/internal/lib/self"
	"tare/internal/results/calibrate"
	"tare/internal/sandboxes/oci"
)

// The commands as which the binary starts itself. They are not for people.
func init() {
	hidden := func(name string, run func(ctx context.Context, args []string) error) {
		register(func() *cobra.Command {
			return &cobra.Command{
				Use: name, Hidden: true, DisableFlagParsing: true,
				RunE: func(cmd *cobra.Command, args []string) error { return run(cmd.Context(), args) },
			}
		})
	}
	hidden(kind.PlayCommand, playGuest)
	hidden(part.Command, playPart)
	// The way of a process into its control groups.
	hidden(placement.EnterCommand, func(_ context.Context, args []string) error { return placement.Enter(args) })
	// What stands beside a container.
	hidden(oci.ShimCommand, func(_ context.Context, args []string) error {
		status, err := oci.Shim(args)
		if err == nil && status != 0 {
			err = exitStatus(status) // the container's own
		}
		return err
	})
	// What calibrate plants.
	hidden(calibrate.WeightCommand, func(ctx context.Context, args []string) error {
		conn := role.Stdio()
		return reported(conn, calibrate.Plant(ctx, args, conn))
	})
}

// playGuest is the process of any guest that plays (kind.Player), in an experiment.
func playGuest(ctx context.Context, args []string) error {
	conn := unprivileged(ctx)
	if len(args) > 0 && kind.Role(args[0]) == kind.Subject { // eBPF programs, interfaces: subjects need theirs
		conn = role.Stdio()
	}
	ctx = withoutHangup(ctx) // by which a guest may read its files again; its parent ends it
	return reported(conn, kind.Play(ctx, conn, args))
}

// partPatience is how long a pod waits for the trial: the image of another may take its time.
const partPatience = 10 * time.Minute

// playPart is the process of an application or a load in a pod.
func playPart(ctx context.Context, _ []string) error {
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(part.Port)))
	if err != nil {
		return fault.Wrap(err, fault.Machine, "", "", "the trial cannot say what to play")
	}
	token := os.Getenv(part.TokenVariable)
	if err := os.Unsetenv(part.TokenVariable); err != nil { // what a guest starts need not know it
		return err
	}
	return part.Serve(ctx, l, token, self.Version+" "+self.Build(), partPatience, kind.Play)
}

// ownProcess is the key in the context of a command that a process is there for alone.
type ownProcess struct{}

// unprivileged speaks with the parent of an application or a load. The process gives up all capabilities once that is
// set up, if it is there for this command alone.
func unprivileged(ctx context.Context) *role.Conn {
	conn := role.Stdio()
	if ctx.Value(ownProcess{}) != nil {
		conn.BeforeReady(privilege.Drop)
	}
	return conn
}

// player is the function that a guest's process runs.
type player func(context.Context, *role.Conn) error

// played has a role played in this process, and gives the connection of its parent. end closes that, waits for the role
// to end, and returns its error.
func played(ctx context.Context, play player) (parent *role.Conn, end func() error) {
	input, tell := io.Pipe()
	said, says := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := play(ctx, role.NewConn(input, says))
		says.Close()
		ended <- err
	}()
	return role.NewConn(said, tell), func() error {
		tell.Close()
		said.Close() // what it still has to say is not read
		return <-ended
	}
}

// forPeople plays a role until ctx ends or nothing reads its output any more, and prints its messages.
func forPeople(ctx context.Context, w io.Writer, print func(io.Writer, role.Message) error, play player) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	conn, end := played(ctx, play)
	var failed error
	for failed == nil && !unheard(w) {
		var m role.Message
		if m, failed = conn.Receive(); failed == nil {
			failed = print(w, m)
		}
	}
	if errors.Is(failed, io.EOF) {
		failed = nil
	}
	stop()
	return errors.Join(end(), failed)
}
