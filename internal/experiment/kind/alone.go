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

// Alone is how a person runs a guest by itself, as 'tare load NAME', 'tare app NAME' or 'tare subject NAME'. The flags
// are the settings of its process. A load, and a subject that works without any, is measured for some time; all others
// go on until they are interrupted. The zero value is enough for a guest that needs nothing else.
type Alone struct {
	// Argument is the setting whose value may be given without its flag, such as a URL. Empty: there is none.
	Argument string

	// Examples are command lines that work as they are, without the words 'tare load NAME'.
	Examples []string

	// Warmup and Duration are how long a load is measured unless the command line says. A Duration of 0 is 10 s.
	Warmup, Duration time.Duration

	// Ready words the ready message for people, in one line or several. Nil: only that the guest is ready is printed.
	Ready func(v param.Values, ready json.RawMessage) (string, error)

	// Rereads says that SIGHUP has the guest read its files again. Otherwise it ends the guest.
	Rereads bool

	// Run runs a guest that is no Player until ctx ends: it writes its output to out and messages to log.
	Run func(ctx context.Context, out, log io.Writer, v param.Values) error
}

// Worded is an Alone.Ready made of a function of the decoded message.
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
