package spec

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/lib/param"
)

var update = flag.Bool("update", false, "write docs/spec.md anew")

// settingsTable matches a table of settings in docs/spec.md and the comment above it that says whose they are: those of
// a guest ("load http"), those that several guests have in common ("common to subject envoy, subject nginx"), or those
// of the spec itself ("times"). "until KEY" leaves out that key and those after it. Keys that an earlier table has for
// the same guest are left out of later ones.
var settingsTable = regexp.MustCompile(`(?m)^<!-- settings: (common to )?(.+?)(?: until (\S+))? -->\n(?:\|.*\n)*`)

// specSettings are the settings of a spec that belong to no guest, by their names in docs/spec.md.
var specSettings = map[string][]param.Setting{
	"times":  slices.Concat(timeKnobs, []param.Setting{samplingKnob, statisticsKnob, nodesKnob}),
	"end":    {repeatKnob, precisionKnob, untilKnob},
	"limits": kind.LimitSettings, "gates": measured.GateSettings, "copies": kind.CopySettings,
	"cluster": {settleKnob}, "where": whereSettings,
}

const specPage = "../../../docs/spec.md"

// TestSpecPage keeps docs/spec.md what the guests declare.
func TestSpecPage(t *testing.T) {
	page, err := os.ReadFile(specPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range specKeys {
		if !strings.Contains(string(page), "`"+key+"`") {
			t.Errorf("docs/spec.md does not have the key %s", key)
		}
	}
	shown := map[string][]string{} // rows by whose they are
	made := settingsTable.ReplaceAllStringFunc(string(page), func(old string) string {
		comment, _, _ := strings.Cut(old, "\n")
		m := settingsTable.FindStringSubmatch(old)
		table, err := settingsRows(strings.Split(m[2], ", "), m[3], shown)
		if err != nil {
			t.Errorf("docs/spec.md: %q: %v", comment, err)
			return old
		}
		return comment + "\n| key | value (default) | meaning |\n|---|---|---|\n" + strings.Join(table, "")
	})
	for whose, all := range allSettings() {
		if len(shown[whose]) != len(all) {
			t.Errorf("docs/spec.md has %d of the %d settings of %s: give it a table below <!-- settings: %s -->",
				len(shown[whose]), len(all), whose, whose)
		}
	}
	if *update {
		if err := os.WriteFile(specPage, []byte(made), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if made != string(page) {
		t.Error("docs/spec.md is not current: go test ./internal/experiment/spec -run TestSpecPage -update")
	}
}

// allSettings are all settings that a spec can have, by whose they are.
func allSettings() map[string][]param.Setting {
	all := map[string][]param.Setting{}
	for whose, settings := range specSettings {
		all[whose] = settings
	}
	for _, role := range []kind.Role{kind.Application, kind.Load, kind.Subject} {
		for _, g := range kind.All(role) {
			all[string(role)+" "+g.About().Name] = g.About().Settings
		}
	}
	return all
}

// settingsRows returns the rows of a table that is for each of whose, and notes in shown that these have them.
func settingsRows(whose []string, until string, shown map[string][]string) (table []string, err error) {
	var rows []string
	for i, w := range whose {
		all, ok := allSettings()[w]
		if !ok {
			return nil, fmt.Errorf("nothing is called %q", w)
		}
		var own []string
		for _, s := range all {
			if s.Name == until {
				break
			}
			if row := settingRow(s); !slices.Contains(shown[w], row) {
				own = append(own, row)
			}
		}
		if i == 0 {
			rows = own
		}
		rows = slices.DeleteFunc(rows, func(r string) bool { return !slices.Contains(own, r) })
	}
	for _, w := range whose {
		shown[w] = append(shown[w], rows...)
	}
	return rows, nil
}

// settingRow is the row of a setting in docs/spec.md.
func settingRow(k param.Setting) string {
	value := k.Accepts()
	if k.Default != "" {
		value += " (" + k.Default + ")"
	}
	return "| `" + k.Name + "` | " + value + " | " + k.Doc + " |\n"
}
