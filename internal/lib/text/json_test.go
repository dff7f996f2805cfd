package text

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode"
)

// hostile are characters that change what a terminal does or shows.
var hostile = []string{"\x1b[2J", "\x1b]0;title\x07", "\x00", "\r", "\b", "\x7f", "\u009b2J", "\u202e", "\u2066",
	"\u200b", "\ufeff",
	"\xff\xfe", "\xc3", "\u2028"}

// printed reports whether nothing in s can control a terminal.
func printed(s string) bool {
	for _, r := range s {
		if r != '\n' && r != '\t' && !unicode.IsGraphic(r) {
			return false
		}
	}
	return true
}

// everyString calls look with all strings of a decoded document.
func everyString(v any, look func(string)) {
	switch v := v.(type) {
	case string:
		look(v)
	case []any:
		for _, e := range v {
			everyString(e, look)
		}
	case map[string]any:
		for k, e := range v {
			look(k)
			everyString(e, look)
		}
	}
}

// FuzzJSON: whatever the document, it stays valid or invalid, its strings are printable, and what was printable is the
// same.
func FuzzJSON(f *testing.F) {
	for _, h := range hostile {
		text, _ := json.Marshal(map[string]any{"a" + h: []any{h, "x" + h + "\\" + h}})
		f.Add(text)
		f.Add([]byte(`{"k":"` + h + `"}`))
	}
	for _, text := range []string{`"\u001b[2J"`, `"\\u001b"`, `"\\\u001b"`, `"\ud83d\ude42"`, `"\ud83d"`, `"\ud83d\u0041"`,
		`"\"\u202e"`,
		`{"a":1e9,"b":[true,null]}`, `"\b\f\n\r\t\/"`, `"half`, `"half\`, `"half\u00`, "\"\x7f\"", `{"\u009b":""}`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		out := JSON(data)
		if json.Valid(data) != json.Valid(out) {
			t.Fatalf("%q became %q", data, out)
		}
		var before, after any
		if json.Unmarshal(data, &before) != nil {
			return
		}
		if err := json.Unmarshal(out, &after); err != nil {
			t.Fatal(err)
		}
		clean := true
		everyString(before, func(s string) { clean = clean && Lines(s) == s })
		everyString(after, func(s string) {
			if !printed(s) {
				t.Fatalf("%q became %q", data, out)
			}
		})
		if clean && !strings.Contains(string(data), "\ufffd") && string(out) != string(data) &&
			strings.ToValidUTF8(string(data), "") == string(data) &&
			!strings.Contains(string(data), `\u`) {
			t.Fatalf("%q became %q", data, out)
		}
	})
}
