// Package tracer runs tracing agents as subjects: any programs that report every exec that they see. A tracer is a
// command line, and rules for how it shows that it is ready, what it has delivered, and what it reports as lost.
// Delivered events are counted here, in its output; the load's Counting, which has independent counts, decides whether
// that was all.
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

// Tracer describes how one tracer is run and read.
type Tracer struct {
	Argv        []string          // the program and its arguments
	Env         []string          // added to this process's environment, as NAME=value
	Filesystems []filesystem      // that it needs; missing ones are mounted for it in a new mount namespace
	Files       map[string]string // written into Place.Dir before it starts, by name
	Version     []string          // prints the version; empty: it has none
	Ready       Ready
	Delivered   Source
	Lost        *Source // nil: it does not report losses
	Scope       execload.Scope
	Stop        syscall.Signal // makes it end, and deliver what it still has
	StopTime    time.Duration  // the time it gets for that
	Ask         syscall.Signal // makes it write its totals at once; 0: it writes them by itself
	Install     string         // where to get it, for people
}

// Ready is how a tracer shows that it sees every exec from now on: by a matching line on either stream; then after a
// time; then by delivering one of the execs that are made for it to see. Without any of these it is ready at once.
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

// Streams are their values.
var Streams = []string{string(Stdout), string(Stderr)}

// Source is where a number of events comes from. One of the four is set.
type Source struct {
	Stream Stream    // for the first three; empty: both
	Lines  *matcher  // every matching line is one event
	Sum    *matcher  // the sum of numbers in lines: what the first group of the pattern captures
	JSON   []string  // a path into lines of JSON, to a running total: the latest counts
	Metric *selector // a Prometheus metric, the sum of all matching samples
	URL    string    // of the metric
}

// placeholders are what a command line may contain in braces, in the order of the documentation: those of
// process.Place that are known for a tracer.
var placeholders = []string{"self", "cgroup_dir", "cgroup_id", "cgroup_path", "dir", "port"}

// self is the placeholder for the tare binary.
const self = "{self}"

// Self reports whether the tracer is a role of the tare binary.
func (t *Tracer) Self() bool { return t.Argv[0] == self }

// Installed returns an error if the program is not installed: a *fault.Error of code Machine that says where to get
// it.
func (t *Tracer) Installed() error {
	if t.Self() {
		return nil
	}
	if _, err := child.Find(t.Argv[0]); err != nil {
		return fault.New(fault.Machine, t.Argv[0], t.Install, "not installed")
	}
	return nil
}

// VersionText returns the program's version in one line; empty if it prints none.
func (t *Tracer) VersionText(ctx context.Context) string { return cmdline.FirstLine(ctx, t.Version...) }

// signals are the signals that a spec can name.
var signals = map[string]syscall.Signal{
	"INT": syscall.SIGINT, "TERM": syscall.SIGTERM, "QUIT": syscall.SIGQUIT, "HUP": syscall.SIGHUP,
	"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2,
}

// StopSignals and AskSignals are the values for signals.
var (
	StopSignals = []string{"INT", "TERM", "QUIT", "HUP"}
	AskSignals  = []string{"USR1", "USR2", "HUP"}
)
