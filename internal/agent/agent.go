// Package agent implements tare-agent, which weighs a machine for as long as it runs and serves the result as
// Prometheus metrics. The only packages of this module that it imports are in internal/scale and internal/lib, so it
// contains no code of experiments. Start reading at run.
package agent

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"os/signal"
	"runtime"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"kernel.org/pub/linux/libs/security/libcap/cap"

	"tare/internal/lib/fault"
	"tare/internal/lib/privilege"
	"tare/internal/lib/self"
	"tare/internal/lib/usage"
)

// Main runs tare-agent with its arguments and returns the exit code.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGINT, unix.SIGTERM)
	defer stop()
	cmd := Command()
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err != nil {
		fault.Print(os.Stderr, err)
	}
	return int(fault.CodeOf(err))
}

// Command returns the command line of tare-agent.
func Command() *cobra.Command {
	var c configuration
	cmd := &cobra.Command{
		Use:   "tare-agent",
		Short: "Weigh this machine for Prometheus, for as long as the agent runs",
		Long: `Tare-agent weighs the machine that it runs on, and serves Prometheus metrics: the CPU budget of the machine, whose
lines sum to its capacity; CPU time and memory of each pod, container, systemd unit and control group; run time of each
eBPF program, and who pays for it; and what the agent itself costs.

  /metrics    the metrics, in the text formats of Prometheus and OpenMetrics
  /v1/ledger  a window as a JSON document of the schema tare.ledger/v1: ?for=10s says how long it lasts, &at=TIME when
              it begins (RFC 3339); only for clients on this machine, unless --web.config.file requires a password or a
              client certificate
  /v1/clock   the time of this machine as JSON, {"time": TIME}, for the same clients
  /healthz    200 if the machine can be weighed

A scrape reads the counters. Every counter begins at 0 when the agent starts. What cannot be read is absent, and
tare_agent_collector_success is 0 for it. Where CPU time cannot be read, the scrape fails.

To see everything without being root, the agent needs the capabilities CAP_SYS_ADMIN (eBPF programs and maps),
CAP_PERFMON and CAP_BPF (samples, stolen time), CAP_SYSLOG, CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH. Without one of them
it omits what needs it.`,
		Example: `  tare-agent
  tare-agent --listen 127.0.0.1:9633 --max-series 500
  tare-agent --config /etc/tare/agent.yaml
  curl -s http://127.0.0.1:9633/metrics | grep tare_node_cpu_seconds
  curl -s 'http://127.0.0.1:9633/v1/ledger?for=10s'`,
		Version:       self.Version + " " + self.Build(),
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          usage.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := c.read(cmd.Flags()); err != nil {
				return err
			}
			return run(cmd.Context(), &c)
		},
	}
	cmd.SetFlagErrorFunc(usage.FlagError)
	c.addFlags(cmd.Flags())
	return cmd
}

// run weighs the machine and serves the result until the context ends.
func run(ctx context.Context, c *configuration) (err error) {
	if os.Getenv("GOMAXPROCS") == "" {
		// The agent has no parallel work. With more than one P, Go's runtime wakes another thread to look for work each time
		// the agent wakes up, and collects garbage on all idle CPUs.
		runtime.GOMAXPROCS(1)
	}
	saveMemory() // until afterStart, which restores the usual growth of the heap
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	listener, err := listen(c)
	if err != nil {
		return err
	}
	defer listener.Close()
	if err := privilege.Keep(cap.DAC_READ_SEARCH, cap.SYS_PTRACE, cap.IPC_LOCK, cap.SYS_ADMIN, cap.BPF, cap.PERFMON,
		cap.SYSLOG); err != nil {
		return err
	}
	w, err := newWeigher(ctx, c, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	afterStart()
	return serve(ctx, c, w, listener, log)
}
