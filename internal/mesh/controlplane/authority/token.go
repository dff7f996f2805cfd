package authority

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
)

// Token is a secret by which an agent gets the first certificate of one identity: that of a service account. It prints
// as a remark, like Key. Give it to a process in a file of mode 0600 or in its environment, never as an argument, which
// every user can read.
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

// errToken is all that a peer learns of a token that is not taken.
var errToken = errors.New("the token is not valid")
