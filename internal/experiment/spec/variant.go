package spec

import (
	"cmp"
	"fmt"
	"strings"

	"tare/internal/experiment/kind"
	"tare/internal/lib/lists"
	"tare/internal/lib/text"
)

// variants returns the values of the settings that an arm changes, by path, or nil if the arm is not a variant. The
// error continues a sentence that begins with the path of the arm.
func (s *Spec) variants(arm string) (map[string]string, error) {
	p := s.Arms[arm]
	if p == nil {
		return nil, nil
	}
	variant, ok := p.Kind.(kind.Variant)
	if !ok {
		return nil, nil
	}
	values := map[string]string{}
	for _, assignment := range variant.Sets(p.Options) {
		name, raw, ok := strings.Cut(assignment, "=")
		if !ok {
			return nil, fmt.Errorf("there is no = in %q", text.Clip(assignment))
		}
		found, err := s.find(name)
		if err != nil {
			return nil, fmt.Errorf("%q %w", text.Clip(name), err)
		}
		value, err := level(found, raw)
		if err != nil {
			return nil, fmt.Errorf("the value of %q %w", text.Clip(name), err)
		}
		for _, t := range found {
			if !strings.HasPrefix(t.path, "applications.") && !strings.HasPrefix(t.path, "loads.") {
				return nil, fmt.Errorf("%q is not a setting of an application or a load", text.Clip(name))
			}
			if f := s.sweeping(t.path); f != nil {
				return nil, fmt.Errorf("the variant %q sets %q, which the factor %q sweeps", arm, t.path, f.Name)
			}
			if _, twice := values[t.path]; twice {
				return nil, fmt.Errorf("%q is set twice", t.path)
			}
			values[t.path] = value
		}
	}
	return values, nil
}

// As returns the spec as an arm runs it. For a variant of the baseline, that is the spec with the settings that the
// variant changes, without parts whose count is then 0; otherwise it is s itself.
func (s *Spec) As(arm string) *Spec {
	values, err := s.variants(arm)
	if err != nil || len(values) == 0 { // the error was reported when the spec was read
		return s
	}
	c := s.clone()
	c.assign(values)
	c.dropIdle()
	return c
}

// checkVariants checks, in the given spec at one level, the settings of each variant by themselves and together with
// the rest. It returns the path of the arm at fault.
func (s *Spec) checkVariants(at *Spec) (path string, err error) {
	for _, arm := range s.AllArms() {
		if _, err := at.variants(arm); err != nil {
			return "arms." + arm, cmp.Or(s.setsIdle(arm, at), err)
		}
		c := at.As(arm)
		if c == at {
			continue
		}
		for _, sec := range c.Sections() {
			for name, p := range sec.Parts {
				if err := c.checkPart(sec.Path(name), p); err != nil {
					return "arms." + arm, fmt.Errorf("with what it sets, %s: %w", sec.Path(name), err)
				}
			}
		}
	}
	return "", nil
}

// setsIdle returns an error if a variant sets something of a part that does not run, or nil.
func (s *Spec) setsIdle(arm string, at *Spec) error {
	values, err := s.variants(arm)
	if err != nil {
		return nil
	}
	for path := range lists.ByKey(values) {
		if _, runs := at.target(path); !runs {
			return fmt.Errorf("%q is a setting of a part that does not run in the baseline, because its count is 0: a variant "+
				"can leave out a part, not add one", path)
		}
	}
	return nil
}
