package all

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
)

// floors are the rooms of internal, from the top down. A room imports only rooms on floors below its own.
var floors = [][]string{
	{"cli"},
	{"all"},
	{"kube"},
	{"mesh", "sandboxes", "tracing"},
	{"workloads"},
	{"results"},
	{"experiment", "agent"},
	{"scale"},
	{"lib"},
}

// general are the rooms that know guests only through package kind.
var general = []string{"results", "experiment", "scale", "lib"}

// guests are the rooms of guests. Trials decide where the processes of guests run, so these rooms start none directly.
var guests = []string{"mesh", "sandboxes", "tracing", "workloads"}

// TestImportsRunDownward checks that imports keep to the order of the rooms.
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
		guest := slices.Contains(guests, room)
		for _, path := range f[1:] {
			if guest && (path == "os/exec" || path == "tare/internal/experiment/placement") {
				t.Errorf("%s imports %s: a guest has kind.Group, and package child", from, path)
			}
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

// TestClientOfKubernetes: client-go is large, and is in kubectl-tare alone.
func TestClientOfKubernetes(t *testing.T) {
	const client = "k8s.io/client-go/"
	out, err := exec.Command("go", "list", "-deps", "tare/cmd/tare", "tare/cmd/tare-agent").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, client) || strings.HasPrefix(line, "tare/internal/kube/") {
			t.Errorf("tare or tare-agent has %s", line)
		}
	}
	if out, err = exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "tare/...").Output(); err != nil {
		t.Fatalf("go list: %v", err)
	}
	importers := map[string][]string{ // by a prefix of import paths: the packages that may import them
		client:                           {"tare/internal/kube/agents", "tare/internal/kube/plugin"},
		"tare/internal/kube/agents":      {"tare/internal/kube/pods", "tare/internal/kube/plugin"},
		"tare/internal/kube/coordinator": {"tare/internal/kube/plugin"},
		"tare/internal/kube/pods":        {"tare/internal/kube/plugin"},
		"tare/internal/kube/plugin":      {"tare/cmd/kubectl-tare"},
	}
	found := 0
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		for _, path := range f[1:] {
			for what, by := range importers {
				if !strings.HasPrefix(path, what) {
					continue
				}
				if found++; !slices.Contains(by, f[0]) {
					t.Errorf("%s imports %s", f[0], path)
				}
			}
		}
	}
	if found < len(importers) {
		t.Errorf("only %d imports were looked at", found)
	}
}

// names matches those names of guests that are not also English words. Others, such as http, store and command, occur
// for other reasons.
var names = regexp.MustCompile(`kernelmesh|exectrace|storebench|bpftrace|tetragon|inspektor|falco|haproxy|nginx|envoy|istiod`)

// named are the files of general rooms that name a guest for another reason.
var named = []string{"../experiment/process/observe.go"} // a unit, as an example

// TestNobodyNamesGuests: general rooms name no guest, in code or in comments.
func TestNobodyNamesGuests(t *testing.T) {
	eachFile(t, general, func(path string, text []byte) {
		if found := names.Find(text); found != nil && !slices.Contains(named, path) {
			t.Errorf("%s names %s", path, found)
		}
	})
}

// TestNobodyKnowsMetricsOfGuests: no string in the code of experiment and results contains the name of a metric that a
// guest declares. What these rooms must know about such a metric is in its definition.
func TestNobodyKnowsMetricsOfGuests(t *testing.T) {
	guests := map[string]bool{}
	for _, role := range []kind.Role{kind.Application, kind.Load, kind.Subject} {
		for _, g := range kind.All(role) {
			if teller, ok := g.(measured.Teller); ok {
				for _, m := range teller.Metrics() {
					guests[m.Name] = true
				}
			}
		}
	}
	if len(guests) < 150 {
		t.Fatalf("guests declare only %d metrics", len(guests))
	}
	word := regexp.MustCompile(`[a-z0-9_]+`)
	eachFile(t, []string{"experiment", "results"}, func(path string, text []byte) {
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, text, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if field, is := n.(*ast.Field); is && field.Tag != nil {
				field.Tag = nil // a key of JSON is no metric
			}
			literal, is := n.(*ast.BasicLit)
			if !is || literal.Kind != token.STRING {
				return true
			}
			for _, name := range word.FindAllString(literal.Value, -1) {
				if guests[name] {
					t.Errorf("%s knows the metric %s of a guest", files.Position(literal.Pos()), name)
				}
			}
			return true
		})
	})
}

// eachFile calls look with each Go file of some rooms, except tests and packages that help tests.
func eachFile(t *testing.T, rooms []string, look func(path string, text []byte)) {
	t.Helper()
	seen := 0
	for _, room := range rooms {
		err := filepath.WalkDir(filepath.Join("..", room), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") ||
				strings.Contains(path, "test/") {
				return err
			}
			text, err := os.ReadFile(path)
			if err == nil {
				seen++
				look(path, text)
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
