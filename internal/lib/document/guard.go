package document

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
)

// Limits of Guard. All are far above anything that a person writes.
const (
	// MaxDepth is the maximum depth of nesting. The YAML parser takes time that grows with the square of the depth.
	MaxDepth = 100
	// MaxAliased is the maximum number of values that a document may have after aliases are expanded. A document with more
	// is allowed if they are at most MaxRepeat times the values as written. A long value counts once more for every 64
	// bytes. A decoder takes about 100 bytes and 1 µs for each value.
	MaxAliased = 1 << 16
	MaxRepeat  = 4
)

// Plain returns YAML without the beginnings that some editors and generators add: the byte order mark of UTF-8, and
// the directive %YAML, which may come before the first document and after comments (section 6.8.1 of YAML 1.2.2). Line
// numbers do not change.
func Plain(data []byte) []byte {
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	for rest := data; len(rest) > 0; {
		line, after, _ := bytes.Cut(rest, []byte("\n"))
		if bytes.HasPrefix(line, []byte("%YAML ")) || bytes.HasPrefix(line, []byte("%YAML\t")) {
			at := len(data) - len(rest)
			return append(data[:at:at], rest[len(line):]...)
		}
		if line = bytes.TrimSpace(line); len(line) > 0 && line[0] != '#' {
			break
		}
		rest = after
	}
	return data
}

// Guard returns an error if a YAML parser or decoder could take far more time or memory for data than its length
// suggests: for deep nesting, and for aliases of aliases. It also returns the line, or 0 if that is unknown. It rejects
// UTF-16, which would be parsed as a single text. Everything that reads YAML calls Guard first. Guard's time depends
// only on the length of data, and it does not report other mistakes.
func Guard(data []byte) (line int, err error) {
	if bytes.HasPrefix(data, []byte("\xff\xfe")) || bytes.HasPrefix(data, []byte("\xfe\xff")) {
		return 1, errors.New("it is written in UTF-16; write it in UTF-8")
	}
	if line := tooDeep(data); line > 0 {
		return line, fmt.Errorf("brackets or lists are nested more than %d deep", MaxDepth)
	}
	if !bytes.ContainsRune(data, '*') || !bytes.ContainsRune(data, '&') {
		return 0, nil
	}
	tokens := lexer.Tokenize(string(data))
	alias := 0 // line of the first alias
	for _, t := range tokens {
		if t.Type == token.AliasType {
			alias = t.Position.Line
			break
		}
	}
	if alias == 0 {
		return 0, nil
	}
	tree, err := parser.Parse(tokens, 0)
	if err != nil {
		return 0, nil //nolint:nilerr // the decoder fails as well, with a better message
	}
	for _, d := range tree.Docs {
		w := weigher{anchors: map[string]int{}}
		if n := w.weigh(d.Body); n > MaxAliased && n > MaxRepeat*w.written {
			return alias, fmt.Errorf("its aliases stand for more than %d values", MaxAliased)
		}
	}
	return 0, nil
}

// weigher counts the values of a document.
type weigher struct {
	anchors map[string]int // numbers of values, by anchor
	written int            // number of values without expanding aliases
}

// most bounds a count, so that sums do not overflow.
const most = 1 << 40

// weigh returns the number of values in a node after aliases are expanded. An alias within its own anchor expands to
// nothing, as in the decoder.
func (w *weigher) weigh(n ast.Node) (total int) {
	add := func(n ast.Node) { total = min(total+w.weigh(n), most) }
	switch n := n.(type) {
	case nil:
		return 0
	case *ast.AnchorNode:
		add(n.Value)
		w.anchors[n.Name.GetToken().Value] = total
		return total
	case *ast.AliasNode:
		w.written++
		return 1 + w.anchors[n.Value.GetToken().Value]
	case *ast.MappingNode:
		for _, v := range n.Values {
			add(v)
		}
	case *ast.MappingValueNode:
		add(n.Key)
		add(n.Value)
		return total
	case *ast.MappingKeyNode:
		add(n.Value)
		return total
	case *ast.SequenceNode:
		for _, v := range n.Values {
			add(v)
		}
	case *ast.TagNode:
		add(n.Value)
		return total
	}
	own := 1
	if t := n.GetToken(); t != nil {
		own += len(t.Value) / 64
	}
	if l, ok := n.(*ast.LiteralNode); ok {
		own += len(l.Value.Value) / 64
	}
	w.written += own
	return min(total+own, most)
}

// tooDeep returns the line at which data nests deeper than MaxDepth, or 0. It counts brackets, the tokens that can
// stand before a value on its line ("- ", "? ", anchors and tags), and indentation. It also counts brackets in quotes
// and comments, which normally come in pairs.
func tooDeep(data []byte) int {
	brackets := 0
	var columns []int // indentations of the lines that enclose the current one
	for line := 1; len(data) > 0; line++ {
		var text []byte
		text, data, _ = bytes.Cut(data, []byte{'\n'})
		rest := bytes.TrimLeft(text, " ")
		if column := len(text) - len(rest); brackets == 0 && len(bytes.TrimSpace(rest)) > 0 {
			for len(columns) > 0 && columns[len(columns)-1] >= column {
				columns = columns[:len(columns)-1]
			}
			columns = append(columns, column)
		}
		if brackets+len(columns)+before(rest) > MaxDepth {
			return line
		}
		for _, c := range text {
			switch c {
			case '[', '{':
				if brackets++; brackets > MaxDepth {
					return line
				}
			case ']', '}':
				brackets = max(0, brackets-1)
			}
		}
	}
	return 0
}

// before returns the number of dashes, question marks, anchors and tags before a value. It stops counting above
// MaxDepth.
func before(text []byte) (n int) {
	for ; n <= MaxDepth; n++ {
		text = bytes.TrimLeft(text, " \t\r")
		word := text
		if i := bytes.IndexAny(text, " \t\r"); i >= 0 {
			word = text[:i]
		}
		if len(word) == 0 || word[0] != '&' && word[0] != '!' && string(word) != "-" && string(word) != "?" {
			return n
		}
		text = text[len(word):]
	}
	return n
}
