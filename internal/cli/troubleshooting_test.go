package cli

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// quoted matches the text that a page shows as code.
var quoted = regexp.MustCompile("`([^`]+)`")

// verb matches a verb of fmt, which a value replaces.
var verb = regexp.MustCompile(`%[-+ #0-9.]*[a-zA-Z]`)

// TestTroubleshooting compares docs/troubleshooting.md with the source: every message that the page quotes exists, and
// the page has every code of a warning. A change of a message needs a change of the page.
func TestTroubleshooting(t *testing.T) {
	page := readPage(t, "troubleshooting.md")
	said := sourceTexts(t)
	for _, heading := range []string{"## A run that is invalid", "## Reading a result", "## Errors by what they say"} {
		rows := 0
		for line := range strings.Lines(sectionOf(t, page, heading)) {
			cell := firstCell(line)
			for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
				rows++
				for part := range strings.SplitSeq(m[1], "…") {
					if part = strings.Trim(part, " ,;:()"); len(part) > 1 && !strings.Contains(said, part) {
						t.Errorf("%s: no source says %q", heading, part)
					}
				}
			}
		}
		if rows == 0 {
			t.Errorf("%s quotes nothing", heading)
		}
	}
	onPage := map[string]bool{}
	warnings := sectionOf(t, page, "## Warnings of a ledger")
	for line := range strings.Lines(warnings) {
		for _, m := range quoted.FindAllStringSubmatch(firstCell(line), -1) {
			onPage[m[1]] = true
		}
	}
	codes := warningCodes(t)
	if len(codes) < 20 {
		t.Fatalf("only %d codes of warnings were found in the source: %v", len(codes), codes)
	}
	for code := range codes {
		if !onPage[code] {
			t.Errorf("the warning %s is not on the page", code)
		}
	}
	for code := range onPage {
		if !codes[code] {
			t.Errorf("no source has the warning %s", code)
		}
	}
}

func readPage(t *testing.T, name string) string {
	t.Helper()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// sectionOf returns the text below a heading of the second level.
func sectionOf(t *testing.T, page, heading string) string {
	t.Helper()
	_, section, ok := strings.Cut(page, "\n"+heading+"\n")
	if !ok {
		t.Fatalf("the page has no heading %q", heading)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	return section
}

// firstCell returns the first cell of a line that is a row of a table; empty for other lines.
func firstCell(line string) string {
	cells := strings.Split(line, "|")
	if len(cells) < 3 || cells[0] != "" {
		return ""
	}
	return cells[1]
}

// eachSource calls f with every Go file below internal that is not a test.
func eachSource(t *testing.T, f func(*ast.File)) {
	t.Helper()
	files := token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		parsed, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err == nil {
			f(parsed)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// sourceTexts returns all string literals in the source and the template of the HTML report. A newline follows each
// literal. Literals that are concatenated count as one.
func sourceTexts(t *testing.T) string {
	var b strings.Builder
	eachSource(t, func(file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			e, ok := n.(ast.Expr)
			if !ok {
				return true
			}
			text, ok := textOf(e)
			if !ok {
				return true
			}
			b.WriteString(filledIn(text) + "\n")
			return false
		})
	})
	page, err := os.ReadFile(filepath.Join("..", "results", "report", "html.tmpl"))
	if err != nil {
		t.Fatal(err)
	}
	return b.String() + string(page)
}

// filledIn returns a format with an ellipsis in place of each verb.
func filledIn(format string) string {
	const percent = "\x00"
	return strings.ReplaceAll(verb.ReplaceAllString(strings.ReplaceAll(format, "%%", percent), "…"), percent, "%")
}

// textOf returns the value of a string literal, or of literals that are concatenated.
func textOf(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return "", false
		}
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		x, ok1 := textOf(e.X)
		y, ok2 := textOf(e.Y)
		return x + y, ok1 && ok2 && e.Op == token.ADD
	}
	return "", false
}

// warningCodes returns the codes of all warnings that a ledger can have: the first text that is passed to a method
// called warn or Warn, or the field Code of a Warning; as literals or constants.
func warningCodes(t *testing.T) map[string]bool {
	constants := map[string]string{}
	eachSource(t, func(file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			if v, ok := n.(*ast.ValueSpec); ok && len(v.Names) == 1 && len(v.Values) == 1 {
				if text, ok := textOf(v.Values[0]); ok {
					constants[v.Names[0].Name] = text
				}
			}
			return true
		})
	})
	codes := map[string]bool{}
	add := func(e ast.Expr) bool {
		text, ok := textOf(e)
		switch e := e.(type) {
		case *ast.Ident:
			text, ok = constants[e.Name]
		case *ast.SelectorExpr:
			text, ok = constants[e.Sel.Name]
		}
		if ok {
			codes[text] = true
		}
		return ok
	}
	eachSource(t, func(file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				if s, ok := n.Fun.(*ast.SelectorExpr); !ok || !strings.EqualFold(s.Sel.Name, "warn") {
					return true
				}
				for _, arg := range n.Args { // the first that is a text
					if add(arg) {
						break
					}
				}
			case *ast.CompositeLit:
				for _, field := range n.Elts {
					kv, ok := field.(*ast.KeyValueExpr)
					if ok && isWarning(n.Type) && isName(kv.Key, "Code") {
						add(kv.Value)
					}
				}
			}
			return true
		})
	})
	return codes
}

func isName(e ast.Expr, name string) bool {
	x, ok := e.(*ast.Ident)
	return ok && x.Name == name
}

func isWarning(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name == "Warning"
	case *ast.SelectorExpr:
		return e.Sel.Name == "Warning"
	}
	return false
}
