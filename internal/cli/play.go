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

// The hidden commands with which the binary starts itself.
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
	// This command moves a process into its control groups.
	hidden(placement.EnterCommand, func(_ context.Context, args []string) error { return placement.Enter(args) })
	// This command is the shim of a container.
	hidden(oci.ShimCommand, func(_ context.Context, args []string) error {
		status, err := oci.Shim(args)
		if err == nil && status != 0 {
			err = exitStatus(status) // the container's status
		}
		return err
	})
	// This command runs a process with a known CPU time, memory or connections, which 'tare calibrate' weighs.
	hidden(calibrate.WeightCommand, func(ctx context.Context, args []string) error {
		conn := role.Stdio()
		return reported(conn, calibrate.Plant(ctx, args, conn))
	})
}

// playGuest runs in the process of any guest that plays (kind.Player) in an experiment.
func playGuest(ctx context.Context, args []string) error {
	conn := unprivileged(ctx)
	// Subjects need their privileges, for eBPF programs and interfaces.
	if len(args) > 0 && kind.Role(args[0]) == kind.Subject {
		conn = role.Stdio()
	}
	// A guest may use SIGHUP to read its files again. Its parent ends it.
	ctx = withoutHangup(ctx)
	return reported(conn, kind.Play(ctx, conn, args))
}

// partPatience is the longest time that a pod waits for its trial to begin. It is long because another pod may still be
// pulling its image.
const partPatience = 10 * time.Minute

// playPart runs in the process of an application or a load in a pod.
func playPart(ctx context.Context, _ []string) error {
	host := "127.0.0.1"
	if os.Getenv(part.OpenVariable) != "" {
		host = ""
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(part.Port)))
	if err != nil {
		return fault.Wrap(err, fault.Machine, "", "", "cannot listen for instructions from the trial")
	}
	secret := part.Secret{Token: os.Getenv(part.TokenVariable), Pod: os.Getenv(part.PodVariable)}
	if err := os.Unsetenv(part.TokenVariable); err != nil { // processes that a guest starts need not know it
		return err
	}
	return part.Serve(ctx, l, secret, self.Version+" "+self.Build(), partPatience, kind.Play)
}

// ownProcess is a context key. It is set if the process runs only this command.
type ownProcess struct{}

// unprivileged returns the connection of an application or a load to its parent. If the process runs only this
// command, the process gives up all capabilities before it reports that it is ready.
func unprivileged(ctx context.Context) *role.Conn {
	conn := role.Stdio()
	if ctx.Value(ownProcess{}) != nil {
		conn.BeforeReady(privilege.Drop)
	}
	return conn
}

// player is a function that plays a guest, over the connection to the guest's parent.
type player func(context.Context, *role.Conn) error

// played calls play in a goroutine, and returns the parent's side of the connection to it. The function end closes the
// connection, waits until play has returned, and returns its error.
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
		said.Close() // its remaining messages are not read
		return <-ended
	}
}

// forPeople plays a role and prints its messages, until ctx ends or the reader of its output has gone.
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
