package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"tare/internal/fault"
	"tare/internal/quantity"
	"tare/internal/role"
	"tare/internal/subject/mesh/xds/controlplane"
)

func init() { register(newControlplane) }

func newControlplane() *cobra.Command {
	var file, listen string
	var human bool
	c := &cobra.Command{
		Use:   "controlplane --config FILE",
		Short: "Run a small xDS control plane that serves a file, until interrupted; changes of the file are sent at once",
		Example: `  tare controlplane --config mesh.yaml
  tare controlplane --config mesh.yaml --listen 127.0.0.1:18000`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			people := human || isatty.IsTerminal(os.Stdout.Fd())
			if file == "" && people {
				return fault.New(fault.Usage, "--config", "see 'tare controlplane --help' and docs/xds.md", "missing value")
			}
			if file != "" {
				f, err := openFile(file, "the configuration")
				if err != nil {
					return err
				}
				f.Close() // it is read again whenever it changes
			}
			if people {
				return controlplaneForPeople(cmd.Context(), file, listen, cmd.OutOrStdout())
			}
			conn := role.NewConn(os.Stdin, os.Stdout)
			return reported(conn, controlplane.Run(cmd.Context(), file, listen, conn))
		},
	}
	f := c.Flags()
	f.StringVar(&file, "config", "", "YAML file of services, or of resources in Envoy's form")
	f.StringVar(&listen, "listen", "127.0.0.1:0", "address to listen on; port 0 takes a free one")
	f.BoolVar(&human, "human", false, "print for people, not the role protocol; the default on a terminal")
	return c
}

// controlplaneForPeople runs the control plane until ctx ends, and prints what it says.
func controlplaneForPeople(ctx context.Context, file, listen string, w io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	input, endInput := io.Pipe() // never written: here only a signal ends it
	defer endInput.Close()
	said, says := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := controlplane.Run(ctx, file, listen, role.NewConn(input, says))
		says.Close()
		ended <- err
	}()
	var failed error
	for conn := role.NewConn(said, io.Discard); failed == nil && !unheard(w); {
		var m role.Message
		if m, failed = conn.Receive(); failed == nil {
			failed = printControlplane(w, m)
		}
	}
	if errors.Is(failed, io.EOF) {
		failed = nil
	}
	said.Close()
	stop()
	return errors.Join(<-ended, failed)
}

func printControlplane(w io.Writer, m role.Message) (err error) {
	switch m.Event {
	case role.Ready:
		var r controlplane.Ready
		if err = decodeMessage(m, &r); err == nil {
			_, err = fmt.Fprintf(w, "the control plane listens at %s: %s, %s, %s from %s\n", r.Address, quantity.Counted(r.Clusters, "cluster"),
				quantity.Counted(r.Endpoints, "endpoint assignment"), quantity.Counted(r.Listeners, "listener"), r.Config)
		}
	case role.Log:
		var line string
		if err = decodeMessage(m, &line); err == nil {
			_, err = fmt.Fprintln(w, printable(line))
		}
	}
	return err
}
