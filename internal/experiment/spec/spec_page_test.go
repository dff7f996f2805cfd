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
	"tare/test/lines"
)

var update = flag.Bool("update", false, "write docs/spec.md anew")

// settingsList matches a list of settings in docs/spec.md and the comment above it that names their owner: a guest
// ("load http"), several guests that have the settings in common ("common to subject envoy, subject nginx"), or the
// spec itself ("times"). "until KEY" leaves out that key and those after it. Keys that an earlier list has for the same
// guest are left out of later ones.
var settingsList = regexp.MustCompile(
	`(?m)^<!-- settings: (common to )?((?:.|\n)+?)(?: until (\S+))? -->\n(?:(?:- |  ).*\n)*`)

// specSettings are the settings of a spec that belong to no guest, by their names in docs/spec.md.
var specSettings = map[string][]param.Setting{
	"times":  slices.Concat(timeSettings, []param.Setting{samplingSetting, statisticsSetting, nodesSetting}),
	"end":    {repeatSetting, precisionSetting, untilSetting},
	"limits": kind.LimitSettings, "gates": measured.GateSettings, "copies": kind.CopySettings,
	"cluster": {settleSetting}, "where": whereSettings,
}

const specPage = "../../../docs/spec.md"

// TestSpecPage: docs/spec.md agrees with what the guests declare.
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
	shown := map[string][]string{} // rows by owner
	made := settingsList.ReplaceAllStringFunc(string(page), func(old string) string {
		comment, _, _ := strings.Cut(old, "-->\n")
		m := settingsList.FindStringSubmatch(old)
		rows, err := settingsRows(strings.Split(strings.ReplaceAll(m[2], "\n", " "), ", "), m[3], shown)
		if err != nil {
			t.Errorf("docs/spec.md: %q: %v", comment, err)
			return old
		}
		return comment + "-->\n" + strings.Join(rows, "")
	})
	for whose, all := range allSettings() {
		if len(shown[whose]) != len(all) {
			t.Errorf("docs/spec.md has %d of the %d settings of %s: give it a list below <!-- settings: %s -->",
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

// allSettings returns all settings that a spec can have, by owner.
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

// settingsRows returns the rows of a list of the settings that all owners in whose have, and adds them to each owner's
// rows in shown.
func settingsRows(whose []string, until string, shown map[string][]string) ([]string, error) {
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

// settingRow returns the row of a setting in docs/spec.md. It leaves out the kind of value where the default shows it.
func settingRow(k param.Setting) string {
	row, doc, value := "- `"+k.Name+"`", k.Doc, k.Default
	if m := leftOut.FindStringSubmatch(doc); m != nil && value == "" {
		doc, value = m[1], m[2]
	}
	shown := value != "" && len(k.Words) == 0 && slices.Contains(
		[]param.Type{param.TypeCount, param.TypeDuration, param.TypePart, param.TypeSwitch}, k.Type)
	if k.Type != param.TypeText && !shown {
		row += " *" + k.Accepts() + "*"
	}
	if value != "" {
		row += " (" + value + ")"
	}
	return lines.Wrap(row+": "+doc, "  ")
}

// leftOut matches a text that ends with the value that applies if the setting is left out.
var leftOut = regexp.MustCompile("^(.*); `?([^` ]+)`? when left out$")
