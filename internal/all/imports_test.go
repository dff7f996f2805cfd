package all

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// floors are the rooms of internal, from the top down. A room imports only rooms below it; rooms on one floor import
// each other only as beside says.
var floors = [][]string{
	{"cli"},
	{"all"},
	{"mesh", "sandboxes", "tracing"},
	{"workloads"},
	{"results"},
	{"experiment"},
	{"scale"},
	{"lib"},
}

// general are the rooms that know guests only through package kind.
var general = []string{"results", "experiment", "scale", "lib"}

// TestImportsRunDownward holds the order of the rooms.
func TestImportsRunDownward(t *testing.T) {
	floor := map[string]int{}
	for i, rooms := range floors {
		for _, room := range rooms {
			floor[room] = i
		}
	}
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "tare/internal/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := 0
	for line := range strings.Lines(string(out)) {
		packages++
		f := strings.Fields(line)
		from := strings.TrimPrefix(f[0], "tare/internal/")
		room, _, _ := strings.Cut(from, "/")
		if _, ok := floor[room]; !ok {
			t.Errorf("%s is in no room that this test knows", from)
		}
		for _, path := range f[1:] {
			to, ours := strings.CutPrefix(path, "tare/internal/")
			other, _, _ := strings.Cut(to, "/")
			if !ours || other == room || floor[room] < floor[other] {
				continue
			}
			t.Errorf("%s imports %s, which is in no room below it", from, to)
		}
	}
	if packages < 100 {
		t.Errorf("go list names only %d packages", packages)
	}
}

// names are those of guests that are no words of English. Ordinary ones (http, store, command) cannot be told from it.
var names = regexp.MustCompile(`kernelmesh|exectrace|storebench|bpftrace|tetragon|inspektor|falco|haproxy|nginx|envoy|istiod`)

// named are the files of general rooms that name a guest for another reason.
var named = []string{"../experiment/process/observe.go"} // a unit, as an example

// TestNobodyNamesGuests: what is general names no guest, in code or in comments.
func TestNobodyNamesGuests(t *testing.T) {
	seen := 0
	for _, room := range general {
		err := filepath.WalkDir(filepath.Join("..", room), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			if strings.Contains(path, "test/") || slices.Contains(named, path) { // helpers for tests
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
