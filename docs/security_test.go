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
	fuzzTest = regexp.MustCompile(`(?m)^func Fuzz\w+\(`)
	// fuzzTable is the table of docs/security.md that lists the packages with fuzz tests.
	fuzzTable   = regexp.MustCompile(`(?s)\| what \| who wrote it \| packages \|\n(.*?)\n\n`)
	fuzzPackage = regexp.MustCompile("`((?:internal|test|docs)/[^`]+)`")
)

// TestFuzzTargets: the page on security lists every package that has fuzz tests, and no other.
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
		if fuzzTest.Match(text) {
			there[filepath.ToSlash(filepath.Dir(strings.TrimPrefix(path, "../")))] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]bool{}
	for _, m := range fuzzPackage.FindAllStringSubmatch(fuzzTable.FindString(read(t, "security.md")), -1) {
		listed[m[1]] = true
	}
	if len(there) < 20 || len(listed) < 20 {
		t.Fatalf("found %d packages with fuzz tests and %d on the page: this looks for them in the wrong way",
			len(there), len(listed))
	}
	for _, name := range slices.Sorted(maps.Keys(there)) {
		if !listed[name] {
			t.Errorf("docs/security.md does not list %s", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		if !there[name] {
			t.Errorf("docs/security.md lists %s, which has no fuzz test", name)
		}
	}
}
