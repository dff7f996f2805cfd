package authority

import (
	"errors"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tokens Tokens
		once := must(tokens.New(webID, time.Minute, false))
		many := must(tokens.New(apiID, time.Minute, true))
		last := string(once[len(once)-1:])
		change := map[bool]string{true: "B", false: "A"}[last == "A"]
		// What differs in its first letter is refused as is what differs in its last, and what is unknown.
		for _, wrong := range []Token{
			"", ".", "x", once[:len(once)-1] + Token(change), once[:tokenPart+1] + many[tokenPart+1:],
			many[:tokenPart] + once[tokenPart:], once[:tokenPart] + "." + Token(make([]byte, tokenPart)), once + "A", once[1:],
			once[:tokenPart+1] + Token(change) + once[tokenPart+2:] + "",
		} {
			if wrong == once {
				continue // its first letter was that by chance
			}
			if id, err := tokens.identity(wrong); !errors.Is(err, errToken) || id != "" {
				t.Errorf("%q is a token of %q: %v", string(wrong), id, err)
			}
			if err := tokens.use(wrong); !errors.Is(err, errToken) {
				t.Errorf("%q was used: %v", string(wrong), err)
			}
		}
		if id, err := tokens.identity(once); id != webID || err != nil {
			t.Errorf("%q, %v", id, err)
		}
		if tokens.use(once) != nil || tokens.use(once) == nil {
			t.Error("a token for one use was not used, or used twice")
		}
		for range 2 {
			if err := tokens.use(many); err != nil {
				t.Errorf("a reusable token: %v", err)
			}
		}
		time.Sleep(time.Minute)
		if tokens.use(many) == nil {
			t.Error("a token that has ended was used")
		}
		revoked := must(tokens.New(webID, time.Minute, true))
		tokens.Revoke(revoked)
		if tokens.use(revoked) == nil {
			t.Error("a revoked token was used")
		}
	})
}

func TestTokenOnce(t *testing.T) {
	var tokens Tokens
	token := must(tokens.New(webID, time.Hour, false))
	var used atomic.Int32
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if tokens.use(token) == nil {
				used.Add(1)
			}
		})
	}
	all.Wait()
	if used.Load() != 1 {
		t.Errorf("used %d times", used.Load())
	}
}

func TestMaxTokens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var tokens Tokens
		must(tokens.New(webID, time.Minute, false))
		for i := range maxTokens - 1 {
			tokens.held[strconv.Itoa(i)] = &grant{ends: time.Now().Add(time.Minute)}
		}
		if _, err := tokens.New(webID, time.Minute, false); err == nil {
			t.Error("there are more tokens than may be")
		}
		time.Sleep(time.Minute + 1)
		must(tokens.New(webID, time.Minute, false))
	})
}
