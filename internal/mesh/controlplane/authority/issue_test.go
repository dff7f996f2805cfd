package authority

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"
)

func TestSecrets(t *testing.T) {
	a := newAuthority(t, Options{})
	first, err := a.Secrets(webID)
	if err != nil {
		t.Fatal(err)
	}
	again, err := a.Secrets(webID)
	if err != nil {
		t.Fatal(err)
	}
	other, err := a.Secrets(apiID)
	if err != nil {
		t.Fatal(err)
	}
	if first[0] != again[0] || first[1] != again[1] || first[1] != other[1] || first[1] != a.trust.Load().secret {
		t.Error("secrets that have not changed are other messages")
	}
	if proto.Equal(first[0], other[0]) {
		t.Error("two identities have the same secret")
	}
	if first[0].GetName() != "identity" || first[1].GetName() != "roots" {
		t.Errorf("the names are %q and %q", first[0].GetName(), first[1].GetName())
	}
	for _, s := range first {
		if err := s.ValidateAll(); err != nil {
			t.Error(err)
		}
	}
	c := credentialsOf(t, a, webID)
	if string(c.Chain) != string(first[0].GetTlsCertificate().GetCertificateChain().GetInlineBytes()) ||
		string(c.Key) != string(first[0].GetTlsCertificate().GetPrivateKey().GetInlineBytes()) {
		t.Error("Credentials and Secrets differ")
	}
	checkKey(t, c)
	for _, id := range []string{
		"spiffe://other.local/ns/a/sa/b", ControlPlane(DefaultTrustDomain), "spiffe://mesh.local/ns/tare-system/sa/x",
		"web", "",
	} {
		if _, err := a.Secrets(id); err == nil {
			t.Errorf("%q has secrets", id)
		}
	}
}

// TestRotation: by a fake clock, each certificate is replaced with another key between 45 and 50 % of its life, at
// different times, and OnChange is called once for each.
func TestRotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		changes := map[string][]time.Time{}
		a := newAuthority(t, Options{OnChange: func(id string) {
			mu.Lock()
			defer mu.Unlock()
			changes[id] = append(changes[id], time.Now())
		}})
		taken := func() map[string][]time.Time { // the changes since the last call
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			all := changes
			changes = map[string][]time.Time{}
			return all
		}
		ctx, cancel := context.WithCancel(t.Context())
		ran := make(chan error, 1)
		go func() { ran <- a.Run(ctx) }()
		synctest.Wait()
		begin := time.Now()
		const identities = 20
		before := map[string]Credentials{}
		for i := range identities {
			id := fmt.Sprintf("spiffe://mesh.local/ns/default/sa/s%d", i)
			before[id] = credentialsOf(t, a, id)
		}
		time.Sleep(DefaultLife*45/100 - 2*time.Second)
		if early := taken(); len(early) > 0 {
			t.Errorf("too early: %v", early)
		}
		time.Sleep(DefaultLife*5/100 + 4*time.Second)
		got := taken()
		var times []time.Duration
		for id, old := range before {
			if len(got[id]) != 1 {
				t.Fatalf("%s: %d changes; want 1", id, len(got[id]))
			}
			times = append(times, got[id][0].Sub(begin).Round(time.Second))
			if now := credentialsOf(t, a, id); string(now.Key) == string(old.Key) || !now.NotAfter.After(old.NotAfter) {
				t.Errorf("%s: the key is the same, or it ends at %s after %s", id, now.NotAfter, old.NotAfter)
			}
		}
		slices.Sort(times)
		if len(slices.Compact(times)) < identities/2 {
			t.Errorf("certificates of the same time are replaced at the same times: %s", times)
		}
		for id := range before {
			a.Forget(id)
		}
		time.Sleep(3 * time.Hour)
		if late := taken(); len(late) > 0 || identitiesOf(a) > 0 {
			t.Errorf("what was forgotten is renewed: %v", late)
		}
		cancel()
		if err := <-ran; err != nil {
			t.Error(err)
		}
	})
}

// TestEnded: even if Run is not running, Secrets never returns an expired certificate.
func TestEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAuthority(t, Options{})
		old := credentialsOf(t, a, webID)
		time.Sleep(DefaultLife + time.Second)
		if now := credentialsOf(t, a, webID); !now.NotAfter.After(time.Now()) || string(now.Chain) == string(old.Chain) {
			t.Errorf("it ended %s ago", time.Since(now.NotAfter))
		}
	})
}

func TestMaxIdentities(t *testing.T) {
	a := newAuthority(t, Options{MaxIdentities: 1})
	credentialsOf(t, a, webID)
	if _, err := a.Secrets(apiID); err == nil {
		t.Error("two identities where one is allowed")
	}
	credentialsOf(t, a, webID)
	a.Forget(webID)
	credentialsOf(t, a, apiID)
}

// TestConcurrentIssue has many goroutines ask for few identities while roots change, for the race detector: an
// identity has one secret at a time, with its own key, signed by a trusted root.
func TestConcurrentIssue(t *testing.T) {
	a := newAuthority(t, Options{RenewAfter: 0.00001}) // renewed all the time
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	all.Go(func() { _ = a.Run(ctx) })
	for i := range 8 {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				id := fmt.Sprintf("spiffe://mesh.local/ns/default/sa/s%d", (n+i)%4)
				c, err := a.Credentials(id)
				if err != nil {
					t.Error(err)
					return
				}
				checkKey(t, c)
				if err := verifyAt(c, c.Roots, time.Now()); err != nil {
					t.Error(err)
				}
				if n%50 == 49 {
					a.Forget(id)
				}
			}
		})
	}
	for range 10 {
		for range 3 {
			if err := a.Advance(true); err != nil {
				t.Error(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	cancel()
	all.Wait()
}

// identitiesOf returns the number of identities with secrets.
func identitiesOf(a *Authority) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.issued)
}
