package sandbox

import (
	"flag"
	"os"
	"strings"
	"testing"

	"tare/test/vm/guest"
)

var update = flag.Bool("update", false, "write the tables of docs/weigh-sandboxes.md anew")

const page = "../../../../docs/weigh-sandboxes.md"

// The tables of the documentation page have the rows and findings of the built-in table.
func TestPage(t *testing.T) {
	guest.KernelFree(t)
	table := builtin()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var rows, findings strings.Builder
	rows.WriteString("\n| arrangement | what |\n|---|---|\n")
	for _, r := range table.Rows {
		rows.WriteString("| `" + r.Name + "` | " + strings.ReplaceAll(r.Title, "<", "&lt;") + " |\n")
	}
	findings.WriteString("\n| code | says |\n|---|---|\n")
	for _, f := range table.Findings {
		for _, c := range f.Components {
			findings.WriteString("| `" + f.Code + "` | " + strings.ReplaceAll(f.Says, "{component}", ComponentName(c)) + " |\n")
		}
	}
	now := string(text)
	for name, content := range map[string]string{"rows": rows.String() + "\n", "findings": findings.String() + "\n"} {
		before, rest, found := strings.Cut(now, "<!-- "+name+" -->\n")
		_, after, ended := strings.Cut(rest, "<!-- end of "+name+" -->")
		if !found || !ended {
			t.Fatalf("the page has no place for %s", name)
		}
		now = before + "<!-- " + name + " -->\n" + content + "<!-- end of " + name + " -->" + after
	}
	if now == string(text) {
		return
	}
	if !*update {
		t.Error("the tables of docs/weigh-sandboxes.md are not current: go test ./internal/scale/host/sandbox -update")
		return
	}
	if err := os.WriteFile(page, []byte(now), 0o644); err != nil {
		t.Fatal(err)
	}
}
