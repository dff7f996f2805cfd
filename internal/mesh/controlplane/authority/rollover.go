package authority

import (
	"bytes"
	"time"

	"tare/internal/lib/fault"
)

// Stage is how far a rollover to a new root is.
type Stage string

// The stages, in their order. After the last step the stage is Steady again.
const (
	Steady     Stage = "steady"           // one root
	NewTrusted Stage = "new root trusted" // both roots are trusted, the old one signs
	NewIssues  Stage = "new root signs"   // both are trusted, the new one signs; the key of the old one is gone
)

// Rollover is where an authority stands.
type Rollover struct {
	Stage   Stage    `json:"stage"`
	Issuing string   `json:"issuing"` // the root that signs, by the first 8 bytes of its key's identifier in hexadecimal
	Trusted []string `json:"trusted"` // all roots, likewise
	// Pending is the number of identities whose secret is still signed by the old root. Run replaces them.
	Pending int `json:"pending"`
	// SafeAt is the time from which on the next step is safe for agents, which learn of roots when they renew. It is
	// past where there are none. Whether proxies that get secrets by SDS have taken the roots, their control plane knows.
	SafeAt time.Time `json:"safe_at"`
}

// signed is what is known of agents' certificates: when the last ends of those that were signed in a stage.
type signed struct {
	before time.Time // by agents that do not know the new root, or with the old root
	now    time.Time // those since the last step
}

// Rollover tells the stage.
func (a *Authority) Rollover() Rollover {
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.trust.Load()
	r := Rollover{Stage: t.stage, Issuing: t.issuing.name(), SafeAt: a.signed.before}
	for _, root := range t.roots {
		r.Trusted = append(r.Trusted, root.name())
	}
	for _, e := range a.issued {
		if e.by != t.issuing.certificate {
			r.Pending++
		}
	}
	return r
}

// TrustNewRoot is the first step of a rollover: it makes a new root, which is trusted from now on beside the old one.
// The old one signs. Tell all proxies (OnRoots) before the next step.
func (a *Authority) TrustNewRoot() error {
	return a.advance(Steady, func(t *trust) (*trust, error) {
		r, err := newRoot(a.o)
		if err != nil {
			return nil, err
		}
		return newTrust(NewTrusted, t.issuing, r), nil
	}, true)
}

// UseNewRoot is the second step: the new root signs, and the old one's key is gone. Run replaces all secrets. It is an
// error before Rollover.SafeAt, unless forced: then agents that have not yet renewed their certificates do not trust
// those of the new root.
func (a *Authority) UseNewRoot(force bool) error {
	return a.advance(NewTrusted, func(t *trust) (*trust, error) {
		old, next := *t.roots[0], t.roots[1]
		old.key = nil
		return newTrust(NewIssues, next, &old), nil
	}, force)
}

// DropOldRoot is the last step: only the new root is trusted. It is an error as long as certificates of the old one are
// in use, that is while Rollover.Pending is not 0 and before Rollover.SafeAt, unless forced: their holders are refused
// then, for new connections.
func (a *Authority) DropOldRoot(force bool) error {
	return a.advance(NewIssues, func(t *trust) (*trust, error) { return newTrust(Steady, t.issuing), nil }, force)
}

func (a *Authority) advance(from Stage, next func(*trust) (*trust, error), force bool) error {
	a.step.Lock()
	defer a.step.Unlock()
	t := a.trust.Load()
	if t.stage != from {
		return fault.New(fault.Usage, "", "the steps are: trust the new root, use it, drop the old one",
			"this step cannot follow the stage %q", t.stage)
	}
	if err := a.settled(force); err != nil {
		return err
	}
	n, err := next(t)
	if err != nil {
		return err
	}
	if err := a.save(n); err != nil {
		return err
	}
	a.mu.Lock()
	if bytes.Equal(n.pem, t.pem) {
		n.secret = t.secret
	}
	a.trust.Store(n)
	a.signed = signed{before: latest(a.signed.before, a.signed.now)}
	if n.stage == NewIssues {
		for _, e := range a.issued {
			a.due.hurry(e)
		}
		a.poke()
	}
	a.mu.Unlock()
	a.logf("the stage of the trust root is: %s; %s signs", n.stage, n.issuing.name())
	if n.secret != t.secret && a.o.OnRoots != nil {
		a.o.OnRoots()
	}
	return nil
}

// settled is an error where the next step would leave somebody behind.
func (a *Authority) settled(force bool) error {
	r := a.Rollover()
	if force {
		return nil
	}
	if r.Stage == NewIssues && r.Pending > 0 {
		return fault.New(fault.Usage, "", "wait until Run has replaced them, or force the step",
			"%d identities have secrets of the old root", r.Pending)
	}
	if left := time.Until(r.SafeAt); left > 0 {
		return fault.New(fault.Usage, "", "wait, or force the step",
			"agents have certificates from before the last step for another %s", left.Round(time.Second))
	}
	return nil
}

func latest(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
