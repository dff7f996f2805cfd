package proxyconfig

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// wrong is an error with its place in the configuration.
type wrong struct {
	path  []any  // keys and indexes, from the top
	label string // the path in words
	err   error
}

func (w *wrong) Error() string { return w.label + ": " + w.err.Error() }
func (w *wrong) Unwrap() error { return w.err }

// in adds to an error the key that the error is about.
func in(key string, err error) error { return within(err, key, key) }

// item adds to an error the list element that the error is about: list[i].
func item(list string, i int, err error) error {
	return within(err, list+"["+strconv.Itoa(i)+"]", list, i)
}

// within prepends a path to the place of an error, with a label for it.
func within(err error, label string, path ...any) error {
	if err == nil {
		return nil
	}
	if w, ok := err.(*wrong); ok { //nolint:errorlint // an error that wraps one keeps its text
		return &wrong{append(path, w.path...), label + ": " + w.label, w.err}
	}
	return &wrong{path, label, err}
}

// wrongAt adds a place to an error whose message already names it.
func wrongAt(err error, path ...any) error {
	return &placed{path, err}
}

// placed is an error with a place, which Error does not add to the message.
type placed struct {
	path []any
	err  error
}

func (p *placed) Error() string { return p.err.Error() }
func (p *placed) Unwrap() error { return p.err }

// pathOf returns the place in the configuration that an error is about.
func pathOf(err error) (path []any) {
	var w *wrong
	var p *placed
	if errors.As(err, &w) {
		path = slices.Clone(w.path)
	}
	if errors.As(err, &p) {
		path = append(path, p.path...)
	}
	return path
}

// lineOf returns the line of a place in YAML; 0: unknown.
func lineOf(data []byte, path []any) int {
	file, err := parser.ParseBytes(data, 0)
	if err != nil || len(path) == 0 || len(file.Docs) == 0 {
		return 0
	}
	line := 0
	node := ast.Node(file.Docs[0].Body)
	for _, step := range path {
		var at *token.Token
		if node, at = child(node, step); node == nil {
			break
		}
		if at != nil && at.Position != nil {
			line = at.Position.Line
		}
	}
	return line
}

// child returns the value at a key or an index of a node, and the token with which that entry begins (for a key, the
// key itself); nil: there is none.
func child(n ast.Node, step any) (value ast.Node, at *token.Token) {
	switch v := n.(type) {
	case *ast.AnchorNode:
		return child(v.Value, step)
	case *ast.TagNode:
		return child(v.Value, step)
	case *ast.MappingNode:
		for _, pair := range v.Values {
			if value, at = child(pair, step); value != nil {
				return value, at
			}
		}
	case *ast.MappingValueNode:
		if v.Key == nil || v.Value == nil {
			return nil, nil
		}
		if at := v.Key.GetToken(); at != nil && at.Value == fmt.Sprint(step) {
			return v.Value, at
		}
	case *ast.SequenceNode:
		if i, ok := step.(int); ok && i < len(v.Values) && v.Values[i] != nil {
			return v.Values[i], v.Values[i].GetToken()
		}
	}
	return nil, nil
}
