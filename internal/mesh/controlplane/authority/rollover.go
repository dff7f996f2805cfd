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

// stage is that of a trust.
func (t *trust) stage() Stage {
	switch {
	case len(t.roots) == 1:
		return Steady
	case t.roots[1].key != nil:
		return NewTrusted
	}
	return NewIssues
}

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
	r := Rollover{Stage: t.stage(), Issuing: t.issuing.name(), SafeAt: a.signed.before}
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

// Advance takes the next step of a rollover:
//
//   - From Steady it makes a new root, which is trusted from now on beside the old one. The old one signs. Tell all
//     proxies (OnRoots) before the next step.
//   - From NewTrusted the new root signs, and the old one's key is gone. Run replaces all secrets. It is an error before
//     Rollover.SafeAt, unless forced: then agents that have not yet renewed their certificates do not trust those of the
//     new root.
//   - From NewIssues only the new root is trusted. It is an error as long as certificates of the old one are in use, that
//     is while Rollover.Pending is not 0 and before Rollover.SafeAt, unless forced: their holders are refused then, for
//     new connections.
func (a *Authority) Advance(force bool) error {
	a.step.Lock()
	defer a.step.Unlock()
	if !force {
		if err := a.settled(); err != nil {
			return err
		}
	}
	t := a.trust.Load()
	var n *trust
	switch t.stage() {
	case Steady:
		r, err := newRoot(a.o)
		if err != nil {
			return err
		}
		n = newTrust(t.issuing, r)
	case NewTrusted:
		old := *t.issuing
		old.key = nil
		n = newTrust(t.roots[1], &old)
	case NewIssues:
		n = newTrust(t.issuing)
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
	if n.stage() == NewIssues {
		for _, e := range a.issued {
			e.due = time.Time{}
		}
		a.poke()
	}
	a.mu.Unlock()
	a.logf("the stage of the trust root is: %s; %s signs", n.stage(), n.issuing.name())
	if n.secret != t.secret && a.o.OnRoots != nil {
		a.o.OnRoots()
	}
	return nil
}

// settled is an error where the next step would leave somebody behind.
func (a *Authority) settled() error {
	r := a.Rollover()
	if r.Stage == NewIssues && r.Pending > 0 {
		return fault.New(fault.Usage, "", "wait until Run has replaced them, or force the step",
			"%d identities have secrets of the old root", r.Pending)
	}
	if left := time.Until(r.SafeAt); r.Stage != Steady && left > 0 {
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
