// Package tracer runs tracing agents as subjects: programs that report every exec that they see. A tracer consists of a
// command line, and rules for how it shows that it is ready, what it has delivered, and what it reports as lost. This
// package counts the delivered events in the tracer's output. The load's Counting, which has independent counts,
// decides whether these were all events.
package tracer

import (
	"context"
	"regexp"
	"syscall"
	"time"

	"tare/internal/experiment/child"
	cmdline "tare/internal/experiment/process"
	"tare/internal/lib/fault"
	execload "tare/internal/tracing/exec"
)

// Scopes are the values of Tracer.Scope.
var Scopes = []string{string(execload.ScopeGroup), string(execload.ScopeMachine)}

// Tracer describes how to run a tracer and read its output.
type Tracer struct {
	Argv        []string          // the program and its arguments
	Env         []string          // added to this process's environment, as NAME=value
	Filesystems []filesystem      // needed by the tracer; missing ones are mounted for it in a new mount namespace
	Files       map[string]string // by name: text of files that are written to Place.Dir before the start
	Version     []string          // command line that prints the version; empty: none
	Ready       Ready
	Delivered   Source
	Lost        *Source // nil: the tracer does not report losses
	Scope       execload.Scope
	Stop        syscall.Signal // makes the tracer end, and deliver its remaining events
	StopTime    time.Duration  // how long the tracer gets to end
	Ask         syscall.Signal // makes the tracer write its totals at once; 0: it writes them by itself
	Install     string         // where to get it, for people
}

// Ready describes how a tracer shows that it sees every exec from now on. The conditions are awaited in the order of
// the fields. If no field is set, the tracer is ready at once.
type Ready struct {
	Pattern *regexp.Regexp // the tracer writes a matching line on either stream
	After   time.Duration  // this time passes
	Probe   bool           // the tracer delivers one of the execs that probe it
}

// Stream is one of the outputs of a process.
type Stream string

// The streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Streams are the values of Stream.
var Streams = []string{string(Stdout), string(Stderr)}

// Source describes how to read a number of events. Exactly one of Lines, Sum, JSON and Metric is set.
type Source struct {
	Stream Stream    // for Lines, Sum and JSON; empty: both
	Lines  *matcher  // every matching line is one event
	Sum    *matcher  // the sum of the numbers that the first group captures
	JSON   []string  // a path in lines of JSON to a running total; the latest counts
	Metric *selector // a Prometheus metric: the sum of all selected samples
	URL    string    // address of the page of metrics; the URL of Tracer.Delivered is used for Tracer.Lost, too
}

// placeholders are the names that a command line may contain in braces, in the order of the documentation: those of
// process.Place that are known for a tracer.
var placeholders = []string{"self", "cgroup_dir", "cgroup_id", "cgroup_path", "dir", "port"}

// self is the placeholder for the path of the tare binary.
const self = "{self}"

// Self reports whether the tracer is a command of the tare binary.
func (t *Tracer) Self() bool { return t.Argv[0] == self }

// Installed returns an error if the program is not installed: a *fault.Error of code Machine that says where to get it.
func (t *Tracer) Installed() error {
	if t.Self() {
		return nil
	}
	if _, err := child.Find(t.Argv[0]); err != nil {
		return fault.New(fault.Machine, t.Argv[0], t.Install, "not installed")
	}
	return nil
}

// VersionText returns the program's version in one line, or "" if the program prints none.
func (t *Tracer) VersionText(ctx context.Context) string { return cmdline.FirstLine(ctx, t.Version...) }

// signals are the signals that a spec can name.
var signals = map[string]syscall.Signal{
	"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "QUIT": syscall.SIGQUIT, "HUP": syscall.SIGHUP,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
}

// StopSignals and AskSignals are the names of signals that settings accept.
var (
	StopSignals = []string{"INT", "TERM", "QUIT", "HUP"}
	AskSignals  = []string{"USR1", "USR2", "HUP"}
)
