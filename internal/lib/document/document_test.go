package document

import (
	"fmt"
	"strings"
	"testing"

	"tare/internal/lib/fault"
	"tare/internal/lib/param"
)

// TestErrorsHaveAPlace: errors name the line and, if it can be guessed, what was meant.
func TestErrorsHaveAPlace(t *testing.T) {
	settings := []param.Setting{{Name: "rate", Type: param.TypeNumber, Min: 1, Max: 10}}
	const file = File("a.yaml")
	for text, want := range map[string]string{
		"rate: 5":          "",
		"\nrate: 50":       `a.yaml:2:7: "rate" must be at most 10`,
		"\n\nraet: 5":      `a.yaml:3:1: there is no key "raet" in it; did you mean "rate"?`,
		"rate: [5]":        `a.yaml:1:7: "rate" must be a single value, not a list`,
		"- rate":           "a.yaml:1:1: it must be keys with values, not a list",
		"5: 6":             "a.yaml:1:1: a key must be a plain word, not a single value",
		"rate: &a 5":       `a.yaml:1:7: "rate" must be a single value, not an anchor or an alias`,
		"rate: {":          "this is not YAML",
		"\xff\xfer\x00":    "a.yaml:1: it is written in UTF-16",
		"\xfe\xff\x00r":    "a.yaml:1: it is written in UTF-16",
		"rate: 1\nrate: 2": `a.yaml:2:1: this is not YAML: mapping key "rate" already defined`,

		"%TAG ! tag:a.org,2000:\n---\nrate: 5":            "a.yaml:1:1: the directive %TAG is not supported",
		"rate: 5\n---\n%TAG ! tag:a.org,2000:\n---\na: 1": "a.yaml:3:1: the directive %TAG is not supported",
		"%YAML 1.2\n%OTHER\n---\nrate: 5":                 "a.yaml:2:1: the directive %OTHER is not supported",
	} {
		documents, err := file.Parse([]byte(text), Limit{Bytes: 1 << 10})
		o := param.Values{}
		if err == nil {
			err = file.Settings(documents[0], "it", settings, o)
		}
		if want == "" {
			if err != nil || o["rate"] != "5" {
				t.Errorf("%q: %v, %v", text, o, err)
			}
			continue
		}
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want %q", text, err, want)
		}
	}
	for _, begin := range []string{"\ufeff", "%YAML 1.1\n---\n", "\ufeff%YAML 1.2\r\n---\n",
		"# by hand\n\n%YAML\t1.2 # new\n---\n"} {
		documents, err := file.Parse([]byte(begin+"a: b\n"), Limit{Bytes: 1 << 10})
		if err != nil || len(documents) != 1 || !IsMapping(documents[0]) {
			t.Errorf("after %q: %v, %v", begin, documents, err)
			continue
		}
		want := fmt.Sprintf("a.yaml:%d:1", 1+strings.Count(begin, "\n"))
		if at := file.Place(documents[0]); at != want {
			t.Errorf("after %q it stands at %s, want %s", begin, at, want)
		}
	}
	if documents, err := file.Parse([]byte("rate: 5\n...\n%YAML 1.2\n---\nrate: 6"), Limit{Bytes: 1 << 10}); err != nil ||
		len(documents) != 2 || !IsMapping(documents[1]) {
		t.Errorf("two documents with %%YAML between them: %v, %v", documents, err)
	}
	for _, empty := range []string{"", "# nothing\n"} {
		if documents, err := file.Parse([]byte(empty), Limit{Bytes: 1 << 10}); err != nil || len(documents) != 0 {
			t.Errorf("%q: %v, %v", empty, documents, err)
		}
	}
}

// TestList: a list gives its texts with their places. A value that is no list is distinguished from an empty list.
func TestList(t *testing.T) {
	const file = File("a.yaml")
	for text, c := range map[string]struct {
		want   string
		isList bool
	}{"[a, 5]": {"a 5", true}, "[]": {"", true}, "a": {"", false}} {
		documents, err := file.Parse([]byte(text), Limit{Bytes: 1 << 10})
		if err != nil {
			t.Fatal(err)
		}
		items, isList, err := file.List(documents[0], "levels")
		var texts []string
		for _, item := range items {
			texts = append(texts, item.Text)
		}
		if got := strings.Join(texts, " "); err != nil || got != c.want || isList != c.isList {
			t.Errorf("%s: %q, %v, %v", text, got, isList, err)
		}
		if len(items) > 1 && file.Place(items[1].At) != "a.yaml:1:5" {
			t.Errorf("the second stands at %s", file.Place(items[1].At))
		}
	}
}
