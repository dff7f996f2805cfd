package tool

import (
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the table of tools in docs/commands.md anew")

// TestPage: docs/commands.md lists for each tool which output is read, of which versions, and what its clock measures.
func TestPage(t *testing.T) {
	const page, begin, end = "../../../../../docs/commands.md", "<!-- tools -->\n", "<!-- end of tools -->"
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	table := "\n| tool | what is read | versions tested | what its clock measures |\n|---|---|---|---|\n"
	for _, tool := range tools {
		table += "| " + strings.Join([]string{tool.Name, tool.Reads, tool.Tested, tool.Clock}, " | ") + " |\n"
	}
	before, rest, found := strings.Cut(string(text), begin)
	_, after, ended := strings.Cut(rest, end)
	if !found || !ended {
		t.Fatal("docs/commands.md has no place for the table")
	}
	now := before + begin + table + "\n" + end + after
	if now == string(text) {
		return
	}
	if !*update {
		t.Fatal("docs/commands.md is not current: go test ./internal/workloads/load/command/tool -run TestPage -update")
	}
	if err := os.WriteFile(page, []byte(now), 0o644); err != nil {
		t.Fatal(err)
	}
}
