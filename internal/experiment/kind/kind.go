// Package kind defines the engine's view of guests. A guest is an application, a load or a subject. Each has one
// folder, which registers the guest here with all that the engine needs to know about it. The engine names no guest; a
// guest that needs more than to be started implements optional small interfaces of this package, in the manner of
// io.ReaderFrom.
package kind

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"tare/internal/experiment/role"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/scale/host/feature"
)

// Role is the role of a guest in an experiment.
type Role string

// The roles. Self is the role of Tare itself, which no guest has.
const (
	Application Role = "app"
	Load        Role = "load"
	Subject     Role = "subject"
	Self        Role = "self"
)

// About holds what every guest declares about itself.
type About struct {
	Name     string // in specs and on the command line
	Summary  string // one line, for lists
	Settings []param.Setting

	// Protocol names the protocol that an application serves or a load speaks. A load connects to applications of the same
	// protocol, or of AnyProtocol. An application without a protocol serves no load, and a load without one connects to
	// none.
	Protocol string

	// Label is the setting that distinguishes subjects of one kind in reports. Empty: they are shown by Name.
	Label string

	// Process holds all settings of the guest's process, if they differ from Settings, for example by one for where it
	// connects or listens. An experiment provides the values of such settings (Sited), and a person gives them as flags.
	// Nil: the process has Settings.
	Process []param.Setting

	// InPods is true for applications and loads whose process needs nothing of its machine but the network, so it can run
	// alone in a pod, without privileges or files.
	InPods bool

	// AppProtocol returns, for an application that serves in pods, the appProtocol of its Service's port, which tells a
	// mesh the protocol. Nil: the Service has none.
	AppProtocol func(param.Values) string

	// Alone describes how a person runs the guest by itself. Nil: it runs in experiments only.
	Alone *Alone

	// Loads

	StandsAlone bool // it can connect to an application, but runs without one if a spec names none

	// MakesPieces is true if the pieces of work are not requests, but, for example, changes made by something else. Such a
	// load has its own metrics for the cost of a piece; metrics per request, and throughput, do not apply.
	MakesPieces bool

	// HoldsConnections reports whether it should have all its connections open at once. Nil: it holds none.
	HoldsConnections Holds

	// RunsInside reports whether it runs where applications run, if the arm's subject launches them (Launcher). The clock
	// of its process may differ from this machine's; the process then sends it in role.Wants.
	RunsInside Holds

	// Rate returns the number of requests, or of events with a latency, that it makes per second; 0 if that is unknown
	// before it runs. Nil: it is never known.
	Rate func(param.Values) float64

	Saturates Holds // it runs as fast as it can, so its use of the machine is a result

	// Subjects

	// InPath reports whether its processes are in the path of requests, as proxies are. In an experiment with such a
	// subject, all arms report who uses the CPU time of a request, so that the subject's share can be added up.
	InPath Holds

	// Works reports whether it does measured work itself, between the edges of the window, and sends a result as loads do
	// (package role). WorksAlone is true if it works without any load, whatever its options. If every arm has such a
	// subject, an experiment needs no loads.
	Works      Holds
	WorksAlone bool

	BoundsMemory Holds // it limits the memory of what it runs by means other than its control group

	// Trait returns a remark that accompanies the name of an arm with these options; nil or "": none.
	Trait func(param.Values) string

	// Lacks describes work that other subjects in a setup do and this one does not, as the end of a sentence that begins
	// with "is not the same service: "; nil or "": there is none.
	Lacks func(*Setup) string

	// All guests

	// ReadyWithin returns the time that an application or a load may take to be ready, if that is longer than usual.
	ReadyWithin Takes

	Tail Takes // the longest time that a subject takes after the window

	// TakesLonger returns the extra time of a trial with the guest, because it starts slowly, settles before the window,
	// or finishes something after it. It was measured on the machine on which Tare is developed (go run
	// ./test/bench/estimates -v). Estimates of the length of a run include it.
	TakesLonger Takes

	// Probes returns probes of the programs that it needs, for 'tare doctor'. Each says what is lost without the program
	// and how to get it. Probes start only commands that print a version.
	Probes func() []*feature.Probe
}

// Holds reports whether something is true with these options. Nil: it never is.
type Holds func(param.Values) bool

// With evaluates h, which may be nil.
func (h Holds) With(o param.Values) bool { return h != nil && h(o) }

// Always is a Holds that is always true.
func Always(param.Values) bool { return true }

// Takes returns how long something takes with these options. Nil: no time.
type Takes func(param.Values) time.Duration

// With evaluates t, which may be nil.
func (t Takes) With(o param.Values) time.Duration {
	if t == nil {
		return 0
	}
	return t(o)
}

// ProcessSettings returns the settings of the guest's process.
func (a About) ProcessSettings() []param.Setting {
	if a.Process != nil {
		return a.Process
	}
	return a.Settings
}

// AnyProtocol is the Protocol of applications and loads that are arbitrary programs. Whether two of them are
// compatible shows only when they run.
const AnyProtocol = "any"

// Reaches reports whether a load can connect to an application, by their protocols.
func Reaches(load, application About) bool {
	if load.Protocol == "" || application.Protocol == "" {
		return false
	}
	return load.Protocol == application.Protocol || load.Protocol == AnyProtocol || application.Protocol == AnyProtocol
}

// Guest is an application, a load or a subject.
type Guest interface {
	About() About
}

// Player is a guest whose process is the tare binary. Play is all that the process does: it speaks the protocol of
// package role on conn (role.Play for an application, role.Work for a load and for a subject that works) and returns
// when the parent has closed its end. v holds the values of the process's settings (About.ProcessSettings).
type Player interface {
	Play(ctx context.Context, conn *role.Conn, v param.Values) error
}

// Sited is a Player whose process must know its surroundings in a trial. At returns them as values of the process's
// settings that a spec does not have. It is called in the process that runs the trial.
type Sited interface {
	At(Site) param.Values
}

// Site describes the surroundings of a guest's process in a trial.
type Site struct {
	Address string // of loads: where to connect, host:port
	// Served is for loads: the subject serves Address in this machine's network, so connections end on this machine.
	Served       bool
	Ready        []byte // of loads: the ready message of the application, JSON
	Seed         uint64 // of loads: for their arrivals
	Host         string // of applications: the IP address on which to listen
	Port         int    // of applications: the port on which to listen; 0: any free port
	Subject      any    // of loads: the value that the subject's Join returned; nil if the arm has no subject
	SubjectReady []byte // of loads: the ready message of the subject (Trial.SetSubject), JSON
}

// Preparer is a guest that prepares something once for a run, before its first trial: a root file system, certificates.
// Prepare is called once for each such guest that takes part in a trial of the run, and its error ends the run. For
// trials on nodes, each node prepares for itself, before each trial.
type Preparer interface {
	Prepare(context.Context, Preparation) error
}

// Preparation holds the arguments of a guest that prepares a run.
type Preparation struct {
	Self  string  // path of the tare binary
	Dir   string  // absolute, empty, and for this guest alone; removed with its contents when the run ends
	Parts []*Part // parts of this guest in the trials, without duplicates
}

// Checker checks the options of a guest together. Its error continues a sentence that begins with the part's place.
type Checker interface {
	Check(param.Values) error
}

// SetupChecker checks a part of this guest against the rest of the experiment, at one level. Its error is about that
// part, or, as an *ElsewhereError, about another.
type SetupChecker interface {
	CheckSetup(s *Setup, path string, part *Part) error
}

// ElsewhereError is an error about a part other than the one that was checked.
type ElsewhereError struct {
	Path string // place of the part in the spec, such as loads.client
	Err  error
}

func (e *ElsewhereError) Error() string { return e.Path + ": " + e.Err.Error() }
func (e *ElsewhereError) Unwrap() error { return e.Err }

// Variant is a subject that stands for the baseline with other settings of its applications or loads. Sets returns
// those settings, as assignments ("server.delay=50us").
type Variant interface {
	Sets(param.Values) []string
}

// Installed is a subject whose program must already be installed. Installed returns an error with the code
// fault.Machine that says what is missing. Optional reports whether a run may go on without the arm.
type Installed interface {
	Installed(context.Context, param.Values) error
	Optional(param.Values) bool
}

// Versioned is a subject that reports the name and version of what it runs. The argument own is the tare binary's
// version.
type Versioned interface {
	Version(ctx context.Context, o param.Values, own string) (name, version string)
}

var registry = map[Role]map[string]Guest{Application: {}, Load: {}, Subject: {}}

// Register adds a guest; it is called from init functions. It panics if the name is taken.
func Register(r Role, g Guest) {
	name := g.About().Name
	if _, taken := registry[r][name]; taken {
		panic(fmt.Sprintf("%s %s is registered twice", r, name))
	}
	registry[r][name] = g
}

// All returns every guest of a role, in the order of their names.
func All(r Role) []Guest {
	return lists.Map(Names(r), func(name string) Guest { return registry[r][name] })
}

// Names returns the names of all guests of a role, in order.
func Names(r Role) []string { return slices.Sorted(maps.Keys(registry[r])) }

// Find returns the guest with the given name, or nil.
func Find(r Role, name string) Guest { return registry[r][name] }
