package fault

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"tare/internal/lib/text"
)

// Print prints what was wrong, where, and the hint. Lines after the first are indented, so that untrusted text cannot
// pass for another message.
func Print(w io.Writer, err error) {
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	indented := func(raw string) string { return strings.ReplaceAll(text.Lines(raw), "\n", "\n      ") }
	fmt.Fprintf(w, "tare: %s\n", indented(strings.TrimSpace(err.Error())))
	if hint := HintOf(err); hint != "" {
		fmt.Fprintf(w, "      %s\n", indented(hint))
	}
}
