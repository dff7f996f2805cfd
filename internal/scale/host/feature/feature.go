// Package feature describes what this machine can measure. Every reader of the kernel probes what it needs once,
// caches the answer, and states what is lost without it and what would fix that; `tare doctor` prints exactly these
// statements.
package feature

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"tare/internal/scale/host/proc"
)

// Status is the outcome of one probe.
type Status struct {
	Name      string `json:"name"` // short and stable, e.g. "bpf-stats"
	Available bool   `json:"available"`
	Detail    string `json:"detail"`   // what was found: "v2 at /sys/fs/cgroup"
	Needs     string `json:"needs"`    // what it needs: "Linux 5.8, CAP_SYS_ADMIN"
	Lost      string `json:"lost"`     // what cannot be measured without it: "BPF run time"
	Hint      string `json:"mend"`     // what would fix it; empty if available
	Required  bool   `json:"required"` // without it `tare weigh` refuses (exit 3)
	// Leaves names the things that the probe may leave behind on the machine, such as modules that the kernel loads; empty
	// if there are none.
	Leaves  string `json:"leaves,omitempty"`
	Untried bool   `json:"untried,omitempty"` // it was not probed, so whether it is available is unknown
}

// LeastKernel is the oldest Linux on which Tare measures anything.
const LeastKernel = "5.8"

// ErrMissing matches (errors.Is) every error caused by a missing feature.
var ErrMissing = errors.New("feature missing")

// MissingError says which feature is missing and why.
type MissingError struct {
	Status
	Cause error
}

func (e *MissingError) Error() string {
	s := fmt.Sprintf("%s is not available (needs %s)", e.Name, e.Needs)
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Is reports a match with ErrMissing.
func (e *MissingError) Is(target error) bool { return target == ErrMissing }

func (e *MissingError) Unwrap() error { return e.Cause }

// Probe is a cached probe of one feature. The zero value is not usable; create one with New.
type Probe struct {
	once   sync.Once
	probe  func() (detail string, err error)
	status Status
	err    error
}

// New returns a probe. The function runs once, when the status is first needed; its error means that the feature is
// missing.
func New(s Status, probe func() (detail string, err error)) *Probe {
	return &Probe{status: s, probe: probe}
}

// Declared returns what is known about the feature without probing: its name, what it needs, what is lost without it,
// and whether it is required.
func (p *Probe) Declared() Status {
	return Status{Name: p.status.Name, Needs: p.status.Needs, Lost: p.status.Lost, Required: p.status.Required}
}

func (p *Probe) run() {
	p.once.Do(func() {
		detail, err := p.probe()
		p.status.Detail = detail
		if err != nil {
			// Without sufficient rights, the kernel may refuse a feature that it has.
			if errors.Is(err, fs.ErrPermission) && !proc.Capable(unix.CAP_SYS_ADMIN) &&
				!strings.Contains(p.status.Hint, "root") {
				p.status.Hint = "run as root, or with CAP_SYS_ADMIN; if that does not help, " + p.status.Hint
			}
			p.err = &MissingError{Status: p.status, Cause: err}
			if detail == "" {
				p.status.Detail = err.Error()
			}
			return
		}
		p.status.Available = true
		p.status.Hint = ""
	})
}

// Name returns the feature's name, without probing.
func (p *Probe) Name() string { return p.status.Name }

// Untried returns the status of a probe that was skipped because it may leave something on the machine; false for
// probes that leave nothing.
func (p *Probe) Untried() (s Status, is bool) {
	s = p.status
	s.Untried, s.Detail = true, "not tried: it may leave "+s.Leaves
	return s, s.Leaves != ""
}

// Status returns the result of the probe.
func (p *Probe) Status() Status { p.run(); return p.status }

// Err returns nil if the feature is available, else a *MissingError.
func (p *Probe) Err() error { p.run(); return p.err }
