package authority

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"tare/internal/lib/fault"
)

// Token is a secret by which an agent gets the first certificate of one identity. It prints as a remark, like Key. Give
// it to a process in a file of mode 0600 or in its environment, never as an argument, which every user can read.
type Token string

const hiddenToken = "(token)"

// Format writes a remark instead of the token, whatever the verb.
func (Token) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, hiddenToken) }

// String is a remark instead of the token.
func (Token) String() string { return hiddenToken }

// LogValue is a remark instead of the token.
func (Token) LogValue() slog.Value { return slog.StringValue(hiddenToken) }

// MarshalText is a remark instead of the token.
func (Token) MarshalText() ([]byte, error) { return []byte(hiddenToken), nil }

// A token is a name, by which it is found, and a secret, of which only a digest is kept. Both are rand.Text: 26
// letters with 130 random bits.
const (
	tokenPart = 26
	tokenLen  = 2*tokenPart + 1
)

func (t Token) parts() (name, secret string, ok bool) {
	name, secret, ok = strings.Cut(string(t), ".")
	return name, secret, ok && len(name) == tokenPart && len(secret) == tokenPart
}

// Tokens are the bootstrap tokens that a control plane takes. The zero value has none, and will do.
type Tokens struct {
	mu   sync.Mutex
	held map[string]*grant // by name
}

// grant is what a token is for.
type grant struct {
	digest [sha256.Size]byte // of the secret
	id     string
	ends   time.Time

	once bool // it is for one use
}

// maxTokens is how many are kept that have not ended.
const maxTokens = 100_000

// New makes a token for an identity, which ends after life, and after its first use unless it is reusable. Whoever has
// it gets a certificate of that identity, so check that the identity is meant (CheckIdentity).
func (t *Tokens) New(id string, life time.Duration, reusable bool) (Token, error) {
	token := Token(rand.Text() + "." + rand.Text())
	return token, t.Add(token, id, life, reusable)
}

// Add takes a token that another Tokens made.
func (t *Tokens) Add(token Token, id string, life time.Duration, reusable bool) error {
	name, secret, ok := token.parts()
	if !ok {
		return fault.New(fault.Usage, "", "take one that was made here", "not a bootstrap token")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.held) >= maxTokens {
		t.sweep(time.Now())
	}
	if len(t.held) >= maxTokens {
		return fault.New(fault.Machine, "", "give them shorter lives", "there are %d bootstrap tokens already", maxTokens)
	}
	if t.held == nil {
		t.held = map[string]*grant{}
	}
	t.held[name] = &grant{sha256.Sum256([]byte(secret)), id, time.Now().Add(life), !reusable}
	return nil
}

func (t *Tokens) sweep(now time.Time) {
	for name, g := range t.held {
		if now.After(g.ends) {
			delete(t.held, name)
		}
	}
}

// errToken is all that a peer learns of a token that is not taken.
var errToken = errors.New("the bootstrap token is not valid")

// identity is whose a token is. It does not use the token up. A token that is not known takes the same steps as one
// whose secret is wrong.
func (t *Tokens) identity(token Token) (string, error) {
	name, secret, ok := token.parts()
	digest := sha256.Sum256([]byte(secret))
	t.mu.Lock()
	defer t.mu.Unlock()
	g, known := t.held[name]
	if !known {
		g = &grant{}
	}
	same := subtle.ConstantTimeCompare(g.digest[:], digest[:]) == 1
	if !ok || !known || !same || !time.Now().Before(g.ends) {
		return "", errToken
	}
	return g.id, nil
}

// use uses a token up if it is for one use. Of several that come at the same time one succeeds.
func (t *Tokens) use(token Token) error {
	if _, err := t.identity(token); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	name, _, _ := token.parts()
	g, known := t.held[name]
	if !known {
		return errToken // another came first
	}
	if g.once {
		delete(t.held, name)
	}
	return nil
}

// Revoke ends a token.
func (t *Tokens) Revoke(token Token) {
	name, _, _ := token.parts()
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.held, name)
}
