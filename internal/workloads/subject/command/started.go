package command

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/process"
	"tare/internal/experiment/process/part"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// Evidence describes a command's processes, memory and eBPF objects, as Tare finds them after the window has closed and
// before it stops the command.
type Evidence struct {
	process.Found
	Observed string `json:"observed,omitempty"` // the observed program, as named in the spec
	// MemoryPeakBytes is the most memory that the kernel has charged to the command's group. It is nil if the kernel does
	// not report that, or if the group existed before the trial.
	MemoryPeakBytes *uint64 `json:"memory_peak_bytes"`
	// Files holds the SHA-256, in hexadecimal, of the user's files with which the command was configured, by name.
	Files map[string]string `json:"files,omitempty"`
}

// Resident implements the interface Resident.
func (e *Evidence) Resident() (now, peak uint64) { return e.RSS, e.RSSPeak }

// GroupPeak implements Resident.
func (e *Evidence) GroupPeak() *uint64 { return e.MemoryPeakBytes }

// addTo adds the evidence to the trial's record.
func (e *Evidence) addTo(t kind.Trial) error {
	raw, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encoding what was found of %s: %w", t.Arm(), err)
	}
	t.SetSubject(ForRecord(t, e.Objects), raw)
	return nil
}

// ForRecord converts found eBPF programs and maps for a record, and warns if some may be missing.
func ForRecord(t kind.Trial, found process.Objects) kind.Objects {
	objects := kind.Objects{Programs: []kind.Object{}, Maps: []kind.Object{},
		Incomplete: found.Incomplete || len(found.Unheld) > 0}
	if found.Incomplete {
		t.Warn("holder-ended", "a process that held eBPF objects ended just after the window, and may have belonged to %s: "+
			"what its programs and maps used is not known", t.Arm())
	}
	if len(found.Unheld) > 0 {
		t.Warn("programs-unheld", "no process holds the eBPF programs %s, so they may belong to %s: what its programs and "+
			"maps used is not known", text.ClipLine(strings.Join(found.Unheld, ", "), 200), t.Arm())
	}
	for _, p := range found.Programs {
		objects.Programs = append(objects.Programs, kind.Object{ID: p.ID, Name: p.Name})
	}
	for _, m := range found.Maps {
		objects.Maps = append(objects.Maps, kind.Object{ID: m.ID, Name: m.Name})
	}
	return objects
}

// started is a command that the trial starts and ends.
type started struct {
	trial   kind.Trial
	part    *kind.Part
	command process.Command
	files   []process.File // the user's files with which it was started
	serves  string         // the application to which it forwards requests; empty: it is not in the path of requests

	group   kind.Group
	running *process.Running // nil before Start
	began   time.Time
	atEdge  []int          // its processes when the window was closed
	own     *files.Scratch // its private directory, which Close removes; nil: none
	found   *Evidence
	address string   // the address at which the command serves; empty: it does not serve
	passage *passage // watches the connections to address; nil without an address
}

// Start starts the command in the subject's group, and waits until it is ready.
func (s *started) Start(ctx context.Context) error {
	var err error
	if s.group, err = s.trial.SubjectGroup("", s.part.Limits); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	place, err := s.place()
	if err != nil {
		return err
	}
	c, err := s.command.At(place)
	if err != nil {
		return err
	}
	s.files = c.Files
	c.CgroupDir = s.group.V2Dir()
	if s.serves != "" {
		s.address = place.Address
		if c.Ready == (process.Ready{}) {
			c.Ready.Port = s.address
		}
	}
	s.began = time.Now()
	if s.running, err = process.Start(c, s.group.In(""), s.ended); err != nil {
		return fmt.Errorf("starting %s: %w", s.trial.Arm(), err)
	}
	if err := s.running.Ready(ctx); err != nil || s.serves == "" {
		return err
	}
	return s.inPath()
}

// inPath checks that loads that use the command's address do not reach an application directly.
func (s *started) inPath() error {
	var err error
	if s.passage, err = newPassage(s.address); err != nil {
		return err
	}
	s.passage.past = s.past()
	if slices.ContainsFunc(s.running.Listening(), s.passage.at) {
		return nil
	}
	for name, app := range s.trial.Applications() {
		if s.passage.at(app.Address) {
			return fault.New(fault.Usage, s.address, "give it an address that is free, or leave the address out and let the "+
				"command listen at {address}", "%s does not listen there, and the application %s does: loads would go past it",
				s.trial.Arm(), name)
		}
	}
	return nil // the sockets of a container or a virtual machine are not visible here
}

// past returns a function that finds a load of the served application with a connection to the application itself. Only
// loads that Tare does not generate can have one, because their command lines decide where they connect. The result is
// nil if there are no such loads, or if the application's address has a host name.
func (s *started) past() func() string {
	app, err := netip.ParseAddrPort(s.trial.Applications()[s.serves].Address)
	if err != nil {
		return nil // the address has a host name
	}
	groups := map[string]kind.Group{}
	for name, load := range s.trial.Setup().Loads {
		if _, is := s.trial.Joined(name).(kind.Generator); !is || load.To != s.serves {
			continue
		}
		if g, err := s.trial.PartGroup(name); err == nil {
			groups[name] = g
		}
	}
	if len(groups) == 0 {
		return nil
	}
	return func() string {
		for name, g := range lists.ByKey(groups) {
			if process.Dialled(g.Members(), app) {
				return name
			}
		}
		return ""
	}
}

// Address implements kind.Addresser.
func (s *started) Address(app string) (string, error) {
	if app == s.serves {
		return s.address, nil
	}
	return s.trial.Applications()[app].Address, nil
}

// Begun starts watching the connections of loads.
func (s *started) Begun(ctx context.Context, _ role.Schedule) error {
	if s.passage != nil {
		s.passage.watch(ctx)
	}
	return nil
}

func (s *started) ended(err error) {
	if err != nil {
		s.trial.Fail(err)
	}
}

// place returns the values of the command's placeholders: the group of the applications and loads, which the command
// may watch, their addresses, and the address at which to listen if the command serves an application.
func (s *started) place() (process.Place, error) {
	p, err := newPlace(s.trial.Self(), s.trial.WorkDir(), s.trial.Cgroups(), s.part.Options, func() (string, error) {
		var err error
		s.own, err = ownDir()
		return s.own.Path(), err
	})
	p.App = func(name string) string { return s.trial.Applications()[name].Address }
	return p, err
}

func uses(o map[string]string, placeholder string) bool {
	holds := func(text string) bool { return strings.Contains(text, placeholder) }
	return slices.ContainsFunc(slices.Collect(maps.Values(o)), holds)
}

// newPlace returns the values of the placeholders in a command's options. The argument work is the v2 directory of the
// group that the command may watch. newPlace makes only what the options use.
func newPlace(
	self, work string, layout *cgroup.Layout, o param.Values, dir func() (string, error),
) (process.Place, error) {
	p := process.Place{Self: self, CgroupDir: work}
	var err error
	if work != "" {
		if p.CgroupID, err = cgroup.ID(work); err != nil {
			return p, err
		}
		p.CgroupPath = layout.V2Path(work)
	}
	if uses(o, "{dir}") || o["files"] != "" {
		if p.Dir, err = dir(); err != nil {
			return p, err
		}
	}
	if !InPath(o) && !uses(o, "{port}") && o["files"] == "" {
		return p, nil
	}
	if p.Port, err = process.FreePort(); err != nil || !InPath(o) {
		return p, err
	}
	port := strconv.Itoa(p.Port)
	p.Address = strings.ReplaceAll(cmp.Or(o["address"], "127.0.0.1:{port}"), "{port}", port)
	return p, nil
}

// ownDir makes a directory for the command's files.
func ownDir() (*files.Scratch, error) { return files.NewScratch(files.LargeTemp(), "command") }

// Closed notes the command's processes, so that programs and maps in the ledger are attributed to the command even if
// the processes that hold them end before After.
func (s *started) Closed(context.Context) error {
	s.atEdge = process.WithDescendants(proc.FS{}, s.group.Members())
	return nil
}

// After finds the command's processes and eBPF objects, and checks that loads went through the command.
func (s *started) After(context.Context) error {
	if s.passage != nil && !s.passage.seen() {
		return fault.New(fault.Usage, s.address, "see that the loads go to {address}, and that nothing else redirects them",
			"no connection came to %s while the loads ran: they went past it", s.trial.Arm())
	}
	if s.passage != nil && s.passage.bypassed() != "" {
		return fault.New(fault.Usage, s.trial.Applications()[s.serves].Address, "have its command line go to {address}",
			"the load %s went to the application %s itself, past %s", s.passage.bypassed(), s.serves, s.trial.Arm())
	}
	if s.serves != "" {
		part.WarnServedElsewhere(s.trial, s.group, s.address)
	}
	found, err := process.Discover(proc.FS{}, s.group.Members(), s.atEdge, true, s.trial.Record().Ledger, s.began)
	if err != nil {
		return fmt.Errorf("finding what belongs to %s: %w", s.trial.Arm(), err)
	}
	s.found = &Evidence{Found: found, MemoryPeakBytes: s.trial.Cgroups().MemoryPeak(s.group.Path()),
		Files: map[string]string{}}
	for _, f := range s.files {
		s.found.Files[f.Name] = f.Sum
	}
	return s.found.addTo(s.trial)
}

// Evidence returns what was found, or nil if After did not get that far.
func (s *started) Evidence() any {
	if s.found == nil {
		return nil
	}
	return s.found
}

// Close ends the command and removes its files.
func (s *started) Close() error {
	s.passage.close()
	if s.running != nil && s.running.Stop() {
		s.trial.Warn("command-killed", "%s did not end in time when asked to, and was killed", s.trial.Arm())
	}
	if err := s.own.Close(); err != nil {
		return fmt.Errorf("removing the files of %s: %w", s.trial.Arm(), err)
	}
	return nil
}

// observed is a program that was running before the trial.
type observed struct {
	trial    kind.Trial
	existing *process.Existing
	found    *Evidence
}

func newObserved(t kind.Trial, text string) (*observed, error) {
	wanted, err := target(text)
	if err != nil {
		return nil, err
	}
	o := &observed{trial: t}
	if o.existing, err = (process.Finder{Layout: t.Cgroups()}).Find(wanted); err != nil {
		return nil, err
	}
	return o, nil
}

// Start starts nothing: it attributes the use of the observed program's control group to the subject.
func (o *observed) Start(context.Context) error {
	if o.existing.Path == "" {
		return nil // After warns that CPU time and memory are not counted separately
	}
	return o.trial.Observe(kind.Subject, "", o.existing.Path)
}

// StartTime returns 0: the program was running before.
func (o *observed) StartTime() time.Duration { return 0 }

// Begun begins to check that the program stays in its control group.
func (o *observed) Begun(context.Context, role.Schedule) error { return o.existing.Watch() }

// Close ends the check.
func (o *observed) Close() error { return o.existing.Close() }

// Closed notes the processes of the observed program.
func (o *observed) Closed(context.Context) error { return o.existing.Refresh() }

// After finds the processes and eBPF objects of the observed program.
func (o *observed) After(context.Context) error {
	if o.existing.Path == "" {
		o.trial.Warn(measured.WarnShared, "%s shares its control group with others: only its eBPF programs, maps and "+
			"resident memory are reported; a unit or a container has a group of its own", o.trial.Arm())
	}
	found, err := o.existing.Found(o.trial.Record().Ledger)
	if err != nil {
		return err
	}
	if len(found.Processes) == 0 {
		return errors.New("nothing is left of what was observed")
	}
	stray, err := o.existing.Strays()
	if err != nil {
		return err
	}
	if stray != "" {
		o.trial.Warn(measured.WarnStrays, "%s", stray)
	}
	if why := o.existing.Unseen(); why != "" {
		o.trial.Warn(measured.WarnUnseen, "%s", why)
	}
	o.found = &Evidence{Found: found, Observed: o.existing.Target.String()}
	return o.found.addTo(o.trial)
}

// Evidence returns what was found, or nil if After did not get that far.
func (o *observed) Evidence() any {
	if o.found == nil {
		return nil
	}
	return o.found
}
