package kind

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"tare/internal/experiment/role"
	"tare/internal/lib/param"
)

// Alone describes how a person runs a guest by itself, as 'tare load NAME', 'tare app NAME' or 'tare subject NAME'.
// The flags are the settings of its process. A load, and a subject that needs no load, is measured for some time; all
// others run until they are interrupted. The zero value is enough for a guest that needs nothing else.
type Alone struct {
	// Argument is the setting whose value may be given without its flag, such as a URL. Empty: none.
	Argument string

	// Examples are the arguments of commands that work as they are: the words 'tare load NAME' are put before each.
	Examples []string

	// Warmup and Duration are the default times of a measurement. A Duration of 0 selects 10 s.
	Warmup, Duration time.Duration

	// Ready turns the ready message into text for people. Nil: the text says only that the guest is ready.
	Ready func(v param.Values, ready json.RawMessage) (string, error)

	// Rereads is true if the guest reads its files again on SIGHUP. Otherwise SIGHUP ends the guest.
	Rereads bool

	// Run runs a guest that is not a Player until ctx ends: it writes its output to out and messages to log.
	Run func(ctx context.Context, out, log io.Writer, v param.Values) error
}

// Worded returns an Alone.Ready that decodes the message and passes it to word.
func Worded[R any](word func(param.Values, R) string) func(param.Values, json.RawMessage) (string, error) {
	return func(v param.Values, ready json.RawMessage) (string, error) {
		var r R
		if err := json.Unmarshal(ready, &r); err != nil {
			return "", fmt.Errorf("decoding a %s message: %w", role.Ready, err)
		}
		return word(v, r), nil
	}
}

// Measures reports whether a guest is measured when a person runs it by itself, as a load is.
func Measures(r Role, g Guest) bool { return r == Load || g.About().WorksAlone }
