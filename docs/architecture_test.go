package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// paths matches what a page says is in the tree.
	paths = regexp.MustCompile(`\b(?:cmd|docs|experiments|internal|test|web)/[A-Za-z0-9_./-]*[A-Za-z0-9_]`)
	// functions matches a function, or a method with its type, and the file that the page gives for it.
	functions = regexp.MustCompile("`((?:[A-Za-z]+\\.)?[A-Za-z]+)\\(\\)`(\\s+in\\s+`([^`]+)`)?")
)

// TestPathsExist: what pages for developers say is in the tree is there.
func TestPathsExist(t *testing.T) {
	for _, page := range []string{"architecture.md", "extending.md", "development.md", "../CONTRIBUTING.md"} {
		found := paths.FindAllString(read(t, page), -1)
		for _, path := range found {
			if isOfExample(path) || path == "web/dist" {
				continue
			}
			if _, err := os.Stat(filepath.Join("..", path)); err != nil {
				t.Errorf("%s: %v", page, err)
			}
		}
		if len(found) == 0 {
			t.Errorf("%s names no path: this looks for them in the wrong way", page)
		}
	}
}

// isOfExample reports whether a path belongs to the folders and files that the examples in extending.md add.
func isOfExample(path string) bool {
	return slices.ContainsFunc([]string{
		"internal/workloads/load/checksum", "internal/workloads/app/checksums", "internal/workloads/subject/ballast",
		"internal/results/report/graphite.go", "internal/scale/host/sandbox/runtime_nice.go",
	}, func(example string) bool { return strings.HasPrefix(path, example) })
}

// TestFunctionsExist: every function that the page names is declared in the file that it names with it.
func TestFunctionsExist(t *testing.T) {
	declared := map[string]map[string]bool{}
	found := functions.FindAllStringSubmatch(read(t, "architecture.md"), -1)
	for _, m := range found {
		name, file := m[1], m[3]
		if file == "" {
			t.Errorf("%s() stands without its file: write `%s()` in `path`", name, name)
			continue
		}
		if declared[file] == nil {
			declared[file] = declarations(t, filepath.Join("..", file))
		}
		if !declared[file][name] {
			t.Errorf("%s does not declare %s", file, name)
		}
	}
	if len(found) < 20 {
		t.Errorf("only %d functions were looked at", len(found))
	}
}

// declarations are the functions of a file, and its methods by type and name.
func declarations(t *testing.T, path string) map[string]bool {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Error(err)
		return map[string]bool{}
	}
	names := map[string]bool{}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok {
			continue
		}
		name := f.Name.Name
		if f.Recv != nil {
			of := f.Recv.List[0].Type
			if pointer, ok := of.(*ast.StarExpr); ok {
				of = pointer.X
			}
			if id, ok := of.(*ast.Ident); ok {
				name = id.Name + "." + name
			}
		}
		names[name] = true
	}
	return names
}

// TestArrows: every arrow in the picture of packages is an import.
func TestArrows(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", "{{.ImportPath}} {{join .Imports \" \"}}", "../...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	picture, _, _ := strings.Cut(read(t, "architecture.md"), "## Data flow")
	boxes := map[string][]string{} // import paths by name
	for _, m := range regexp.MustCompile(`(\w+)\["([^"]+)"\]`).FindAllStringSubmatch(picture, -1) {
		for _, path := range paths.FindAllString(m[2], -1) {
			boxes[m[1]] = append(boxes[m[1]], "tare/"+path)
		}
	}
	imports := func(from, to []string) bool {
		for line := range strings.Lines(string(out)) {
			f := strings.Fields(line)
			if slices.ContainsFunc(f[1:], within(to)) && within(from)(f[0]) {
				return true
			}
		}
		return false
	}
	arrow := regexp.MustCompile(`(\w+)(?:\["[^"]+"\])? --> (\w+)`)
	found := arrow.FindAllStringSubmatch(picture, -1)
	for _, m := range found {
		if !imports(boxes[m[1]], boxes[m[2]]) {
			t.Errorf("%v imports nothing of %v", boxes[m[1]], boxes[m[2]])
		}
	}
	if len(found) < 15 {
		t.Errorf("only %d arrows were looked at", len(found))
	}
}

// within returns a function that reports whether a package is one of the given ones, or below one.
func within(all []string) func(string) bool {
	return func(pkg string) bool {
		return slices.ContainsFunc(all, func(p string) bool { return pkg == p || strings.HasPrefix(pkg, p+"/") })
	}
}

// TestLinks: every file that a page links to is there, with the heading that the link goes to.
func TestLinks(t *testing.T) {
	link := regexp.MustCompile(`\]\(([A-Za-z0-9_/.-]*)(#[a-z0-9-]+)?\)`)
	for _, page := range append(pages(t), "../README.md", "../CHANGELOG.md", "../CONTRIBUTING.md", "../SECURITY.md") {
		for _, m := range link.FindAllStringSubmatch(read(t, page), -1) {
			target := page
			if m[1] != "" {
				target = filepath.Join(filepath.Dir(page), m[1])
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s: %v", page, err)
			} else if m[2] != "" && !headings(read(t, target))[m[2]] {
				t.Errorf("%s: %s has no heading %s", page, target, m[2])
			}
		}
	}
}

// TestIndex: README.md lists every other page, each once.
func TestIndex(t *testing.T) {
	index := read(t, "README.md")
	for _, page := range pages(t) {
		if page == "README.md" {
			continue
		}
		if n := strings.Count(index, "\n- ["+strings.TrimSuffix(filepath.Base(page), ".md")+"]("+page+"): "); n != 1 {
			t.Errorf("%s is %d times in the index", page, n)
		}
	}
}

// pages are all pages here and below, by their paths from here.
func pages(t *testing.T) (found []string) {
	t.Helper()
	for _, pattern := range []string{"*.md", "*/*.md"} {
		some, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, some...)
	}
	if len(found) < 30 {
		t.Fatalf("only %d pages", len(found))
	}
	return found
}

// headings are the anchors of a page, as GitHub makes them.
func headings(text string) map[string]bool {
	all := map[string]bool{}
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); ok && strings.HasPrefix(line, "#") {
			keep := regexp.MustCompile(`[^a-z0-9 -]`).ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), "")
			all["#"+strings.ReplaceAll(keep, " ", "-")] = true
		}
	}
	return all
}

func read(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
