package report_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"tare/internal/lib/fault"
	"tare/internal/results/report"
)

// TestFormatsPage: docs/formats.md lists the formats that are registered.
func TestFormatsPage(t *testing.T) {
	const page, begin, end = "../../../docs/formats.md", "<!-- formats -->\n", "<!-- end of formats -->"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	help, writes := map[string]string{}, map[string][]string{}
	for _, d := range []struct {
		name    string
		formats []report.Format
	}{
		{"runs", report.Runs.Formats()}, {"comparisons", report.Comparisons.Formats()},
		{"histories", report.Histories.Formats()}, {"powers", report.Powers.Formats()},
		{"plans", report.Plans.Formats()},
		{"ledgers", report.Ledgers.Formats()}, {"series of ledgers", report.Series.Formats()},
	} {
		for _, f := range d.formats {
			help[f.Name] = f.Help
			writes[f.Name] = append(writes[f.Name], d.name)
		}
	}
	list := "\n"
	for _, name := range slices.Sorted(maps.Keys(help)) {
		list += fmt.Sprintf("- `%s` (%s): %s\n", name, strings.Join(writes[name], ", "), help[name])
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatal("docs/formats.md has no place for the list")
	}
	now := before + begin + list + "\n" + end + after
	if now == string(text) {
		return
	}
	if !*update {
		t.Fatal("docs/formats.md does not list the registered formats: go test ./internal/results/report -run " +
			"TestFormatsPage -update")
	}
	if err := os.WriteFile(page, []byte(now), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestWriter: an unknown format, and a format that cannot write the kind of document, are usage errors.
func TestWriter(t *testing.T) {
	for name, want := range map[string]string{
		"jsom": `--format jsom: no such format; did you mean "json"?`,
		"md":   "--format md: this format has no ledgers",
		"":     "--format : no such format",
	} {
		write, err := report.Ledgers.Writer(name)
		if write != nil || err == nil || err.Error() != want || fault.CodeOf(err) != fault.Usage {
			t.Errorf("%q: %v, want %s", name, err, want)
		}
		if hint := fault.HintOf(err); hint != "choose from csv, json, openmetrics, text" {
			t.Errorf("%q: the hint is %q", name, hint)
		}
	}
	for _, name := range report.Ledgers.Names() {
		if write, err := report.Ledgers.Writer(name); write == nil || err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
