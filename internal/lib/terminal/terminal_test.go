package terminal

import (
	"bytes"
	"strings"
	"testing"
)

// isSafe fails where text holds what could steer a terminal.
func isSafe(t *testing.T, name, text string, own ...string) {
	t.Helper()
	for _, control := range own {
		text = strings.ReplaceAll(text, control, "")
	}
	if at := strings.IndexFunc(text, func(r rune) bool {
		return r < ' ' && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || r == 0x202e || r == 0xfffd
	}); at >= 0 {
		t.Errorf("%s: %q", name, text[max(at-20, 0):min(at+20, len(text))])
	}
}

func TestGuarded(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"plain\n\ttext, 5 µs\n", "plain\n\ttext, 5 µs\n"},
		{"\x1b[1mbold\x1b[0m and \x1b[2mfaint\x1b[0m", "\x1b[1mbold\x1b[0m and \x1b[2mfaint\x1b[0m"},
		{"\x1b[2Ja\x1b[31mb\rc\x07", `\x1b[2Ja\x1b[31mb\rc\a`},
		{"\x1b\x1b[1m[1m", "\\x1b\x1b[1m[1m"},
		{"\x1b[1\x1b[0mm", "\\x1b[1\x1b[0mm"},
		{"\u009b2J\u202e", `\u009b2J\u202e`},
	} {
		for pieces := range 2 {
			var b bytes.Buffer
			g := Guard(&b, Styles...)
			if pieces == 0 {
				if n, err := g.Write([]byte(c.text)); n != len(c.text) || err != nil {
					t.Errorf("%q: %d, %v", c.text, n, err)
				}
			} else {
				for i := range len(c.text) {
					if n, err := g.Write([]byte(c.text[i : i+1])); n != 1 || err != nil {
						t.Errorf("%q: %d, %v", c.text, n, err)
					}
				}
			}
			if b.String() != c.want {
				t.Errorf("%q in %d pieces: %q, want %q", c.text, pieces*len(c.text), b.String(), c.want)
			}
			isSafe(t, c.text, b.String(), Styles...)
		}
	}
}
