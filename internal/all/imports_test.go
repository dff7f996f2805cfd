package all

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// general are the packages that know guests only through package kind.
var general = []string{"engine", "analysis", "report", "record", "metric", "kind", "measured"}

// guests matches what only a guest's own folder, and this one, may import.
var guests = regexp.MustCompile(`^tare/internal/(app|load|subject)/`)

// TestNobodyImportsGuests: what is general imports no guest, not by way of another package either.
func TestNobodyImportsGuests(t *testing.T) {
	for _, pkg := range general {
		out, err := exec.Command("go", "list", "-deps", "tare/internal/"+pkg).Output()
		if err != nil {
			t.Fatalf("go list -deps tare/internal/%s: %v", pkg, err)
		}
		for dep := range strings.FieldsSeq(string(out)) {
			if guests.MatchString(dep) {
				t.Errorf("%s imports %s", pkg, dep)
			}
		}
	}
}

// names are those of guests that are no words of English. Ordinary ones (http, store, command) cannot be told from it.
var names = regexp.MustCompile(`kernelmesh|exectrace|storebench|bpftrace|tetragon|inspektor|falco|haproxy|nginx|envoy|istiod`)

// TestNobodyNamesGuests: what is general names no guest either, in code or in comments.
func TestNobodyNamesGuests(t *testing.T) {
	seen := 0
	for _, pkg := range general {
		err := filepath.WalkDir(filepath.Join("..", pkg), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			if strings.Contains(path, "test/") { // a package of helpers for tests
				return nil
			}
			seen++
			text, err := os.ReadFile(path)
			if found := names.Find(text); found != nil {
				t.Errorf("%s names %s", path, found)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if seen < 50 {
		t.Errorf("only %d files were looked at", seen)
	}
}
