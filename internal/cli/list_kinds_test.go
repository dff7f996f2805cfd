package cli

import (
	"encoding/json"
	"strings"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
)

// TestListKinds: every setting is listed with type, range, default and documentation, for people and as JSON.
func TestListKinds(t *testing.T) {
	for name, kinds := range map[string][]kind.Guest{
		"apps": kind.All(kind.Application), "loads": kind.All(kind.Load), "subjects": kind.All(kind.Subject),
	} {
		text, err := ran(t, "list", name)
		if err != nil {
			t.Fatal(err)
		}
		asJSON, err := ran(t, "list", name, "--json")
		if err != nil {
			t.Fatal(err)
		}
		var listed []struct {
			Name     string
			Settings []param.Setting
		}
		if err := json.Unmarshal([]byte(asJSON), &listed); err != nil || len(listed) != len(kinds) {
			t.Fatalf("%s: %d of %d kinds, %v", name, len(listed), len(kinds), err)
		}
		for i, k := range kinds {
			k := k.About()
			if !strings.Contains(text, k.Name+": "+k.Summary+"\n") || listed[i].Name != k.Name {
				t.Errorf("%s: %s is not listed", name, k.Name)
			}
			for _, s := range append(k.Settings[:len(k.Settings):len(k.Settings)], kind.LimitKeys()...) {
				row := "  " + s.Name + ": " + s.Accepts()
				if !strings.Contains(text, row) || !strings.Contains(text, "\n      "+s.Doc+"\n") {
					t.Errorf("%s: the setting %s of %s is not listed", name, s.Name, k.Name)
				}
				if got, _ := param.Find(listed[i].Settings, s.Name); got.Default != s.Default || got.Max != s.Max ||
					got.Doc != s.Doc {
					t.Errorf("%s: as JSON the setting %s of %s is %+v", name, s.Name, k.Name, got)
				}
			}
		}
	}
	// The names of fields are a contract. A test that decoded into the struct that wrote them would not notice a new name.
	out, err := ran(t, "list", "loads", "http", "--json")
	var kinds []struct{ Settings []map[string]any }
	if err != nil || json.Unmarshal([]byte(out), &kinds) != nil || len(kinds) != 1 {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, s := range kinds[0].Settings {
		if doc, isText := s["doc"].(string); !isText || doc == "" || s["name"] == nil || s["type"] == nil {
			t.Errorf("a setting as JSON: %v", s)
		}
	}
	text, err := ran(t, "list", "loads", "http")
	const rows = "\n  connections: count, 1 to 100000; default 64\n" +
		"      connections open at once, at most; with keepalive, exactly\n"
	if err != nil || !strings.Contains(text, rows) || strings.Contains(text, "probe:") {
		t.Errorf("%v\n%s", err, text)
	}
	if !strings.Contains(text, "  count: count, 0 to 256; default 1\n") {
		t.Errorf("the count of copies is not listed:\n%s", text)
	}
	for _, args := range [][]string{{"list", "loads", "htpt"}, {"list", "apps", "http", "mesh"}} {
		if out, err := ran(t, args...); fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" || out != "" {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
	if out, err := ran(t, "list", "quickstart"); err != nil || !strings.Contains(out, "name: quickstart") {
		t.Errorf("%v\n%s", err, out)
	}
}
