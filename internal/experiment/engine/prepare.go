package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/spec"
	"tare/internal/lib/files"
)

// prepared holds the directory in which guests prepare files for a run.
type prepared struct {
	dir   *files.Scratch          // nil before prepare, or if nothing is to be prepared
	parts map[string][]*kind.Part // parts of guests that prepare something, by the guest's subdirectory
}

// guestDir returns the subdirectory of a guest.
func guestDir(r kind.Role, guest string) string { return filepath.Join(string(r), guest) }

// newPrepared returns a prepared without parts. addTrial adds the parts of trials.
func newPrepared() *prepared { return &prepared{parts: map[string][]*kind.Part{}} }

// addTrial adds the parts of an arm's trials at a level, except parts whose guest is not a Preparer.
func (p *prepared) addTrial(level *spec.Spec, arm string) {
	s := level.As(arm)
	for _, part := range s.Applications {
		p.add(kind.Application, part)
	}
	for _, part := range s.Loads {
		p.add(kind.Load, part)
	}
	if part := s.Of(arm); part != nil {
		p.add(kind.Subject, part)
	}
}

func (p *prepared) add(r kind.Role, part *kind.Part) {
	dir := guestDir(r, part.Name())
	alike := func(o *kind.Part) bool {
		return maps.Equal(o.Options, part.Options) && maps.Equal(o.Limits, part.Limits)
	}
	if _, prepares := part.Kind.(kind.Preparer); prepares && !slices.ContainsFunc(p.parts[dir], alike) {
		p.parts[dir] = append(p.parts[dir], part)
	}
}

// prepare calls the guests in the order of their directories. The caller must call remove, even after an error.
func (p *prepared) prepare(ctx context.Context, self string) (err error) {
	if len(p.parts) == 0 {
		return nil
	}
	if p.dir, err = files.NewScratch(files.LargeTemp(), "prepared"); err != nil {
		return fmt.Errorf("preparing the run: %w", err)
	}
	for _, name := range slices.Sorted(maps.Keys(p.parts)) {
		dir, parts := filepath.Join(p.dir.Path(), name), p.parts[name]
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("preparing the run: %w", err)
		}
		guest := parts[0].Kind.(kind.Preparer) // addTrial adds only the parts of Preparers
		if err := guest.Prepare(ctx, kind.Preparation{Self: self, Dir: dir, Parts: parts}); err != nil {
			return fmt.Errorf("preparing the run for %s: %w", parts[0].Name(), err)
		}
	}
	return nil
}

// remove removes what was prepared.
func (p *prepared) remove() error {
	if p.dir == nil {
		return nil
	}
	if err := p.dir.Close(); err != nil {
		return fmt.Errorf("removing what was prepared for the run: %w", err)
	}
	return nil
}

// of returns the directory of a guest, or "" if it prepares nothing.
func (p *prepared) of(r kind.Role, guest string) string {
	if p == nil || p.dir == nil || p.parts[guestDir(r, guest)] == nil {
		return ""
	}
	return filepath.Join(p.dir.Path(), guestDir(r, guest))
}

// prepareRun calls the guests for all trials of a run that are not on nodes.
func prepareRun(ctx context.Context, s *spec.Spec, self string) (*prepared, error) {
	p := newPrepared()
	for _, l := range s.Levels() {
		level := s.At(l)
		if level.Nodes() > 0 {
			continue
		}
		for _, arm := range s.AllArms() {
			p.addTrial(level, arm)
		}
	}
	if err := p.prepare(ctx, self); err != nil {
		return nil, errors.Join(err, p.remove())
	}
	return p, nil
}
