// Package document reads YAML files that users write. It reads them key by key, so that every error names its place in
// the file and, for a misspelt name, the name that was probably meant. All errors are faults with code Usage. Their
// place is file:line:column, or as much of this as is known.
package document

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
)

// Node is a key or a value of a document.
type Node = ast.Node

// File is the name of a document in messages.
type File string

// Limit bounds what Parse reads.
type Limit struct {
	What string // the kind of document that has the limit, such as "a spec"
	Hint string // for the user whose document exceeds it

	// Bytes limits documents that users write. It also limits the cost of hostile nesting, for which the YAML parser
	// takes time that grows with the square of the depth.
	Bytes int

	// JSON is the limit in bytes for files that Tare wrote, which may be larger. They are JSON that nests no deeper than
	// Depth.
	JSON, Depth int
}

// Parse returns the documents in data. There is none if data is empty.
func (f File) Parse(data []byte, l Limit) ([]Node, error) {
	data = Plain(data)
	if len(data) > l.Bytes && (len(data) > l.JSON || !shallow(data, l.Depth)) {
		return nil, fault.New(fault.Usage, string(f), l.Hint,
			"%s has at most %d KiB; this has %d", l.What, l.Bytes>>10, len(data)>>10)
	}
	if line, err := Guard(data); err != nil {
		where := string(f)
		if line > 0 {
			where = fmt.Sprintf("%s:%d", f, line)
		}
		return nil, fault.New(fault.Usage, where, l.Hint, "%s", err)
	}
	tree, err := parser.ParseBytes(data, 0)
	if err != nil {
		var y yaml.Error
		if errors.As(err, &y) && y.GetToken() != nil {
			p := y.GetToken().Position
			where := fmt.Sprintf("%s:%d:%d", f, p.Line, p.Column)
			return nil, fault.New(fault.Usage, where, "", "this is not YAML: %s", y.GetMessage())
		}
		return nil, fault.New(fault.Usage, string(f), "", "this is not YAML: %s", err)
	}
	var bodies []Node
	for _, d := range tree.Docs {
		directive, is := d.Body.(*ast.DirectiveNode) // the parser treats a directive as a document
		switch {
		case d.Body == nil, is && directive.Name.String() == "YAML":
		case is:
			return nil, f.Fail(directive, "take it out, and write what it stands for",
				"the directive %%%s is not supported", directive.Name)
		default:
			bodies = append(bodies, d.Body)
		}
	}
	return bodies, nil
}

// shallow reports whether data is JSON that nests no deeper than depth.
func shallow(data []byte, depth int) bool {
	if data = bytes.TrimSpace(data); len(data) == 0 || data[0] != '{' {
		return false
	}
	for d := json.NewDecoder(bytes.NewReader(data)); depth >= 0; {
		token, err := d.Token()
		if err != nil {
			return errors.Is(err, io.EOF)
		}
		switch token {
		case json.Delim('{'), json.Delim('['):
			depth--
		case json.Delim('}'), json.Delim(']'):
			depth++
		}
	}
	return false
}

// Place returns the place of a node: file:line:column.
func (f File) Place(n Node) string {
	// A mapping's token is its first colon or brace, but readers see its first key.
	for {
		m, ok := n.(*ast.MappingNode)
		if !ok || m.IsFlowStyle || len(m.Values) == 0 {
			break
		}
		n = m.Values[0].Key
	}
	if t := n.GetToken(); t != nil && t.Position != nil {
		return fmt.Sprintf("%s:%d:%d", f, t.Position.Line, t.Position.Column)
	}
	return string(f)
}

// Fail returns an error about a node.
func (f File) Fail(n Node, hint, format string, args ...any) error {
	return fault.New(fault.Usage, f.Place(n), hint, format, args...)
}

// IsMapping reports whether a node is a mapping.
func IsMapping(n Node) bool {
	_, is := n.(*ast.MappingNode)
	return is
}

// Each calls visit with each entry of a mapping, and returns the first error. It fails if the node is not a mapping,
// and at a key that is not a string. what names the mapping in these errors, as in "a rule".
func (f File) Each(n Node, what string, visit func(key string, at, value Node) error) error {
	m, ok := n.(*ast.MappingNode)
	if !ok {
		return f.Fail(n, "", "%s must be keys with values, not %s", what, Describe(n))
	}
	for _, v := range m.Values {
		s, ok := v.Key.(*ast.StringNode)
		if !ok {
			return f.Fail(v.Key, "", "a key must be a plain word, not %s", Describe(v.Key))
		}
		if err := visit(s.Value, v.Key, v.Value); err != nil {
			return err
		}
	}
	return nil
}

// List returns the texts of a list, each with its node. It reports whether the node is a list.
func (f File) List(n Node, key string) (items []Item, ok bool, err error) {
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		return nil, false, nil
	}
	for _, v := range list.Values {
		text, err := f.Scalar(v, key)
		if err != nil {
			return nil, true, err
		}
		items = append(items, Item{text, v})
	}
	return items, true, nil
}

// Item is one text of a list.
type Item struct {
	Text string
	At   Node
}

// Texts returns the texts of items.
func Texts(items []Item) []string {
	return lists.Map(items, func(item Item) string { return item.Text })
}

// Unknown returns the error for an unknown key of the mapping with the given name (what).
func (f File) Unknown(at Node, key, what string, known []string) error {
	return f.Fail(at, "the keys of "+what+" are "+strings.Join(known, ", "), "there is no key %q in %s%s",
		text.Clip(key), what, text.DidYouMean(key, known))
}

// Scalar returns the text of a single value.
func (f File) Scalar(n Node, key string) (string, error) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.LiteralNode:
		return strings.TrimSpace(n.Value.Value), nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, nil
	}
	return "", f.Fail(n, "", "%q must be a single value, not %s", key, Describe(n))
}

// Text returns the text of a value that must not be empty.
func (f File) Text(n Node, key string) (string, error) {
	s, err := f.Scalar(n, key)
	if err == nil && strings.TrimSpace(s) == "" {
		err = f.Fail(n, "", "%q must not be empty", key)
	}
	return s, err
}

// Setting parses the value of a setting and stores it in o, in canonical form.
func (f File) Setting(n Node, s param.Setting, o param.Values) error {
	text, err := f.Scalar(n, s.Name)
	if err != nil {
		return err
	}
	if o[s.Name], err = s.Canonical(text); err != nil {
		return f.Fail(n, s.Hint(), "%q %s", s.Name, err)
	}
	return nil
}

// Settings parses a mapping that holds only settings, and stores their values in o. what names the mapping in errors.
func (f File) Settings(n Node, what string, settings []param.Setting, o param.Values) error {
	return f.Each(n, what, func(key string, at, value Node) error {
		s, known := param.Find(settings, key)
		if !known {
			return f.Unknown(at, key, what, param.Names(settings))
		}
		return f.Setting(value, s, o)
	})
}

// Describe returns a description of the kind of a node.
func Describe(n Node) string {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return "keys with values"
	case *ast.SequenceNode:
		return "a list"
	case *ast.NullNode:
		return "nothing"
	case *ast.AnchorNode, *ast.AliasNode, *ast.MergeKeyNode:
		return "an anchor or an alias"
	case *ast.TagNode:
		return "a tag"
	}
	return "a single value"
}
