package authority

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

func signingKey(t testing.TB, id string) jose.JSONWebKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return jose.JSONWebKey{Key: key, KeyID: id, Algorithm: string(jose.ES256), Use: "sig"}
}

func keysOf(t testing.TB, keys ...jose.JSONWebKey) []byte {
	t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: keys})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// claims are those of a token of pod p1 of the account web, except where a test changes them.
type claims struct {
	jwt.Claims
	Kubernetes map[string]any `json:"kubernetes.io,omitempty"`
}

func usualClaims() claims {
	now := time.Now()
	return claims{jwt.Claims{Issuer: "https://cluster", Audience: jwt.Audience{"tare", "other"},
		Subject: "system:serviceaccount:shop:web", Expiry: jwt.NewNumericDate(now.Add(time.Minute)),
		NotBefore: jwt.NewNumericDate(now.Add(-time.Second))},
		map[string]any{"namespace": "shop", "serviceaccount": map[string]any{"name": "web", "uid": "u"},
			"pod": map[string]any{"name": "web-1", "uid": "p1"}}}
}

func accountToken(t testing.TB, algorithm jose.SignatureAlgorithm, key any, c any) Token {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: algorithm, Key: key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(s).Claims(c).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return Token(text)
}

// cluster is a cluster whose API server issues tokens.
type cluster struct {
	key      jose.JSONWebKey
	accounts *ServiceAccounts
}

func newCluster(t testing.TB) cluster {
	t.Helper()
	key := signingKey(t, "a")
	return cluster{key, must(NewServiceAccounts(keysOf(t, key.Public()), "https://cluster", "tare"))}
}

// token issues a token for a pod of an account in the namespace default.
func (c cluster) token(t testing.TB, account string) Token {
	t.Helper()
	is := usualClaims()
	is.Subject, is.Expiry = "system:serviceaccount:default:"+account, jwt.NewNumericDate(time.Now().Add(time.Hour))
	is.Kubernetes["namespace"], is.Kubernetes["serviceaccount"] = "default", map[string]any{"name": account, "uid": "u"}
	return accountToken(t, jose.ES256, c.key, is)
}

func TestServiceAccounts(t *testing.T) {
	key, other := signingKey(t, "a"), signingKey(t, "b")
	s, err := NewServiceAccounts(keysOf(t, key.Public(), other.Public()), "https://cluster", "tare")
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range []jose.JSONWebKey{key, other} {
		id, pod, err := s.identity(DefaultTrustDomain, accountToken(t, jose.ES256, k, usualClaims()))
		if err != nil || id != "spiffe://mesh.local/ns/shop/sa/web" || pod != "p1" {
			t.Errorf("%s of pod %s: %v", id, pod, err)
		}
	}
	change := func(f func(*claims)) Token {
		c := usualClaims()
		f(&c)
		return accountToken(t, jose.ES256, key, c)
	}
	stranger := signingKey(t, "a") // another key with a known name
	public, err := key.Public().MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	good := string(accountToken(t, jose.ES256, key, usualClaims()))
	for name, token := range map[string]Token{
		"another key":     accountToken(t, jose.ES256, stranger, usualClaims()),
		"an unknown key":  accountToken(t, jose.ES256, signingKey(t, "c"), usualClaims()),
		"a secret":        accountToken(t, jose.HS256, jose.JSONWebKey{Key: public, KeyID: "a"}, usualClaims()),
		"no signature":    Token("eyJhbGciOiJub25lIn0." + strings.Split(good, ".")[1] + "."),
		"changed":         Token(strings.Replace(good, ".", ".A", 1)),
		"issuer":          change(func(c *claims) { c.Issuer = "https://other" }),
		"audience":        change(func(c *claims) { c.Audience = jwt.Audience{"other"} }),
		"no audience":     change(func(c *claims) { c.Audience = nil }),
		"ended":           change(func(c *claims) { c.Expiry = jwt.NewNumericDate(time.Now().Add(-time.Second)) }),
		"without an end":  change(func(c *claims) { c.Expiry = nil }),
		"not yet":         change(func(c *claims) { c.NotBefore = jwt.NewNumericDate(time.Now().Add(time.Minute)) }),
		"a user":          change(func(c *claims) { c.Subject = "admin" }),
		"another account": change(func(c *claims) { c.Subject = "system:serviceaccount:shop:api" }),
		"nothing more":    change(func(c *claims) { c.Kubernetes = nil }),
		"a path": change(func(c *claims) {
			c.Subject, c.Kubernetes["namespace"] = "system:serviceaccount:a/b:web", "a/b"
		}),
		"long":             Token(strings.Repeat("a", maxAccountToken+1)),
		"none":             "",
		"two dots":         "..",
		"a token of ours":  "abc.def",
		"a long pod":       change(func(c *claims) { c.Kubernetes["pod"] = map[string]any{"uid": strings.Repeat("x", 65)} }),
		"a pod of numbers": change(func(c *claims) { c.Kubernetes["pod"] = 7 }),
	} {
		if id, _, err := s.identity(DefaultTrustDomain, token); !errors.Is(err, errToken) {
			t.Errorf("%s: %s, %v", name, id, err)
		}
	}
}

func TestServiceAccountKeys(t *testing.T) {
	key := signingKey(t, "a")
	for name, c := range map[string]struct {
		text             []byte
		issuer, audience string
	}{
		"nothing":     {nil, "i", "a"},
		"no keys":     {keysOf(t), "i", "a"},
		"private":     {keysOf(t, key), "i", "a"},
		"a secret":    {[]byte(`{"keys":[{"kty":"oct","kid":"a","k":"AAAA"}]}`), "i", "a"},
		"no name":     {keysOf(t, jose.JSONWebKey{Key: key.Public().Key}), "i", "a"},
		"no issuer":   {keysOf(t, key.Public()), "", "a"},
		"no audience": {keysOf(t, key.Public()), "i", ""},
	} {
		if _, err := NewServiceAccounts(c.text, c.issuer, c.audience); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

// TestAgentOfPod: an agent gets certificates with the current token of a service account, and pods of one account do
// not use up each other's quota.
func TestAgentOfPod(t *testing.T) {
	a, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	key := signingKey(t, "a")
	accounts, err := NewServiceAccounts(keysOf(t, key.Public()), "https://cluster", "tare")
	if err != nil {
		t.Fatal(err)
	}
	address := serve(t, a, ServiceOptions{Accounts: accounts, Rate: 1e-9, Burst: 2})
	asks := 0
	agent := func(pod string) *Agent {
		return &Agent{Address: address, Identity: "spiffe://mesh.local/ns/shop/sa/web", Roots: a.RootsPEM(),
			ReadToken: func() (Token, error) {
				asks++
				c := usualClaims()
				c.Kubernetes["pod"] = map[string]any{"uid": pod}
				return accountToken(t, jose.ES256, key, c), nil
			}}
	}
	for _, pod := range []string{"p1", "p2"} {
		for i := range 3 {
			c, err := agent(pod).Request(context.Background(), Credentials{})
			if i < 2 && (err != nil || c.ID != "spiffe://mesh.local/ns/shop/sa/web") {
				t.Errorf("%s, certificate %d: %q, %v", pod, i, c.ID, err)
			} else if i == 2 && err == nil {
				t.Errorf("%s got more than its share", pod)
			}
		}
	}
	if asks != 6 {
		t.Errorf("the token was read %d times", asks)
	}
	other := agent("p3")
	other.Identity = "spiffe://mesh.local/ns/shop/sa/api"
	if _, err := other.Request(context.Background(), Credentials{}); err == nil {
		t.Error("a certificate of another account")
	}
}

// FuzzAccountToken: only tokens that the cluster has signed are valid.
func FuzzAccountToken(f *testing.F) {
	key := signingKey(f, "a")
	s, err := NewServiceAccounts(keysOf(f, key.Public()), "https://cluster", "tare")
	if err != nil {
		f.Fatal(err)
	}
	c := usualClaims()
	c.Expiry = jwt.NewNumericDate(time.Now().Add(24 * time.Hour))
	good := accountToken(f, jose.ES256, key, c)
	head, rest, _ := strings.Cut(string(good), ".")
	claims, _, _ := strings.Cut(rest, ".")
	f.Add(string(good))
	f.Add(head + "." + claims + ".")
	f.Add("eyJhbGciOiJub25lIn0." + claims + ".")
	f.Add(`{"payload":"` + claims + `","signatures":[]}`)
	f.Fuzz(func(t *testing.T, text string) {
		if _, _, err := s.identity(DefaultTrustDomain, Token(text)); err == nil {
			// Only an equivalent token is accepted: the base64 of a signature can end in other unused bits.
			if h, r, _ := strings.Cut(text, "."); h != head || !strings.HasPrefix(r, claims+".") {
				t.Errorf("taken: %s", text)
			}
		}
	})
}
