package command

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/process"
	"tare/internal/lib/files"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

// Evidence is what is found of a command when the window is closed, before it is told to end.
type Evidence struct {
	process.Found
	Observed string `json:"observed,omitempty"` // what runs already, as the spec names it
	// MemoryPeakBytes is the most memory that the kernel has charged to its group; null where it does not tell, and
	// where the group was there before the trial.
	MemoryPeakBytes *uint64 `json:"memory_peak_bytes"`
}

// Resident is the interface Resident's.
func (e *Evidence) Resident() (now, peak uint64) { return e.RSS, e.RSSPeak }

// GroupPeak is Resident's.
func (e *Evidence) GroupPeak() *uint64 { return e.MemoryPeakBytes }

// tell says in the record what the subject consists of.
func (e *Evidence) tell(t kind.Trial) error {
	objects := kind.Objects{Programs: []kind.Object{}, Maps: []kind.Object{}}
	for _, p := range e.Programs {
		objects.Programs = append(objects.Programs, kind.Object{ID: p.ID, Name: p.Name})
	}
	for _, m := range e.Maps {
		objects.Maps = append(objects.Maps, kind.Object{ID: m.ID, Name: m.Name})
	}
	raw, err := json.Marshal(e)
	if err != nil {
		return fmt.Errorf("encoding what was found of %s: %w", t.Arm(), err)
	}
	t.SetSubject(objects, raw)
	return nil
}

// started is a command that the trial starts and ends.
type started struct {
	trial   kind.Trial
	part    *kind.Part
	command process.Command

	group   *placement.Group
	running *process.Running // nil before Start
	began   time.Time
	own     *files.Scratch // directory of its own, which Close removes; nil where it has none
	found   *Evidence
}

// Start starts it in the subject's group and waits until it is ready.
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
	c.CgroupDir = s.group.V2Dir()
	s.began = time.Now()
	if s.running, err = process.Start(c, s.group.Start, s.ended); err != nil {
		return fmt.Errorf("starting %s: %w", s.trial.Arm(), err)
	}
	return s.running.Ready(ctx)
}

func (s *started) ended(err error) {
	if err != nil {
		s.trial.Fail(err)
	}
}

// place is what its command line may speak of: the group of the applications and loads, which it may watch.
func (s *started) place() (process.Place, error) {
	return newPlace(s.trial.Self(), s.trial.WorkDir(), s.trial.Cgroups(), s.uses, func() (string, error) {
		var err error
		s.own, err = ownDir()
		return s.own.Path(), err
	})
}

// uses reports whether a placeholder stands anywhere in the settings of the command.
func (s *started) uses(placeholder string) bool { return uses(s.part.Options, placeholder) }

func uses(o map[string]string, placeholder string) bool {
	for _, text := range o {
		if strings.Contains(text, placeholder) {
			return true
		}
	}
	return false
}

// newPlace is the place of a command that may watch the group whose v2 directory is work. What the command line does
// not ask for is not made.
func newPlace(
	self, work string, layout *cgroup.Layout, uses func(string) bool, dir func() (string, error),
) (process.Place, error) {
	p := process.Place{Self: self, CgroupDir: work}
	var err error
	if work != "" {
		if p.CgroupID, err = cgroup.ID(work); err != nil {
			return p, err
		}
		p.CgroupPath = layout.V2Path(work)
	}
	if uses("{dir}") {
		if p.Dir, err = dir(); err != nil {
			return p, err
		}
	}
	if uses("{port}") {
		p.Port, err = process.FreePort()
	}
	return p, err
}

// ownDir makes a directory for the command's files.
func ownDir() (*files.Scratch, error) { return files.NewScratch(files.LargeTemp(), "command") }

// After finds what belongs to it.
func (s *started) After(context.Context) error {
	found, err := process.Discover(proc.FS{}, s.group.V2Dir(), true, s.trial.Record().Ledger, s.began)
	if err != nil {
		return fmt.Errorf("finding what belongs to %s: %w", s.trial.Arm(), err)
	}
	s.found = &Evidence{Found: found, MemoryPeakBytes: s.trial.Cgroups().MemoryPeak(s.group.Path())}
	return s.found.tell(s.trial)
}

// Evidence is what was found; nil where nobody looked.
func (s *started) Evidence() any {
	if s.found == nil {
		return nil
	}
	return s.found
}

// Close ends it and removes its files.
func (s *started) Close() error {
	if s.running != nil && s.running.Stop() {
		s.trial.Warn("command-killed", "%s did not end in its time when it was asked to, and was killed", s.trial.Arm())
	}
	if err := s.own.Close(); err != nil {
		return fmt.Errorf("removing the files of %s: %w", s.trial.Arm(), err)
	}
	return nil
}

// observed is what runs already.
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

// Start starts nothing: it says where what is observed is accounted for.
func (o *observed) Start(context.Context) error {
	if o.existing.Path == "" {
		return nil // After says that its CPU time and memory are not counted apart
	}
	return o.trial.Observe(kind.Subject, "", o.existing.Path)
}

// After finds what belongs to it now.
func (o *observed) After(context.Context) error {
	if o.existing.Path == "" {
		o.trial.Warn("group-shared", "%s shares its control group with others: only its eBPF programs, maps and "+
			"resident memory are told; a unit or a container has a group of its own", o.trial.Arm())
	}
	found, err := o.existing.Found(o.trial.Record().Ledger)
	if err != nil {
		return err
	}
	if len(found.Processes) == 0 {
		return errors.New("nothing is left of what was observed")
	}
	o.found = &Evidence{Found: found, Observed: o.existing.Target.String()}
	return o.found.tell(o.trial)
}

// Evidence is what was found; nil where nobody looked.
func (o *observed) Evidence() any {
	if o.found == nil {
		return nil
	}
	return o.found
}
