package kind

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"tare/internal/experiment/child"
	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/scale/host/cgroup"
)

// Joiner is a guest that takes part in trials beyond its own process. Join is called once for each part of a trial
// before anything is started: for applications first, then for loads, then for the subject. It returns the part's own
// value for this trial. The engine calls the hooks below that the value implements, and always Close in the end.
type Joiner interface {
	Join(t Trial, name string, part *Part) (any, error)
}

// The hooks, in the order of a trial. Contexts end when the trial does; an error of a hook fails the trial.
type (
	// Launcher is a subject, such as a sandbox, in which applications run, and loads with About.RunsInside. The engine
	// calls Launch to start each of them, several concurrently, instead of starting them itself. Patience is how long a
	// launched part may take to be ready. The other methods describe processes that were killed because memory was short:
	// the subject knows more about them than this machine's kernel reports. Component returns the component to which a
	// process of this machine belongs, by its PID, even after its end; "" if unknown. KilledInside lists processes that
	// were killed by another kernel, such as the kernel of a virtual machine.
	Launcher interface {
		Launch(context.Context, Launch) error
		Patience() time.Duration
		Component(pid int) string
		KilledInside(context.Context) []KilledInside
	}

	// Hoster is a Launcher or a Networked in which an application has an address other than 127.0.0.1. Host returns the
	// IP address at which the application listens and is reached. It is called before the application is started.
	Hoster interface {
		Host(app string) (string, error)
	}

	// Networked is a subject with private networks, in which applications, loads or components of the subject run. Network
	// returns the path of the network namespace in which the engine starts the application, load or component with the
	// given role and name; empty: this machine's. A Launcher chooses the network of what it launches.
	Networked interface {
		Network(as Role, name string) (string, error)
	}

	// Explainer is a subject that may know better than others why a trial failed: a load whose connection is refused is
	// often the first to notice that a proxy has ended. Explain returns err, or an error that wraps err with its cause.
	Explainer interface {
		Explain(err error) error
	}

	// Starter starts the processes of a subject, after the applications and before the loads. The engine starts any other
	// subject as one process (Command). If the subject does measured work (About.Works), the first process that it starts
	// does that work.
	Starter interface {
		Start(context.Context) error
	}

	// StartTimer is a Starter whose Start does something else than to start processes and to wait until they are ready.
	// StartTime returns how long that took, or 0 if Start has started none.
	StartTimer interface {
		StartTime() time.Duration
	}

	// Server is an application that the engine does not start as a Player (Command). Serve starts or finds the
	// application, and returns when it is ready. An App with an empty address serves no load.
	Server interface {
		Serve(context.Context) (App, error)
	}

	// Generator is a load that the engine does not start as a Player (Command). The engine calls Aim instead, after it has
	// started the applications and the subject. At the beginning of the schedule it calls Generate, which returns once the
	// load is under way. It calls Result once the window is closed and the trial's ledger exists.
	Generator interface {
		Aim(context.Context, Site) error
		Generate(context.Context, role.Schedule) error
		Result(context.Context) (load.Result, error)
	}

	// Addresser is a subject that serves applications. Address returns the host:port at which loads find an application.
	Addresser interface {
		Address(app string) (string, error)
	}

	// Before is called when everything is set up, before anything begins.
	Before interface {
		Before(context.Context) error
	}

	// Begun is called when loads have received their schedule.
	Begun interface {
		Begun(context.Context, role.Schedule) error
	}

	// Opened is called just after the counters of the ledger were read at the first edge of the window, and Closed just
	// after they were read at the second. Guests can read further counters in these hooks, for Evidence to return. The
	// time that Opened takes is inside the window.
	Opened interface {
		Opened(context.Context) error
	}
	Closed interface {
		Closed(context.Context) error
	}

	// After is called when the window is closed and all results exist: for the subject first, and then for loads and
	// applications.
	After interface {
		After(context.Context) error
	}

	// Evidence returns facts about the trial that only this guest knows, as a value that JSON can encode. The engine calls
	// it for the subject and for loads, after After, and records the value under the guest's name.
	Evidence interface {
		Evidence() any
	}

	// Stopper is a part with processes that the engine has not started. Stop ends them and their descendants. The engine
	// calls Stop of all parts before Close of any, because a subject in which they run can close only after their end.
	Stopper interface {
		Stop()
	}

	// Removed is called last, even if the trial failed: every process has ended, Close was called and the groups have
	// gone. It returns what the guest left behind on the machine (mounts, network devices, files), which becomes a
	// warning of the trial. An error means that leftovers affect later trials, or are unknown.
	Removed interface {
		Removed() (left []string, err error)
	}
)

// KilledInside is a process that a kernel other than this machine's killed because memory was short.
type KilledInside struct {
	Part    string // the application or load to which it belongs
	Process string // "process 80 (dd)", by that kernel's numbers
	Why     string // "the limit of its container is 67.1 MB"
}

// In describes the kill in a sentence; who names the part.
func (k KilledInside) In(who string) string {
	return fmt.Sprintf("the guest's own kernel killed %s of %s inside the sandbox, where %s", k.Process, who, k.Why)
}

// Launch describes an application, or a load with About.RunsInside, that a Launcher must start.
type Launch struct {
	Name string // name of the part, or of its copy
	Part *Part
	Dirs []string // directories of this machine in which the part works; it must find them at the same paths

	// Argv is the command line that starts the part without a launcher, with the path of its program, and Env its
	// environment; nil: this process's. A process of tare speaks the protocol of package role on standard input and
	// output.
	Argv, Env []string

	// Group has the limits of the part, and its use is charged to the part. Whatever runs the part belongs in it.
	Group Group

	// Start starts the part in g, which is Group or a group of the subject, and in the network namespace at the path
	// network; empty: this process's. With argv it starts that command instead, which must finally hand its standard
	// streams over to the part. The trial waits for the process, and ends it by closing its standard input.
	Start func(g Group, network string, argv ...string) (pid int, err error)
}

// Group is a control group of a trial.
type Group interface {
	Path() string                    // its identity, as in a ledger
	V2Dir() string                   // its directory in the v2 hierarchy; empty if there is none
	TreeName() string                // the name of the trial's tree of groups, which marks what the trial creates
	Members() []int                  // pids of the processes in it
	TreeMembers() []int              // pids of the processes in all groups of the trial
	LimitCPUs(cpus float64) error    // limits its CPU time, in CPUs; 0: unchanged
	In(network string) child.Starter // starts commands in it, and in the network namespace at that path
}

// Owners decides which leftovers of runs may be removed.
type Owners interface {
	// Ended reports whether the run whose name (Group.TreeName) marks a thing has ended. If that is unknown, Ended
	// records that the thing is left alone. The argument what describes the thing: "the directory /run/x".
	Ended(tree, what string) bool
	// Leave records that a thing is left alone because it is unknown whether its run has ended.
	Leave(tree, what string)
	// EndMarked ends the processes of a run, wherever they are, before anything of the run is removed.
	EndMarked(tree string) error
	// Dry reports whether things are only listed as removed, and not removed.
	Dry() bool
}

// Trial is the current trial, as a guest's hooks see it. Its methods may be used concurrently.
type Trial interface {
	Self() string // path of the tare binary
	Dir() string  // absolute path of a directory for files that processes read; removed with the run's files
	// Prepared returns the directory that a guest prepared for the run; empty if the guest is not a Preparer.
	Prepared(r Role, guest string) string
	Arm() string     // the arm that runs
	Setup() *Setup   // the parts at the trial's level; each copy of a part is a part
	WorkDir() string // cgroup v2 directory of the group of applications and loads; empty without a v2 hierarchy
	Cgroups() *cgroup.Layout

	Applications() map[string]App // the applications that serve loads, once they are ready
	Joined(load string) any       // the value that Join of a load returned; nil if it has no Join
	Result(load string) load.Result
	Process(load string) Process // the process of a load; nil before it is started

	// PartGroup returns the group of an application or a load, made before its process exists. What runs in it is charged
	// to that part.
	PartGroup(name string) (Group, error)
	// Begin returns a function that starts a process of an application or a load: in its PartGroup, or by the subject's
	// Launch if the subject launches the part. dirs become Launch.Dirs.
	Begin(ctx context.Context, name string, dirs ...string) (child.Starter, error)
	// Host returns the IP address at which an application must listen so that loads reach it.
	Host(app string) (string, error)
	// Observe charges an existing group, given by its path in a ledger, to the named application or component of the
	// subject, or to the subject as a whole if the name is empty. The trial neither changes nor removes the group.
	Observe(as Role, name, path string) error
	// SubjectGroup returns a group of the subject: of a component, or with an empty name the subject's only group. limits
	// are as in a spec, and the group is charged to the subject. The groups of components are inside a group with the
	// limits of the subject's part, so these limits hold for all components together. A component without a pin inherits
	// the pin of the subject's part.
	SubjectGroup(component string, limits param.Values) (Group, error)
	// ServingGroup returns the group of a component of the subject that serves a single application, such as a
	// container's shim or a sidecar. Its use is overhead of that application's workload. Such groups of one component are
	// reported together.
	ServingGroup(component, app string, limits param.Values) (Group, error)
	// StartSubject starts a process of the subject, which speaks the protocol of package role, in the group of a
	// component. The trial ends it.
	StartSubject(ctx context.Context, component string, limits param.Values, argv []string) (Process, error)
	// SetSubject sets the eBPF objects of the subject, and the subject's own description (JSON), which the record keeps.
	SetSubject(Objects, json.RawMessage)

	Record() *record.Trial // the record as far as it is complete
	// Read reads all counters once more, and records them as a further reading of that name.
	Read(ctx context.Context, name string) error
	Fail(error)                            // ends the trial
	Warn(code, format string, args ...any) // adds a warning to the ledger of the window
}

// App is an application that is ready.
type App struct {
	Address string // host:port
	Ready   []byte // its ready message, JSON
}

// Process is a process of a trial that speaks the protocol of package role.
type Process interface {
	PID() int
	Ready(context.Context) (json.RawMessage, error) // waits for its ready message
	Log() <-chan string                             // its log lines; while 16 wait to be received, others are dropped
	Dropped() int                                   // the number of these
	Signal(os.Signal) error
	Finished() <-chan struct{} // closed when its result has arrived
	Ended() <-chan struct{}    // closed when it has exited
	Failure(when string) error // why it ended, once it has; the argument follows "ended"
}

// Objects holds the eBPF programs and maps of a subject. Ready messages contain its JSON form.
type Objects struct {
	Version  string   `json:"version,omitempty"`
	Programs []Object `json:"programs"`
	Maps     []Object `json:"maps"`
	// Incomplete is true if some may be missing. What programs and maps use is then unknown.
	Incomplete bool `json:"-"`
}

// Object is a program or a map.
type Object struct {
	ID   uint32 `json:"id"`
	Name string `json:"name"`
}
