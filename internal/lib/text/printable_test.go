package text

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestLines(t *testing.T) {
	for name, c := range map[string]struct{ in, line, text string }{
		"plain":             {"a b\"c\\d", "a b\"c\\d", "a b\"c\\d"},
		"letters of others": {"größe 大 é\u0301", "größe 大 é\u0301", "größe 大 é\u0301"},
		"colours":           {"\x1b[31mred", `\x1b[31mred`, `\x1b[31mred`},
		"C1":                {"\u009b2J", `\u009b2J`, `\u009b2J`},
		"C1 as a byte":      {"\x9b2J", `\x9b2J`, `\x9b2J`},
		"NUL and DEL":       {"a\x00b\x7f", `a\x00b\x7f`, `a\x00b\x7f`},
		"lines":             {"one\ntwo\tthree\r", `one\ntwo\tthree\r`, "one\ntwo\tthree\\r"},
		"lines of Unicode":  {"one\u2028two\u2029", `one\u2028two\u2029`, `one\u2028two\u2029`},
		"direction":         {"\u202egpj.exe", `\u202egpj.exe`, `\u202egpj.exe`},
		"zero width":        {"a\u200bb\ufeff", `a\u200bb\ufeff`, `a\u200bb\ufeff`},
		"not UTF-8":         {"\xff\xc3", `\xff\xc3`, `\xff\xc3`},
		"the replacement":   {"\ufffd", "\ufffd", "\ufffd"},
		"empty":             {"", "", ""},
	} {
		if got := Line(c.in); got != c.line {
			t.Errorf("%s: a line is %q, want %q", name, got, c.line)
		}
		if got := Lines(c.in); got != c.text {
			t.Errorf("%s: a text is %q, want %q", name, got, c.text)
		}
	}
}

func TestClipLine(t *testing.T) {
	for _, c := range []struct {
		in   string
		most int
		want string
	}{
		{"abc", 3, "abc"},
		{"abcd", 3, "abc..."},
		{"\x1b\x1b", 4, `\x1b...`},
		{"\x1b\x1b", 7, `\x1b...`},
		{"\x1b\x1b", 8, `\x1b\x1b`},
		{"aé", 2, "a..."},
		{"", 0, ""},
		{strings.Repeat("x", 1<<20), 5, "xxxxx..."},
	} {
		if got := ClipLine(c.in, c.most); got != c.want {
			t.Errorf("%.10q to %d bytes: %q, want %q", c.in, c.most, got, c.want)
		}
	}
}

// FuzzLine: the result of Line cannot control a terminal, and Line does not change it again.
func FuzzLine(f *testing.F) {
	for _, s := range []string{"plain", "\x1b]0;title\a", "\u202e", "\xff", "a\nb"} {
		f.Add(s, 4)
	}
	f.Fuzz(func(t *testing.T, s string, most int) {
		most = max(0, min(most, 1<<16))
		for _, shown := range []string{Line(s), ClipLine(s, most)} {
			if !utf8.ValidString(shown) || Line(shown) != shown ||
				strings.ContainsFunc(shown, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }) {
				t.Errorf("%q is shown as %q", s, shown)
			}
		}
		if n := len(ClipLine(s, most)); n > most+len("...") {
			t.Errorf("%d bytes of %d", n, most)
		}
	})
}

func TestOfC(t *testing.T) {
	for in, want := range map[string]string{"bash\x00\x00": "bash", "full": "full", "\x00old": "", "a\xff\x00b": "a?"} {
		if got := OfC([]byte(in)); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

// TestColumns: what a terminal draws two columns wide is aligned, too.
func TestColumns(t *testing.T) {
	rows := [][]string{{"名前", "1"}, {"name", "22"}}
	widths := Widths(rows)
	if got := Aligned(rows[0], widths, true); got != "名前   1" {
		t.Errorf("%q", got)
	}
	if got := Aligned(rows[1], widths, true); got != "name  22" {
		t.Errorf("%q", got)
	}
	if got := Wrap(6, "", "名前 名前"); got != "名前\n名前\n" {
		t.Errorf("%q", got)
	}
}
