// Package kind is what the engine knows of its guests. A guest is an application, a load or a subject: one folder,
// which declares it here and whatever else of it the engine is to know. The engine names no guest; a guest that needs
// more than to be started implements one of the small interfaces of this package, as with io.ReaderFrom.
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

// Role is what a guest is in an experiment.
type Role string

// The roles. The last is that of the scale itself, which is no guest's.
const (
	Application Role = "app"
	Load        Role = "load"
	Subject     Role = "subject"
	Self        Role = "self"
)

// About is what every guest says of itself.
type About struct {
	Name     string // as a spec and the command line have it
	Summary  string // one line, for lists
	Settings []param.Setting

	// Protocol is what an application serves and a load speaks. A load connects to applications of the same protocol,
	// or of AnyProtocol. An application without one serves no load, and a load without one connects to none.
	Protocol string

	// Label is the setting that distinguishes subjects of one kind. Empty: they go by Name.
	Label string

	// Process are all settings of the guest's process, where it has others than a spec: where it goes, where it listens.
	// An experiment provides them (Sited), a person by flags. Nil: they are Settings.
	Process []param.Setting

	// InPods is of applications and loads whose process needs nothing of its machine but the network: it can run
	// alone in a pod, without rights or files.
	InPods bool

	// AppProtocol is of applications that serve in pods: the appProtocol of their Service's port, by which a mesh learns
	// what it carries. Nil: the Service does not say.
	AppProtocol func(param.Values) string

	// Alone is how a person runs the guest by itself. Nil: it runs in experiments only.
	Alone *Alone

	// Loads

	StandsAlone bool // it can go to an application, and does without one where a spec names none

	// MakesEvents: its pieces of work are events, which something else is to deliver, and no requests. It makes processes
	// by the thousand: the groups of its trials are one for the scheduler where they can be, and counters are read at a
	// real-time priority.
	MakesEvents bool

	// MakesPieces: its pieces of work are no requests, such as changes that something else brings about. It has metrics of
	// its own for what one costs; those by the request, and throughput, are not of it.
	MakesPieces bool

	// HoldsConnections says whether it means to have all its connections open at once. Nil: it has none to hold.
	HoldsConnections Holds

	// RunsInside says whether it does its work where applications run: in what the subject launches (Launcher), where the
	// arm has such a subject. Its process may have another clock than this machine's, which it sends in role.Wants.
	RunsInside Holds

	// Rate is how many requests or events a second it makes, each of which has a latency. 0: that is not known before it
	// runs. Nil: it never is.
	Rate func(param.Values) float64

	Saturates Holds // it is as fast as it goes: then what it takes of the machine is a result

	// Subjects

	// InPath says whether its processes stand in the path of requests, as proxies do. In experiments with one, all arms
	// say who takes the CPU time of a request, so that what the subject adds can be added up.
	InPath Holds

	// Works says whether it does measured work itself, between the same edges as loads do, and reports it as they do
	// (package role). WorksAlone: without any load, whatever its options; where every arm has such a subject, an
	// experiment needs no loads.
	Works      Holds
	WorksAlone bool

	BoundsMemory Holds // it bounds the memory of what it runs by other means than limits of its control group

	// Trait says what to know of the subject with these options wherever an arm of it is named; nil or empty: nothing.
	Trait func(param.Values) string

	// Lacks says what it does not do of what others in a setup do, as a sentence goes on after
	// "is not the same service: "; nil or empty: nothing.
	Lacks func(*Setup) string

	// All guests

	// ReadyWithin is how long an application or a load may take until it is ready, where that is longer than usual.
	ReadyWithin Takes

	Tail Takes // time that a subject takes after the window, at most

	// TakesLonger is by how much a trial with the guest takes longer than usual: it starts slowly, settles before the
	// window, or finishes something after it, as measured on the project's machine (go run ./test/bench/estimates -v).
	// Estimates of how long a run will take add it up.
	TakesLonger Takes

	// Probes are of the programs that it needs, for 'tare doctor', each with what is lost without it and how to get it.
	// They start nothing but what prints a version.
	Probes func() []*feature.Probe
}

// Holds says whether something is so with these options. Nil: it never is.
type Holds func(param.Values) bool

// With evaluates it.
func (h Holds) With(o param.Values) bool { return h != nil && h(o) }

// Always is what holds with any options.
func Always(param.Values) bool { return true }

// Takes is how long something takes with these options. Nil: no time.
type Takes func(param.Values) time.Duration

// With evaluates it.
func (t Takes) With(o param.Values) time.Duration {
	if t == nil {
		return 0
	}
	return t(o)
}

// ProcessSettings are the settings of the guest's process.
func (a About) ProcessSettings() []param.Setting {
	if a.Process != nil {
		return a.Process
	}
	return a.Settings
}

// AnyProtocol is the Protocol of applications and loads that are arbitrary programs: what they speak is unknown, and
// whether two of them are compatible shows when they run.
const AnyProtocol = "any"

// Reaches reports whether a load can go to an application, by what the two speak.
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

// Player is a guest whose process is the tare binary: Play is all that the process does. It speaks the protocol of
// package role on conn (role.Play for an application, role.Work for a load and for a subject that works) and returns
// when the parent has closed its end. The values are those of the settings of its process (About.ProcessSettings).
type Player interface {
	Play(ctx context.Context, conn *role.Conn, v param.Values) error
}

// Sited is a Player whose process must know its surroundings in a trial. At gives them as values of the settings that
// its process has beside those of a spec. It is called in the process that runs the trial.
type Sited interface {
	At(Site) param.Values
}

// Site is the surroundings of a guest's process in a trial.
type Site struct {
	Address      string // of loads: where to go, host:port
	Served       bool   // of loads: the subject serves that address, and takes it to this machine
	Ready        []byte // of loads: what the application said of itself when it was ready, JSON
	Seed         uint64 // of loads: for their arrivals
	Host         string // of applications: the IP address to listen at
	Port         int    // of applications: the port to listen at; 0: any that is free
	Subject      any    // of loads: what the subject's Join gave; nil where the arm has none
	SubjectReady []byte // of loads: what the subject said of itself when it was ready (Trial.SetSubject), JSON
}

// Preparer is a guest that needs something once for a run, before its first trial: a root file system, certificates.
// Prepare is called once for each such guest that takes part in a trial of the run, and its error ends the run. Trials
// on nodes are prepared at each node, each by itself.
type Preparer interface {
	Prepare(context.Context, Preparation) error
}

// Preparation holds the arguments of a guest that prepares a run.
type Preparation struct {
	Self  string  // path of the tare binary
	Dir   string  // absolute; empty, and the guest's own until the run ends, when it is removed with all that is in it
	Parts []*Part // of this guest, as the trials have them: those that differ in their options, each once
}

// Checker checks the options of a guest together. Its error reads on after the part's place in the spec.
type Checker interface {
	Check(param.Values) error
}

// SetupChecker checks a part of this guest against the rest of the experiment, at one level. Its error is of that part,
// or of the part at another path, by an *ElsewhereError.
type SetupChecker interface {
	CheckSetup(s *Setup, path string, part *Part) error
}

// ElsewhereError is an error of another part than the one that was checked.
type ElsewhereError struct {
	Path string // loads.client
	Err  error
}

func (e *ElsewhereError) Error() string { return e.Path + ": " + e.Err.Error() }
func (e *ElsewhereError) Unwrap() error { return e.Err }

// Variant is a subject that is none: the baseline with other settings of its applications or loads. Sets gives what it
// sets, as assignments ("server.delay=50us").
type Variant interface {
	Sets(param.Values) []string
}

// Installed is a subject whose program must already be installed. Installed returns a *fault.Error of code Machine
// that says what is missing. Optional reports whether a run may go on without the arm.
type Installed interface {
	Installed(context.Context, param.Values) error
	Optional(param.Values) bool
}

// Versioned is a subject that reports the name and version of what it runs. own is the tare binary's version.
type Versioned interface {
	Version(ctx context.Context, o param.Values, own string) (name, version string)
}

var registry = map[Role]map[string]Guest{Application: {}, Load: {}, Subject: {}}

// Register adds a guest; for init functions. A name that is taken is a defect, and panics.
func Register(r Role, g Guest) {
	name := g.About().Name
	if _, taken := registry[r][name]; taken {
		panic(fmt.Sprintf("%s %s is registered twice", r, name))
	}
	registry[r][name] = g
}

// All is every guest of a role, in the order of their names.
func All(r Role) []Guest {
	return lists.Map(Names(r), func(name string) Guest { return registry[r][name] })
}

// Names are those of all guests of a role, in order.
func Names(r Role) []string { return slices.Sorted(maps.Keys(registry[r])) }

// Find is the guest of a name; nil where there is none.
func Find(r Role, name string) Guest { return registry[r][name] }
