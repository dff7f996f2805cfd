package authority

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestRollover goes through the three steps, and checks at each stage which certificates are accepted, old and new, by
// x509 and by OpenSSL, and the state that the authority reports.
func TestRollover(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changed []string
		var roots int
		var log []string
		a := newAuthority(t, Options{
			OnChange: func(id string) { changed = append(changed, id) }, OnRoots: func() { roots++ },
			Log: func(line string) { log = append(log, line) },
		})
		go func() { _ = a.Run(t.Context()) }()
		synctest.Wait()
		old := credentialsOf(t, a, webID)
		oldRoot := a.Rollover().Issuing
		takes := func(c Credentials, good bool) {
			t.Helper()
			if err := verifyAt(c, a.RootsPEM(), time.Now()); (err == nil) != good {
				t.Errorf("stage %q: %v; want it taken: %v", a.Rollover().Stage, err, good)
			}
			if err := openssl(t, c, a.RootsPEM(), time.Now()); (err == nil) != good {
				t.Errorf("stage %q, OpenSSL: %v; want it taken: %v", a.Rollover().Stage, err, good)
			}
		}
		expect := func(stage Stage, trusted, rootChanges, changes int) {
			t.Helper()
			synctest.Wait()
			r := a.Rollover()
			if r.Stage != stage || len(r.Trusted) != trusted || roots != rootChanges || len(changed) != changes {
				t.Errorf("%+v, roots changed %d times, identities %v; want %q with %d roots, %d and %d changes", r, roots,
					changed, stage, trusted, rootChanges, changes)
			}
			if !slices.Contains(r.Trusted, r.Issuing) || r.Pending != 0 {
				t.Errorf("%+v", r)
			}
		}
		expect(Steady, 1, 0, 0)
		if err := a.Advance(false); err != nil {
			t.Fatal(err)
		}
		expect(NewTrusted, 2, 1, 0)
		both := a.trust.Load().secret
		if r := a.Rollover(); r.Issuing != oldRoot {
			t.Errorf("%s signs in the first stage", r.Issuing)
		}
		takes(old, true)
		if err := a.Advance(false); err != nil {
			t.Fatal(err)
		}
		expect(NewIssues, 2, 1, 1)
		fresh := credentialsOf(t, a, webID)
		if r := a.Rollover(); r.Issuing == oldRoot || a.trust.Load().secret != both {
			t.Errorf("%s signs; the secret of roots is the same: %v", r.Issuing, a.trust.Load().secret == both)
		}
		takes(old, true)
		takes(fresh, true)
		for _, r := range a.trust.Load().roots {
			if (r.key != nil) != (r.name() != oldRoot) {
				t.Errorf("%s has a key: %v", r.name(), r.key != nil)
			}
		}

		if err := a.Advance(false); err != nil {
			t.Fatal(err)
		}
		expect(Steady, 1, 2, 1)
		takes(old, false)
		takes(fresh, true)
		if len(log) != 3 {
			t.Errorf("%d lines of log: %q; want one for each step", len(log), log)
		}
	})
}

// TestChangeIsTold: OnChange is also called for a secret that a call of Secrets renewed before Run came to it.
func TestChangeIsTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var changed []string
		a := newAuthority(t, Options{OnChange: func(id string) { changed = append(changed, id) }})
		old := credentialsOf(t, a, webID)
		if err := errors.Join(a.Advance(false), a.Advance(true)); err != nil {
			t.Fatal(err)
		}
		if now := credentialsOf(t, a, webID); string(now.Chain) == string(old.Chain) {
			t.Error("a certificate of the old root is handed out")
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = a.Run(ctx) }()
		synctest.Wait()
		if len(changed) != 1 || changed[0] != webID {
			t.Errorf("changes of %v were told; want one of %s", changed, webID)
		}
		cancel()
	})
}

// TestRolloverWaits: steps that would leave agents or proxies without a valid certificate are refused until they no
// longer would, and can be forced.
func TestRolloverWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t, Options{})
		agent := func() {
			t.Helper()
			key, err := newKey()
			if err != nil {
				t.Fatal(err)
			}
			l, err := a.sign(a.trust.Load(), apiID, key.Public(), a.o.Life)
			if err != nil || !a.note(a.trust.Load(), l) {
				t.Fatal(err)
			}
		}
		agent()
		if err := a.Advance(false); err != nil {
			t.Fatal(err)
		}
		if err := a.Advance(false); err == nil {
			t.Fatal("an agent that does not know the new root was left behind")
		}
		time.Sleep(time.Until(a.Rollover().SafeAt))
		credentialsOf(t, a, webID)
		agent() // this agent knows both roots
		if err := a.Advance(false); err != nil {
			t.Fatal(err)
		}
		if r := a.Rollover(); r.Pending != 1 || time.Until(r.SafeAt) < DefaultLife-2*time.Second {
			t.Fatalf("%+v: one identity and one agent have certificates of the old root", r)
		}
		if a.Advance(false) == nil {
			t.Fatal("a proxy was left behind")
		}
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = a.Run(ctx) }()
		synctest.Wait()
		if r := a.Rollover(); r.Pending != 0 || a.Advance(false) == nil {
			t.Fatalf("%+v: an agent was left behind", r)
		}
		agent()
		time.Sleep(time.Until(a.Rollover().SafeAt))
		if err := a.Advance(false); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			if err := a.Advance(true); err != nil {
				t.Error(err)
			}
		}
		cancel()
		synctest.Wait()
	})
}
