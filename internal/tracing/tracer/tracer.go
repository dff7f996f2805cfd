// Package tracer runs tracing agents as subjects: programs, ours or anybody's, that say something of every exec that
// they see. A tracer is a command line, and rules by which it shows that it is ready, what it has delivered, and what
// it says it lost. What is delivered is counted here, on its output; whether that is all there was to deliver is for
// others to say, who have counts of their own.
package tracer

import (
	"context"
	"os/exec"
	"regexp"
	"syscall"
	"time"

	cmdline "tare/internal/experiment/process"
	"tare/internal/lib/fault"
	execload "tare/internal/tracing/exec"
)

// Scopes are the words for whose execs a tracer delivers.
var Scopes = []string{string(execload.ScopeGroup), string(execload.ScopeMachine)}

// Tracer is how one tracer is run and read.
type Tracer struct {
	Argv        []string          // the program and its arguments
	Env         []string          // variables beside those of this process, as NAME=value
	Filesystems []filesystem      // that it needs; those not mounted it gets in a mount namespace of its own
	Files       map[string]string // written into Place.Dir before it starts, by name
	Version     []string          // prints the version; empty: it has none to tell
	Ready       Ready
	Delivered   Source
	Lost        *Source // nil: it does not say
	Scope       execload.Scope
	Stop        syscall.Signal // tells it to end, and to deliver what it still has
	StopTime    time.Duration  // that it gets for it
	Ask         syscall.Signal // has it write its totals at once; 0: it writes them when it likes
	Install     string         // where to get it, for people
}

// Ready is how a tracer shows that it sees every exec from now on: by a line that matches, on either stream; then by
// a time; then by delivering one of the execs that are made for it to see. Where it has none of these it is ready at
// once.
type Ready struct {
	Pattern *regexp.Regexp
	After   time.Duration
	Probe   bool
}

// Stream is one of the outputs of a process.
type Stream string

// The streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Streams are the words for them.
var Streams = []string{string(Stdout), string(Stderr)}

// Source is where a number of events comes from. One of the four is set.
type Source struct {
	Stream Stream    // of the first three; empty: both
	Lines  *matcher  // every line that matches is one event
	Sum    *matcher  // numbers in lines, added up: what the first group of the pattern captures
	JSON   []string  // a path into lines of JSON, to a running total: the latest counts
	Metric *selector // a Prometheus metric, all samples that match added up
	URL    string    // of the metric
}

// placeholders are what a command line may have in braces, in the order of the documentation: those of process.Place
// that are known of a tracer.
var placeholders = []string{"self", "cgroup_dir", "cgroup_id", "cgroup_path", "dir", "port"}

// self is the placeholder for the tare binary.
const self = "{self}"

// Self says whether the tracer is a role of the tare binary.
func (t *Tracer) Self() bool { return t.Argv[0] == self }

// Installed says whether the program is there. The error is a *fault.Error of code Machine that says where to get it.
func (t *Tracer) Installed() error {
	if t.Self() {
		return nil
	}
	if _, err := exec.LookPath(t.Argv[0]); err != nil {
		return fault.New(fault.Machine, t.Argv[0], t.Install, "not installed")
	}
	return nil
}

// VersionText is what the program says of its version, in one line; empty where it says nothing.
func (t *Tracer) VersionText(ctx context.Context) string { return cmdline.FirstLine(ctx, t.Version...) }

// signals are those that a spec can name.
var signals = map[string]syscall.Signal{
	"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "QUIT": syscall.SIGQUIT, "HUP": syscall.SIGHUP,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
}

// StopSignals and AskSignals are the words for signals.
var (
	StopSignals = []string{"INT", "TERM", "QUIT", "HUP"}
	AskSignals  = []string{"USR1", "USR2", "HUP"}
)
