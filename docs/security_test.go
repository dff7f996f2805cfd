package docs

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	fuzzTest = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(`)
	fuzzRow  = regexp.MustCompile("(?m)^\\|.*\\| `([^`]+)`: (.*) \\|$")
	fuzzName = regexp.MustCompile("`(Fuzz\\w+)`")
)

// TestFuzzTargets: the page on security lists every fuzz test, and none that is not there.
func TestFuzzTargets(t *testing.T) {
	there := map[string]bool{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "node_modules" || d.Name() == ".cache" || d.Name() == ".git"):
			return fs.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, m := range fuzzTest.FindAllStringSubmatch(string(text), -1) {
			there[filepath.ToSlash(filepath.Dir(strings.TrimPrefix(path, "../")))+" "+m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, row := range fuzzRow.FindAllStringSubmatch(read(t, "security.md"), -1) {
		for _, m := range fuzzName.FindAllStringSubmatch(row[2], -1) {
			listed[row[1]+" "+m[1]] = true
		}
	}
	if len(there) == 0 || len(listed) == 0 {
		t.Fatalf("found %d fuzz tests and %d in the page: this looks for them in the wrong way", len(there), len(listed))
	}
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if !listed[name] {
			t.Errorf("docs/security.md does not list %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if !there[name] {
			t.Errorf("docs/security.md lists %s, which is not there", name)
		}
	}
}
