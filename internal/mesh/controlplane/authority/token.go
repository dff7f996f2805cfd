package authority

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// Token is a secret with which an agent gets its first certificate: the token of a service account. It prints as a
// placeholder, like Key. Pass it to a process in a file of mode 0600 or in its environment, never as an argument,
// which every user can read.
type Token string

const hiddenToken = "(token)"

// Format writes a placeholder instead of the token, whatever the verb.
func (Token) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, hiddenToken) }

// String returns a placeholder instead of the token.
func (Token) String() string { return hiddenToken }

// LogValue returns a placeholder instead of the token.
func (Token) LogValue() slog.Value { return slog.StringValue(hiddenToken) }

// MarshalText returns a placeholder instead of the token.
func (Token) MarshalText() ([]byte, error) { return []byte(hiddenToken), nil }

// errToken is the only error that a peer gets for an invalid token.
var errToken = errors.New("the token is not valid")
