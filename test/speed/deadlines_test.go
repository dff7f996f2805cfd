package speed

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tare/test/binary"
)

// shortest is the shortest deadline that a test may have without scaling it: emulated machines stand still for seconds.
const shortest = 10 * time.Second

// marks matches the comments, on the line of a deadline or on the line before, that allow it to be shorter. With a
// deadline under test nothing competes, so a slow machine only makes it fire later. A time that is not a deadline is
// the length of some work, or the time until the next try of a loop.
var marks = regexp.MustCompile(`deadline under test|not a deadline`)

var (
	// calls matches functions that take a deadline: the time is their last argument.
	calls = regexp.MustCompile(`^(WithTimeout|WithTimeoutCause|WithDeadline|DialTimeout|Set(Read|Write)?Deadline|ReadyWithin)$`)
	// fields matches the names of option fields that limit a time.
	fields = regexp.MustCompile(`(?i)(timeout|patience|silence|waitdelay)$`)
	// variables matches the names of variables in loops that wait until a time.
	variables = regexp.MustCompile(`(?i)(deadline|end|until|patience)$`)
	fails     = regexp.MustCompile(`^(Fatal|Error|Skip)f?$`)
)

// TestDeadlines finds deadlines of tests that are shorter than 10 seconds and neither scaled nor marked. It looks only
// at literal times, and accepts all others.
func TestDeadlines(t *testing.T) {
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	err = filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if d.IsDir() && (strings.HasPrefix(d.Name(), ".") || d.Name() == "node_modules") {
			return fs.SkipDir
		}
		if strings.HasSuffix(rel, "_test.go") || strings.HasPrefix(rel, "test/") && strings.HasSuffix(rel, ".go") {
			files++
			for _, at := range deadlines(t, path, nil) {
				t.Errorf("%s:%d: %v is too short for a machine that stands still for seconds: make it 10 s or more, "+
					"use speed.Scale, or mark it with \"deadline under test\" or \"not a deadline\"", rel, at.line, at.time)
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if files < 100 {
		t.Errorf("found only %d files of tests", files)
	}
}

type deadline struct {
	line int
	time time.Duration
}

// deadlines returns the short deadlines in a file, or in the given source if that is not nil.
func deadlines(t *testing.T, path string, source any) (found []deadline) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	marked := map[int]bool{}
	for _, group := range file.Comments {
		for _, c := range group.List {
			if marks.MatchString(c.Text) {
				line := set.Position(c.Pos()).Line
				marked[line], marked[line+1] = true, true
			}
		}
	}
	check := func(x ast.Expr) {
		d, known := literal(x)
		// What is less than a millisecond, such as a number without a unit, does not count.
		if line := set.Position(x.Pos()).Line; known && d >= time.Millisecond && d < shortest && !marked[line] {
			found = append(found, deadline{line, d})
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if calls.MatchString(name(n.Fun)) && len(n.Args) > 0 {
				check(n.Args[len(n.Args)-1])
			}
		case *ast.KeyValueExpr:
			if fields.MatchString(name(n.Key)) {
				check(n.Value)
			}
		case *ast.AssignStmt:
			for i, to := range n.Lhs {
				if len(n.Lhs) == len(n.Rhs) && fields.MatchString(name(to)) {
					check(n.Rhs[i])
				}
			}
		case *ast.ForStmt: // for end := time.Now().Add(...)
			if init, ok := n.Init.(*ast.AssignStmt); ok && variables.MatchString(name(init.Lhs[0])) {
				check(init.Rhs[0])
			}
		case *ast.CommClause: // case <-time.After(...): with a failure in it
			if wait, ok := n.Comm.(*ast.ExprStmt); ok && failing(n.Body) {
				if receive, ok := wait.X.(*ast.UnaryExpr); ok {
					check(receive.X)
				}
			}
		}
		return true
	})
	return found
}

// failing reports whether statements fail or skip a test.
func failing(body []ast.Stmt) (does bool) {
	for _, s := range body {
		ast.Inspect(s, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			does = does || ok && fails.MatchString(name(call.Fun))
			return true
		})
	}
	return does
}

// name returns the last part of x.y.z, or the value of a string literal.
func name(x ast.Expr) string {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name
	case *ast.SelectorExpr:
		return x.Sel.Name
	case *ast.BasicLit:
		s, _ := strconv.Unquote(x.Value) // empty for a number
		return s
	}
	return ""
}

var units = map[string]time.Duration{
	"Nanosecond": 1, "Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second,
	"Minute": time.Minute, "Hour": time.Hour,
}

// literal returns the time that an expression of literals gives: a product, or time.Now().Add or time.After of one, or
// a text such as "2s".
func literal(x ast.Expr) (time.Duration, bool) {
	switch x := x.(type) {
	case *ast.ParenExpr:
		return literal(x.X)
	case *ast.SelectorExpr:
		d, ok := units[x.Sel.Name]
		return d, ok && name(x.X) == "time"
	case *ast.BasicLit:
		if x.Kind == token.STRING {
			d, err := time.ParseDuration(name(x))
			return d, err == nil
		}
		n, err := strconv.Atoi(x.Value)
		return time.Duration(n), err == nil
	case *ast.BinaryExpr:
		a, ok := literal(x.X)
		b, ok2 := literal(x.Y)
		switch {
		case ok && ok2 && x.Op == token.MUL:
			return a * b, true
		case ok && ok2 && x.Op == token.QUO && b != 0:
			return a / b, true
		}
	case *ast.CallExpr:
		if f := name(x.Fun); (f == "Add" || f == "After") && len(x.Args) == 1 {
			return literal(x.Args[0])
		}
	}
	return 0, false
}

func TestDeadlinesFound(t *testing.T) {
	const source = `package x
func f() {
	context.WithTimeout(ctx, 5*time.Second)
	context.WithTimeout(ctx, time.Minute)
	context.WithTimeout(ctx, speed.Scale(time.Second))
	context.WithTimeout(ctx, time.Second) // deadline under test
	// It is not a deadline.
	context.WithTimeout(ctx, time.Second)
	c.SetReadDeadline(time.Now().Add(time.Second/2))
	o := Options{Timeout: 3*time.Second, Interval: time.Second}
	o.Patience = time.Second
	v := param.Values{"ready-timeout": "1s", "ready-after": "1s"}
	for end := time.Now().Add(9*time.Second); ; {
	}
	select {
	case <-time.After(time.Second):
		t.Fatal("late")
	case <-time.After(time.Second):
		retry()
	}
}`
	var lines []int
	for _, d := range deadlines(t, "x.go", source) {
		lines = append(lines, d.line)
	}
	if want := []int{3, 9, 10, 11, 12, 13, 16}; !slices.Equal(lines, want) {
		t.Errorf("lines %v, want %v", lines, want)
	}
}
