package document

import (
	"fmt"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/parser"
)

// bomb returns a few hundred bytes of YAML in which aliases make a list of 9 lists of 9 lists and so on.
func bomb(levels int) string {
	var b strings.Builder
	b.WriteString("x0: &x0 [a, a, a, a, a, a, a, a, a]\n")
	for i := 1; i < levels; i++ {
		list := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d, ", i-1), 9), ", ")
		fmt.Fprintf(&b, "x%d: &x%d [%s]\n", i, i, list)
	}
	return b.String()
}

func TestGuard(t *testing.T) {
	long := strings.Repeat("x", 64<<10)
	var steps strings.Builder
	for i := range MaxDepth + 2 {
		steps.WriteString(strings.Repeat(" ", i) + "a:\n")
	}
	many := strings.Repeat("- {a: *x, b: *x}\n", 20_000)
	for name, c := range map[string]struct {
		text, says string
		line       int
	}{
		"nothing":               {"", "", 0},
		"a mesh":                {"services:\n  - name: web\n    headers: {x: \"*\", y: '&'}\n", "", 0},
		"as deep as may be":     {strings.Repeat("[", MaxDepth-1) + strings.Repeat("]", MaxDepth-1), "", 0},
		"brackets":              {"a:\n" + strings.Repeat("[", MaxDepth+1), "nested", 2},
		"brackets on lines":     {strings.Repeat("{\n", MaxDepth+1), "nested", 101},
		"lists":                 {"a:\n" + strings.Repeat("- ", MaxDepth+1), "nested", 2},
		"keys":                  {strings.Repeat("? ", MaxDepth+1) + "a", "nested", 1},
		"anchors":               {strings.Repeat("&a ", MaxDepth+1) + "a", "nested", 1},
		"tags":                  {strings.Repeat("!a ", MaxDepth+1) + "a", "nested", 1},
		"in turns":              {strings.Repeat("- ? !a &b ", MaxDepth/4+1), "nested", 1},
		"indentation":           {steps.String(), "nested", MaxDepth + 1},
		"JSON with indentation": {strings.Repeat("{\n\"a\":\n", 60) + "1" + strings.Repeat("}", 60), "", 0},
		"a rule of dashes":      {"a: |\n  " + strings.Repeat("-", 1000) + "\n", "", 0},
		"aliases":               {"a: &x {k: v}\nb: *x\nc: {<<: *x}\n", "", 0},
		"many aliases":          {"x: &x {p: 1, q: [1, 2]}\nlist:\n" + many, "", 0},
		"an alias of itself":    {"a: &a [*a, *a]\n", "", 0},
		"aliases of aliases":    {bomb(9), "aliases stand for more than 65536 values", 2},
		"of a long value": {"x: &x " + long + "\nlist: [" + strings.Repeat("*x, ", 1000) + "]\n",
			"aliases stand for", 2},
		"no YAML":              {"a: &a [*a", "", 0},
		"in the second of two": {"a: 1\n---\n" + bomb(9), "aliases stand for", 4},
	} {
		line, err := Guard([]byte(c.text))
		if (err == nil) != (c.says == "") || err != nil && (!strings.Contains(err.Error(), c.says) || line != c.line) {
			t.Errorf("%s: line %d: %v, want line %d: %q", name, line, err, c.line, c.says)
		}
	}
}

// FuzzGuard: what a decoder makes of a document that passes Guard is bounded, so none takes all memory or time of the
// test.
func FuzzGuard(f *testing.F) {
	for _, s := range []string{bomb(3), bomb(9), "a: &a [*a]", strings.Repeat("- ", 200), "a: {<<: *b}", "? [a]\n: b",
		"|\n a"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<12 {
			return
		}
		if _, err := Guard(data); err != nil {
			return
		}
		if _, err := parser.ParseBytes(data, 0); err != nil {
			return
		}
		if made, err := yaml.YAMLToJSON(data); err == nil && len(made) > 64*(MaxAliased+MaxRepeat*len(data)) {
			t.Errorf("%d bytes make %d", len(data), len(made))
		}
	})
}
