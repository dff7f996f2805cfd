package cli

import (
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/mesh/connect"
	"tare/internal/mesh/generation"
)

func newLoadConnect() *cobra.Command {
	var w window
	var o connect.Options
	var service string
	cmd := &cobra.Command{
		Use:   "connect (--service IP:PORT | --replacer PID)",
		Short: "Connect UDP sockets to services as fast as possible; no packet is sent, so only connecting is measured",
		Example: `  tare load connect --service 10.96.0.1:80 --services 1000 --duration 5s
  tare load connect --replacer 4711 # judges to which endpoints connections come while that process replaces them`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if service != "" {
				if o.First, err = netip.ParseAddrPort(service); err != nil {
					err = fault.New(fault.Usage, "--service", "write it as 10.96.0.1:80", "%q is no address", service)
				}
			}
			return w.run(cmd, err,
				func(conn *role.Conn) error { return connect.Run(cmd.Context(), o, conn) },
				func() (worker, error) { return connect.New(o) }, printConnect)
		},
	}
	f := cmd.Flags()
	f.StringVar(&service, "service", "", "the first service, an IPv4 address and a port")
	f.IntVar(&o.Services, "services", 1, "number of services from that address on; each connection goes to a random one")
	f.BoolVar(&o.Endpoints, "endpoints", false, "fail unless a connection to each service shows an endpoint as its peer")
	f.IntVar(&o.Replacer, "replacer", 0, "process id of a data plane that replaces its configuration (--work replace): connect to its services, and judge")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of the random choices")
	w.flags(f, 0, 10*time.Second)
	return cmd
}

// printConnect writes the result for people.
func printConnect(w io.Writer, r *load.Result) error {
	line, err := times(r, load.Connect, "connect")
	if err != nil {
		return err
	}
	text := fmt.Sprintf("%d of %d connections made in %gs, %.0f/s\n", r.Done, r.Intended, r.Seconds, r.Rate)
	text += line + failures(r)
	if n, judged := r.Counts[generation.Judged]; judged {
		stale, torn, missed := r.Counts[generation.StaleCount], r.Counts[generation.TornCount], r.Counts[generation.MissedCount]
		text += fmt.Sprintf("%.0f of %.0f came to what is in neither the old nor the new set: %.0f of an older set, %.0f of no set, %.0f past the mesh\n", stale+torn+missed, n, stale, torn, missed)
		text += fmt.Sprintf("%.0f found an older set than the connection before\n", r.Counts[generation.BackwardCount])
		h, err := r.Histogram(generation.OldEndpoint)
		if err != nil {
			return err
		}
		if h != nil {
			text += fmt.Sprintf("an old endpoint was still found up to %s after a change began\n", shortTime(h.Max()))
		}
	}
	_, err = io.WriteString(w, text)
	return err
}
