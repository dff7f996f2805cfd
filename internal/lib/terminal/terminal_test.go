package terminal

import (
	"bytes"
	"testing"

	testterminal "tare/test/terminal"
)

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
			testterminal.IsSafe(t, c.text, b.String(), Styles...)
		}
	}
}
