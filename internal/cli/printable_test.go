package cli

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
)

// TestLogsSteerNoTerminal: whatever a control plane makes a role log reaches the terminal as harmless text, and as one
// message.
func TestLogsSteerNoTerminal(t *testing.T) {
	const hostile = "refused: cluster \"a\x1b[2J\u202e\": no\nwarning: forged\x00\u009b\xff"
	data, err := json.Marshal(hostile)
	if err != nil {
		t.Fatal(err)
	}
	for name, print := range map[string]func(io.Writer, role.Message) error{
		"kernelmesh":   printer(kind.Find(kind.Subject, "kernelmesh"), nil),
		"controlplane": printControlplane,
	} {
		var b bytes.Buffer
		if err := print(&b, role.Message{Event: role.Log, Data: data}); err != nil {
			t.Fatal(err)
		}
		if strings.ContainsAny(b.String(), "\x1b\u202e\x00\u009b") || strings.Contains(b.String(), "\nwarning") {
			t.Errorf("%s prints %q", name, b.String())
		}
		if !strings.Contains(b.String(), `a\x1b[2J\u202e`) {
			t.Errorf("%s does not show what was said: %q", name, b.String())
		}
	}
	var b bytes.Buffer
	fault.Print(&b, errors.New(hostile))
	if strings.ContainsAny(b.String(), "\x1b\u202e\x00\u009b") || !strings.Contains(b.String(), "\n      warning") {
		t.Errorf("an error is printed as %q", b.String())
	}
}
