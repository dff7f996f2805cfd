package subject

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tare/internal/experiment/child"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/link"
	"tare/internal/experiment/role"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/sandboxes/microvm"
	"tare/internal/sandboxes/oci"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/sandbox"
)

// joined holds the sandboxes of a trial.
type joined struct {
	trial   kind.Trial
	part    *kind.Part
	runtime oci.Runtime
	root    *oci.Root

	mu        sync.Mutex
	tree      string // name of the trial's tree of groups; set when the first sandbox is launched
	sandboxes map[string]*sandboxed
	links     map[string]int // by application: the number of its pair of interfaces
	network   netip.Prefix   // the network of these interfaces
	begun     int64          // when the first sandbox was launched, by CLOCK_MONOTONIC in ns

	watch     sync.WaitGroup
	stopWatch context.CancelFunc
	charged   *course // written by a watching goroutine, and read after that goroutine has ended
	resident  *course
	evidence  Evidence

	ownBefore int64 // anonymous memory of this process before the trial
}

// sandboxed is one application or load of a trial, usually in a sandbox. Loads may be launched while another goroutine
// looks for the processes of sandboxes, so all fields except pid, asked and killed must be set when a sandboxed is
// added to joined.sandboxes.
type sandboxed struct {
	name  string
	dir   string // directory of its job; empty if it runs without a sandbox
	group kind.Group
	shim  kind.Group      // the shim's group; nil without a sandbox
	pid   int             // pid of the shim, or of the application itself; guarded by joined.mu
	link  string          // name of this machine's end of its pair of interfaces; empty: none
	space *link.Namespace // the shim's network, if separate; open until the sandbox has ended
	job   oci.Job

	asked  bool           // whether the runtime has reported the sandbox's state after the window
	killed []microvm.Kill // processes that were killed inside it until then
}

func (j *joined) plain() bool { return j.part.Options[settingRuntime] == none }

func (j *joined) ownNetwork() bool { return j.part.Options[settingNetwork] == ownNetwork }

// Host returns the address at which an application listens: that of the inner end of its pair of interfaces (package
// link). An application without a pair, such as one that no load uses, has the loopback address.
func (j *joined) Host(app string) (string, error) {
	served := false
	for _, l := range j.trial.Setup().Loads {
		served = served || l.To == app
	}
	if j.plain() || !j.ownNetwork() || !served {
		return "127.0.0.1", nil
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.network.IsValid() {
		var err error
		if j.network, err = link.FreeNet(); err != nil {
			return "", err
		}
	}
	if _, has := j.links[app]; !has {
		if len(j.links) == link.MostPairs {
			return "", fmt.Errorf("there are addresses for at most %d applications in sandboxes", link.MostPairs)
		}
		j.links[app] = len(j.links)
	}
	_, there := link.Addresses(j.network, j.links[app])
	return there.Addr().String(), nil
}

// Launch starts an application in a sandbox. It starts a shim, which creates the container, passes its own streams to
// the container, and keeps running as long as the container does. With the runtime `none`, Launch starts the
// application itself.
func (j *joined) Launch(ctx context.Context, l kind.Launch) error {
	j.mu.Lock()
	j.tree = l.Group.TreeName()
	if j.begun == 0 {
		j.begun = pace.Now()
	}
	j.mu.Unlock()
	s := &sandboxed{name: l.Name, group: l.Group}
	var network string
	var argv []string
	var err error
	in := l.Group
	if !j.plain() {
		network, argv, err = j.prepare(ctx, s, l)
		in = s.shim
	}
	j.mu.Lock() // whatever was prepared is found, and removed, even if the rest failed
	j.sandboxes[l.Name] = s
	j.mu.Unlock()
	if err != nil {
		return err
	}
	pid, err := l.Start(in, network, argv...)
	j.mu.Lock()
	defer j.mu.Unlock()
	s.pid = pid
	return err
}

// prepare makes the group of a sandbox's shim, the sandbox's bundle and job, and its network. It returns the path of
// the shim's network namespace (empty if the shim uses the namespace of this process) and the shim's command line.
func (j *joined) prepare(ctx context.Context, s *sandboxed, l kind.Launch) (network string, argv []string, err error) {
	if s.shim, err = j.trial.ServingGroup("shim", l.Name, nil); err != nil {
		return "", nil, err
	}
	j.mu.Lock()
	number, linked := j.links[l.Name]
	j.mu.Unlock()
	var here netip.Prefix
	s.job.Own = j.ownNetwork()
	if linked {
		here, s.job.Address = link.Addresses(j.network, number)
	}
	path, err := j.bundle(s, l)
	if err != nil {
		return "", nil, err
	}
	if ctx.Err() != nil {
		return "", nil, context.Cause(ctx)
	}
	if s.job.Own {
		if s.space, err = link.NewNamespace(); err != nil {
			return "", nil, err
		}
		network = s.space.Path()
	}
	if linked {
		s.link = "tare" + strconv.Itoa(os.Getpid()) + "s" + strconv.Itoa(number)
		err := link.MakePair(s.link, link.Inside, s.space)
		if err == nil {
			err = link.Configure(s.link, s.group.TreeName(), here)
		}
		if err != nil {
			return "", nil, err
		}
	}
	return network, append([]string{j.trial.Self()}, s.job.Args(path)...), nil
}

// bundle writes the bundle and the job of a sandbox. It returns the path of the job.
func (j *joined) bundle(s *sandboxed, l kind.Launch) (string, error) {
	state, err := oci.NewState(j.tree)
	if err != nil {
		return "", err
	}
	s.dir = filepath.Join(state, l.Name)
	program := l.Argv[0]
	if program == j.trial.Self() {
		program = oci.Tare
	} else if err := j.root.Add(program); err != nil {
		return "", err
	}
	for _, a := range l.Argv[1:] { // arguments may be programs, which a shell executes
		if info, err := os.Stat(a); filepath.IsAbs(a) && err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			if err := j.root.Add(a); err != nil {
				return "", err
			}
		}
	}
	for _, d := range l.Dirs {
		if err := j.root.Mountpoint(d); err != nil {
			return "", err
		}
	}
	id := j.tree + "-" + l.Name
	spec := oci.Spec{
		Args: slices.Concat([]string{program}, l.Argv[1:]), Root: j.root.Dir, Dirs: l.Dirs,
		Env:    append(added(l.Env), child.Mark+"="+j.tree),
		Cgroup: l.Group.Path() + "/" + id, HostNetwork: !s.job.Own, NetNS: "/proc/self/ns/net",
		Memory: uint64(j.part.Options.Float(settingMemory)),
	}
	if spec.Annotations, err = j.annotations(s); err != nil {
		return "", err
	}
	s.job.Container = oci.Container{Runtime: j.runtime, Root: filepath.Join(s.dir, "state"), Bundle: s.dir, ID: id}
	if err := spec.Write(s.dir); err != nil {
		return "", err
	}
	return s.job.Write(s.dir)
}

// overheadComponent is the component of overhead groups. Runtimes start processes in such a group, and later move them
// into the pod or leave them in the group.
const overheadComponent = "overhead"

// annotations returns the annotations that the runtime needs in a bundle. An overhead group belongs to the trial, so
// that its charges are reported, and it is removed with the trial.
func (j *joined) annotations(s *sandboxed) (map[string]string, error) {
	launch := sandbox.LaunchOf(j.runtime.Name)
	if launch.Main != sandbox.VMM || j.part.Options.On(settingOnly) {
		return launch.Config(j.part.Options, "").Annotations, nil
	}
	overhead, err := j.trial.ServingGroup(overheadComponent, s.name, nil)
	if err != nil {
		return nil, err
	}
	return launch.Config(j.part.Options, overhead.Path()).Annotations, nil
}

// added returns the variables of an environment that the environment of this process does not contain.
func added(env []string) []string {
	own := os.Environ()
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool { return slices.Contains(own, v) })
}

// Patience returns the time limit for an application to become ready after its sandbox was launched.
func (j *joined) Patience() time.Duration { return j.part.Options.Duration(settingReady) }

// Start starts nothing: it is called when all applications are ready, and records the time that this took.
func (j *joined) Start(context.Context) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.begun > 0 {
		j.evidence.ReadySeconds = float64(pace.Now()-j.begun) / 1e9
	}
	return nil
}

// StartTime returns 0, because the sandboxes were started with the applications: see sandbox_start_seconds.
func (j *joined) StartTime() time.Duration { return 0 }

// Begun starts goroutines that follow memory until the end of the window, read the CPU time of processes at the
// window's edges, and read the machine's memory just before the window's end.
func (j *joined) Begun(ctx context.Context, s role.Schedule) error {
	ctx, j.stopWatch = context.WithCancel(ctx)
	from, to := s.Begin+s.Warmup, s.Begin+s.Warmup+s.Duration
	following, stop := context.WithDeadline(ctx, time.Now().Add(time.Duration(to-pace.Now())))
	followed := make(chan struct{})
	j.watch.Go(func() {
		defer close(followed)
		j.resident = j.followProcesses(following, from)
	})
	j.watch.Go(func() {
		defer stop()
		var err error
		if j.charged, err = j.follow(following, from, to); err != nil && ctx.Err() == nil {
			j.trial.Fail(fmt.Errorf("following the memory of sandboxes: %w", err))
		}
	})
	j.watch.Go(func() {
		if pace.Sleep(ctx, time.Duration(from-pace.Now())) != nil {
			return
		}
		begun := j.find()
		before, threads := cpuTimes(begun), j.threads(begun)
		if pace.Sleep(ctx, time.Duration(to-pace.Now())-weighing) != nil {
			return
		}
		j.balance(ctx)
		if pace.Sleep(ctx, time.Duration(to-pace.Now())) != nil {
			return
		}
		found := j.find()
		all := j.describe(found, cpuSince(found, before), threads) // now, because loads inside sandboxes end soon
		<-followed
		j.resident.moment(to - from)
		j.resident.addResident(all)
	})
	return nil
}

// After waits until the processes of the sandboxes have been recorded, and reads the state of sandboxes that still run,
// as the runtime reports it.
func (j *joined) After(ctx context.Context) error {
	j.watch.Wait()
	for _, c := range []*course{j.charged, j.resident} {
		if c != nil && len(c.Parts) > 0 {
			j.evidence.Series = append(j.evidence.Series, c.Series)
		}
	}
	j.evidence.Places = j.evidence.places(j.trial.Record().Ledger)
	if j.evidence.chargedElsewhere(j.tree) {
		j.evidence.Balance = nil
	}
	for _, s := range j.inOrder() {
		if s.dir == "" {
			continue
		}
		if state, err := s.job.Container.State(ctx); err == nil {
			s.asked, s.killed = true, state.OutOfMemory()
			j.note(s.name, func(told *Sandbox) { told.Status = state.Status })
		}
	}
	return nil
}

// note changes the evidence of the sandbox with a name.
func (j *joined) note(name string, add func(*Sandbox)) {
	for i := range j.evidence.Sandboxes {
		if j.evidence.Sandboxes[i].Name == name {
			add(&j.evidence.Sandboxes[i])
		}
	}
}

// Evidence returns what was found about the sandboxes. The times of their ends are added later.
func (j *joined) Evidence() any { return &j.evidence }

// inOrder returns the sandboxes, sorted by name.
func (j *joined) inOrder() []*sandboxed {
	j.mu.Lock()
	defer j.mu.Unlock()
	return lists.Map(slices.Sorted(maps.Keys(j.sandboxes)), func(name string) *sandboxed { return j.sandboxes[name] })
}

// The names of the further readings of a trial.
const (
	readingRemoved   = "removed"   // after the sandboxes have been removed, but not their files
	readingReclaimed = "reclaimed" // after the kernel has reclaimed as much as it could
)

// Close ends the remaining sandboxes, and reads the memory for which their groups are still charged.
func (j *joined) Close() error {
	if j.stopWatch != nil {
		j.stopWatch()
	}
	j.watch.Wait()
	var errs []error
	for _, s := range j.inOrder() {
		if s.dir != "" {
			errs = append(errs, j.end(s))
		}
	}
	if err := errors.Join(errs...); err != nil || !j.empty() || j.trial.Record().Ledger == nil {
		return err
	}
	return j.look()
}

// empty reports whether there were sandboxes, all of whose processes have ended. An application without a sandbox may
// end later.
func (j *joined) empty() bool {
	all := j.inOrder()
	return len(all) > 0 && !slices.ContainsFunc(all, func(s *sandboxed) bool { return len(s.group.Members()) > 0 })
}

// end records how a sandbox ended, and ends a sandbox that is still running.
func (j *joined) end(s *sandboxed) (err error) {
	if s.space != nil {
		defer func() { err = errors.Join(err, s.space.Close()) }()
	}
	t, err := oci.ReadTimes(s.dir)
	if err != nil {
		return err
	}
	j.note(s.name, func(told *Sandbox) { told.Times = t })
	if t.Killed {
		j.trial.Warn("sandbox-killed", "%s in %s did not end in its time when it was asked to, and was killed",
			s.name, j.runtime.Name)
	}
	if t.Deleted == 0 { // the shim was killed
		err = s.job.Abandon(context.Background())
	}
	if s.link != "" {
		err = errors.Join(err, link.Remove(s.link, s.group.TreeName()))
	}
	return err
}

// look reads all counters twice more: after the sandboxes have been removed, and after the kernel has reclaimed as much
// as it can of the memory that is still charged.
func (j *joined) look() error {
	ctx := context.Background()
	if err := j.trial.Read(ctx, readingRemoved); err != nil {
		return err
	}
	asked := false
	for _, s := range j.inOrder() {
		asked = j.reclaim(s.group) || asked
	}
	if !asked {
		return nil
	}
	return j.trial.Read(ctx, readingReclaimed)
}

// reclaim makes the kernel reclaim as much memory of one of the trial's groups as it can, with force_empty on v1 and
// reclaim on v2 (Documentation/admin-guide/cgroup-v1/memory.rst and cgroup-v2.rst). It reports whether the kernel can
// be asked for that, which is so on v2 since Linux 5.19. Some memory may not be reclaimable, so it ignores other
// errors.
func (j *joined) reclaim(g kind.Group) (asked bool) {
	h, ok := j.trial.Cgroups().Controller("memory")
	if !ok {
		return false
	}
	dir, ok := h.Dir(g.Path())
	if !ok {
		return false
	}
	file, text := "memory.force_empty", "0"
	if h.V2 {
		current, err := os.ReadFile(filepath.Join(dir, "memory.current"))
		if err != nil {
			return false
		}
		file, text = "memory.reclaim", strings.TrimSpace(string(current))
	}
	return !errors.Is(cgroup.Write(filepath.Join(dir, file), text), fs.ErrNotExist)
}

// Removed removes everything that is left of the sandboxes on this machine, and returns what it found.
func (j *joined) Removed() ([]string, error) {
	if j.tree == "" || j.plain() {
		return nil, nil
	}
	left, err := oci.RemoveState(context.Background(), j.tree)
	mounts, unmounted := oci.Unmount(j.root.Dir)
	left = append(left, lists.Map(mounts, func(m string) string { return "the mount " + m })...)
	return left, errors.Join(err, unmounted)
}
