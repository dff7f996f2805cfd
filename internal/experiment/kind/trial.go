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
// before anything is started: for applications first, then for loads, then for the subject. What it returns is the
// part's own for this trial, on which the engine looks for the hooks below; Close is called in the end, whatever
// happened.
type Joiner interface {
	Join(t Trial, name string, part *Part) (any, error)
}

// The hooks, in the order of a trial. Contexts end when the trial does; an error of a hook fails the trial.
type (
	// Launcher is a subject in which applications run, and loads that are Inside: a sandbox. Launch starts one of them,
	// which is then not started plainly. It is called once for each, for several at the same time. Patience is how long it
	// may take until what was launched is ready. The others are about processes that were killed because memory was short,
	// of which it knows more than this machine's kernel says: Component is what a process of this machine was, by its PID,
	// also one that has ended, empty where that is not known; KilledInside are those that other kernels killed, such as a
	// guest's.
	Launcher interface {
		Launch(context.Context, Launch) error
		Patience() time.Duration
		Component(pid int) string
		KilledInside(context.Context) []KilledInside
	}

	// Hoster is a Launcher, or Networked, in which an application is reached elsewhere than at 127.0.0.1: Host is the IP
	// address that it has there, and listens at. It is called before the application is started.
	Hoster interface {
		Host(app string) (string, error)
	}

	// Networked is a subject with private networks, in which applications, loads or components of the subject run.
	// Network is the path of the network namespace in which the engine starts one of them, by its name; empty: this
	// machine's. What a Launcher launches is the launcher's.
	Networked interface {
		Network(as Role, name string) (string, error)
	}

	// Explainer is a subject that may know why a trial failed better than who noticed it: a load that is refused a
	// connection is often the first to tell that a proxy has ended. Explain gives err, or the error that it followed from
	// with err after it.
	Explainer interface {
		Explain(err error) error
	}

	// Starter starts the processes of a subject, after the applications and before the loads. Without it, a subject is
	// one process by its Command, if it has one. Of a subject that works, the first that it starts does the work.
	Starter interface {
		Start(context.Context) error
	}

	// Server is an application that is not started as a process by its Command. Serve starts or finds it, and returns
	// when it is ready. One with an empty address serves no load.
	Server interface {
		Serve(context.Context) (App, error)
	}

	// Generator is a load that is started in another way than as a process by its Command. Aim is called instead of
	// starting it, after the applications and the subject; Generate at the begin of the schedule, and returns once the
	// load is under way; Result when the window is closed and the trial's ledger is there.
	Generator interface {
		Aim(context.Context, Site) error
		Generate(context.Context, role.Schedule) error
		Result(context.Context) (load.Result, error)
	}

	// Addresser is a subject that serves applications: Address is where loads find one, host:port.
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

	// Edges is a guest that reads further counters over the window: Opened just after the counters of the ledger were
	// read at the first edge, and Closed just after those at the second. The time that Opened takes is inside the window.
	// Evidence hands what the two have read to the guest's metrics.
	Edges interface {
		Opened(context.Context) error
		Closed(context.Context) error
	}

	// After is called when the window is closed and all results are there, for loads last.
	After interface {
		After(context.Context) error
	}

	// Evidence is what only this guest knows of the trial, as JSON can have it. It is called after After, and kept in
	// the record under the guest's name.
	Evidence interface {
		Evidence() any
	}

	// Stopper is a part with processes that the engine has not started. Stop ends them, with those that it has started,
	// and before Close of any part: a subject that they run in closes when they have ended.
	Stopper interface {
		Stop()
	}

	// Removed is called last, when every process has ended, Close was called and the groups have gone, also when the
	// trial failed. It says what the guest left behind on the machine: mounts, network devices, files. These become a
	// warning of the trial. An error means that what is left affects later trials, or that it is unknown.
	Removed interface {
		Removed() (left []string, err error)
	}
)

// KilledInside is a process that a kernel other than this machine's killed because memory was short.
type KilledInside struct {
	Part    string // application or load that it was of
	Process string // "process 80 (dd)", by that kernel's numbers
	Why     string // "its container may have 67.1 MB"
}

// In says it of the part, in words.
func (k KilledInside) In(who string) string {
	return fmt.Sprintf("the guest's own kernel killed %s of %s inside the sandbox, where %s", k.Process, who, k.Why)
}

// Launch is an application, or a load that is Inside, to start.
type Launch struct {
	Name string // of the part, or of the copy of it
	Part *Part
	Dirs []string // of this machine, in which it works: it must find them at the same paths

	// Argv is what starts the part plainly, with the path of its program, and Env are the variables of its environment;
	// nil: this process's. Where it is a process of tare, it speaks the protocol of package role on standard input and
	// output.
	Argv, Env []string

	// Group has the limits of the part, and what it holds is charged to the part: this is where what runs the part
	// belongs.
	Group Group

	// Start starts the part in a group, this one or one of the subject's, and in a network namespace, by its path; empty:
	// in this process's. With argv it starts that instead, and leaves the streams to what that starts in the end. The
	// trial waits for it, and ends it by the end of its standard input.
	Start func(g Group, network string, argv ...string) (pid int, err error)
}

// Group is a control group of a trial.
type Group interface {
	Path() string                    // its identity, as a ledger has it
	V2Dir() string                   // its directory in the v2 hierarchy; empty where there is none
	TreeName() string                // of the trial's groups, by which what the trial makes is known to belong to it
	Members() []int                  // the processes in it
	TreeMembers() []int              // those in all groups of the trial
	LimitCPUs(cpus float64) error    // CPU time per time; 0: as it is
	In(network string) child.Starter // starts commands in it, and in a network namespace, as Launch.Start does
}

// Owners judge whether runs have ended, while what they left behind is removed.
type Owners interface {
	// Ended says whether what has a run's name, as of Group.TreeName, is of a run that has ended. What that is, such as
	// "the directory /run/x", is reported where it cannot be known.
	Ended(tree, what string) bool
	// Leave reports what is left alone, because it cannot be seen whether its run goes on.
	Leave(tree, what string)
	// EndMarked ends the processes of a run wherever they are, before something of them is removed.
	EndMarked(tree string) error
	// Dry is whether nothing is to be removed, and only given as removed.
	Dry() bool
}

// Trial is the trial under way, as a guest's hooks see it. Its methods may be used concurrently.
type Trial interface {
	Self() string // path of the tare binary
	Dir() string  // for files that processes read, absolute; it goes with the run
	// Prepared is the directory that a guest prepared for the run; empty where it is no Preparer.
	Prepared(r Role, guest string) string
	Arm() string     // that runs
	Setup() *Setup   // at the trial's level; each copy of a part is a part
	WorkDir() string // cgroup v2 directory of the group of applications and loads; empty where there is no v2 hierarchy
	Cgroups() *cgroup.Layout

	Applications() map[string]App // that serve somebody, once they are ready
	Joined(load string) any       // what the Join of a load gave; nil where it does not join
	Result(load string) load.Result
	Process(load string) Process // of a load, once it was started

	// PartGroup is the group of an application or a load, made before its process is there. What runs in it is charged
	// to that part.
	PartGroup(name string) (Group, error)
	// Begin gives how a process of an application or a load is started: in its PartGroup, or, where it is to run in what
	// the subject launches, by the subject's Launch. dirs are Launch's.
	Begin(ctx context.Context, name string, dirs ...string) (child.Starter, error)
	// Host is the IP address at which an application is to listen so that loads reach it.
	Host(app string) (string, error)
	// Observe says that the group at a path, as a ledger has it, is an application's, whose name is given, or the
	// subject's, without one: it was there before the trial, and what is charged to it is charged to that part. The
	// trial neither changes nor removes it.
	Observe(as Role, name, path string) error
	// SubjectGroup is a group of the subject: of a component, or where that is empty the subject's only one. limits
	// are as in a spec; what is charged to the group is charged to the subject. The groups of components are in one
	// that has the limits of the subject's part, which thus hold for all components together, except that a component
	// without a pin has the part's.
	SubjectGroup(component string, limits param.Values) (Group, error)
	// ServingGroup is the group of a component of the subject that serves a single application, such as a container's
	// shim or a sidecar. What it uses is tare to that application's workload. Such groups of one component are
	// reported together.
	ServingGroup(component, app string, limits param.Values) (Group, error)
	// StartSubject starts a process of the subject in the group of a component, which speaks the protocol of package
	// role. The trial ends it.
	StartSubject(ctx context.Context, component string, limits param.Values, argv []string) (Process, error)
	// SetSubject says what the subject consists of, and keeps its own words of itself, JSON, in the record.
	SetSubject(Objects, json.RawMessage)

	Record() *record.Trial                       // what is there of the record
	Read(ctx context.Context, name string) error // reads all counters once more, as a further reading of that name
	Fail(error)                                  // ends the trial
	Warn(code, format string, args ...any)       // adds a warning to the ledger of the window
}

// App is an application that is ready.
type App struct {
	Address string // host:port
	Ready   []byte // what it said of itself, JSON
}

// Process is a process of a trial that speaks the protocol of package role.
type Process interface {
	PID() int
	Ready(context.Context) (json.RawMessage, error) // waits for its ready message
	Log() <-chan string                             // its latest lines
	Signal(os.Signal) error
	Finished() <-chan struct{} // closed when its result has come
	Ended() <-chan struct{}    // closed when it has exited
	Failure(when string) error // why it ended, once it has; when reads on after "ended"
}

// Objects are the eBPF programs and maps of a subject. The JSON form is that of ready messages.
type Objects struct {
	Version  string   `json:"version,omitempty"`
	Programs []Object `json:"programs"`
	Maps     []Object `json:"maps"`
}

// Object is a program or a map.
type Object struct {
	ID   uint32 `json:"id"`
	Name string `json:"name"`
}
