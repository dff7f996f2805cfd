package authority

import (
	"bytes"
	"time"

	"tare/internal/lib/fault"
)

// Stage is the stage of a rollover to a new root.
type Stage string

// The stages, in their order. After the last step the stage is Steady again.
const (
	Steady     Stage = "steady"           // one root
	NewTrusted Stage = "new root trusted" // both roots are trusted, the old one signs
	NewIssues  Stage = "new root signs"   // both are trusted, the new one signs; the key of the old one is gone
)

// stage returns the stage of a trust.
func (t *trust) stage() Stage {
	switch {
	case len(t.roots) == 1:
		return Steady
	case t.roots[1].key != nil:
		return NewTrusted
	}
	return NewIssues
}

// Rollover is the state of a rollover.
type Rollover struct {
	Stage   Stage    `json:"stage"`
	Issuing string   `json:"issuing"` // the root that signs: the first 8 bytes of its key identifier, in hexadecimal
	Trusted []string `json:"trusted"` // all trusted roots, in the same form
	// Pending is the number of identities whose certificate was signed by the old root, and which Run has yet to replace.
	Pending int `json:"pending"`
	// SafeAt is when the next step becomes safe for agents, which get roots when they renew. It is in the past if no agent
	// can have a valid certificate from before the last step. For Options.Life after Open, agents may have one, because
	// their certificates are not recorded. SafeAt does not cover proxies that get secrets over SDS: only the control plane
	// knows whether they have received the roots.
	SafeAt time.Time `json:"safe_at"`
}

// signed records when the last of the agents' certificates expires.
type signed struct {
	before time.Time // for those signed before the last step; their agents may not know the new root
	now    time.Time // for those signed since the last step
}

// Rollover returns the state of the rollover.
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
//   - From Steady it makes a new root, which is trusted in addition to the old one. The old one still signs. Send the
//     roots to all proxies (OnRoots) before the next step.
//   - From NewTrusted the new root signs, and the old one's key is deleted. Run replaces all secrets. Before
//     Rollover.SafeAt this is an error unless forced. After a forced step, agents that have not yet renewed their
//     certificates do not trust certificates of the new root.
//   - From NewIssues only the new root is trusted. While certificates of the old root are in use, that is while
//     Rollover.Pending is not 0 or before Rollover.SafeAt, this is an error unless forced. After a forced step, new
//     connections with those certificates are refused.
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

// settled returns an error if the next step would leave proxies or agents without a valid certificate or root.
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
