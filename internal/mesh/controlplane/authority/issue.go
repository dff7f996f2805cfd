package authority

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"tare/internal/lib/fault"
)

// entry is the current certificate of an identity, with its key.
type entry struct {
	id string
	leaf
	key    Key
	secret *tlsv3.Secret // nil: there is none yet

	making sync.Mutex // held while the certificate is made, so that it is made once
}

// Secrets returns the two secrets that a proxy of an identity gets over SDS: its certificate with the key, and the
// roots. The authority makes the key. Secrets returns the same messages until OnChange or OnRoots is called; they must
// not be modified.
func (a *Authority) Secrets(id string) ([]*tlsv3.Secret, error) {
	e, t, err := a.entry(id)
	if err != nil {
		return nil, err
	}
	return []*tlsv3.Secret{e.secret, t.secret}, nil
}

// Credentials returns the content of Secrets for proxies that are configured by files. The caller must write the files
// again after every call of OnChange for the identity, and of OnRoots.
func (a *Authority) Credentials(id string) (Credentials, error) {
	e, t, err := a.entry(id)
	if err != nil {
		return Credentials{}, err
	}
	return e.credentials(t), nil
}

func (e *entry) credentials(t *trust) Credentials {
	return Credentials{
		ID: e.id, Chain: e.pem, Key: e.key, Roots: t.pem, NotBefore: e.notBefore, NotAfter: e.notAfter,
	}
}

// Forget stops renewing the certificate of an identity, because its last proxy has gone. Certificates that proxies
// still have remain valid until they expire.
func (a *Authority) Forget(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.issued, id)
	delete(a.changed, id)
}

// check returns an error unless proxies can have the identity.
func (a *Authority) check(id string) error {
	if err := CheckIdentity(a.o.TrustDomain, id); err != nil {
		return err
	}
	if system(a.o.TrustDomain, id) {
		return fault.New(fault.Usage, shown(id), "choose another namespace", "the identity is the control plane's own")
	}
	return nil
}

// entry returns a copy of an identity's entry, making a certificate if there is none or it has expired.
func (a *Authority) entry(id string) (*entry, *trust, error) {
	if err := a.check(id); err != nil {
		return nil, nil, err
	}
	a.mu.Lock()
	e := a.issued[id]
	if e == nil {
		if len(a.issued) >= a.o.MaxIdentities {
			a.mu.Unlock()
			return nil, nil, fault.New(fault.Machine, shown(id), "forget identities without proxies, or allow more",
				"the authority keeps secrets of %d identities already", a.o.MaxIdentities)
		}
		e = &entry{id: id}
		a.issued[id] = e
	}
	a.mu.Unlock()
	return a.filled(e, func(e *entry) bool { return time.Now().Before(e.notAfter) })
}

// filled fills an entry, and returns a copy of it, and the trust whose root signed its certificate. willDo is as in
// fill.
func (a *Authority) filled(e *entry, willDo func(*entry) bool) (*entry, *trust, error) {
	for {
		if err := a.fill(e, willDo); err != nil {
			return nil, nil, err
		}
		a.mu.Lock()
		c, t := e.copy(), a.trust.Load()
		a.mu.Unlock()
		if c.by == t.issuing.certificate { // else another root has begun to sign
			return c, t, nil
		}
	}
}

func (e *entry) copy() *entry { return &entry{id: e.id, leaf: e.leaf, key: e.key, secret: e.secret} }

// fill makes an entry's certificate, unless the entry has one that the issuing root signed and that willDo accepts.
func (a *Authority) fill(e *entry, willDo func(*entry) bool) error {
	e.making.Lock()
	defer e.making.Unlock()
	for {
		a.mu.Lock()
		t := a.trust.Load()
		has := e.secret != nil && e.by == t.issuing.certificate && willDo(e)
		a.mu.Unlock()
		if has {
			return nil
		}
		made, err := a.make(t, e.id)
		a.mu.Lock()
		switch {
		case err != nil && e.secret == nil && a.issued[e.id] == e:
			delete(a.issued, e.id)
		case err == nil && a.trust.Load().issuing == t.issuing: // else another root has begun to sign
			replaced := e.secret != nil
			e.leaf, e.key, e.secret = made.leaf, made.key, made.secret
			if a.issued[e.id] == e { // else it was forgotten meanwhile, or is the control plane's own
				if replaced {
					a.changed[e.id] = true
				}
				if replaced || e.due.Before(a.wakes) {
					a.poke()
				}
			}
			a.mu.Unlock()
			return nil
		}
		a.mu.Unlock()
		if err != nil {
			return err
		}
	}
}

// make makes a new key and certificate of an identity.
func (a *Authority) make(t *trust, id string) (*entry, error) {
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	var names []string
	switch {
	case id == a.own.id:
		names = a.o.OwnNames
	case a.o.Names != nil && !system(a.o.TrustDomain, id):
		names = a.o.Names(id)
	}
	l, err := a.sign(t, id, key.Public(), a.o.Life, names...)
	if err != nil {
		return nil, err
	}
	text, err := keyPEM(key)
	if err != nil {
		return nil, err
	}
	return &entry{id: id, leaf: l, key: text, secret: identitySecret(l.pem, text)}, nil
}

// retry is the time until Run tries again to renew a certificate that could not be renewed.
const retry = time.Second

// Run renews certificates when they are due, and calls OnChange, until ctx ends. Only one Run can be active at a time.
func (a *Authority) Run(ctx context.Context) error {
	if !a.running.CompareAndSwap(false, true) {
		return errors.New("the authority renews certificates already")
	}
	defer a.running.Store(false)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-a.wake:
		case <-timer.C:
		}
		for ctx.Err() == nil {
			e, wait := a.next()
			if e != nil {
				a.renew(e)
			}
			a.callOnChange()
			if e == nil {
				timer.Reset(wait)
				break
			}
		}
	}
}

// next returns an entry that is due. If none is due, it returns how long to wait before looking again, at most an hour.
func (a *Authority) next() (*entry, time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := time.Now()
	a.wakes = now.Add(time.Hour)
	for _, e := range a.issued {
		switch {
		case e.secret == nil: // it is being made
		case !e.due.After(now):
			return e, 0
		case e.due.Before(a.wakes):
			a.wakes = e.due
		}
	}
	return nil, a.wakes.Sub(now)
}

func (a *Authority) renew(e *entry) {
	err := a.fill(e, func(e *entry) bool { return time.Now().Before(e.due) })
	a.mu.Lock()
	if err != nil && a.issued[e.id] == e {
		e.due = time.Now().Add(retry)
	}
	a.mu.Unlock()
	if err != nil && a.refused.take("") { // one limit for all, because they fail together
		a.logf("the certificate of %s is not renewed: %s", e.id, err)
	}
}

// callOnChange calls OnChange for the identities that have a new secret, whether Run or a call of Secrets made it.
func (a *Authority) callOnChange() {
	a.mu.Lock()
	ids := slices.Sorted(maps.Keys(a.changed))
	clear(a.changed)
	a.mu.Unlock()
	for _, id := range ids {
		if a.o.OnChange != nil {
			a.o.OnChange(id)
		}
	}
}

// poke makes Run look for certificates that are due.
func (a *Authority) poke() {
	select {
	case a.wake <- struct{}{}:
	default:
	}
}
