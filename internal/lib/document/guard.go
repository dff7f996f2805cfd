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

// What Guard lets YAML be. Both are far more than a person writes.
const (
	MaxDepth = 100 // levels of nesting. The YAML parser takes time by the square of the depth
	// MaxAliased is how many values, and pieces of 64 bytes of long ones, a document may have once each alias is
	// replaced by what it stands for, where that is more than MaxRepeat times what is written. A decoder takes some 100
	// bytes and 1 µs for each.
	MaxAliased = 1 << 16
	MaxRepeat  = 4
)

// Plain is YAML without what some editors and generators begin it with: the byte order mark of UTF-8, and the directive
// %YAML, which may stand before the first document, below comments (section 6.8.1 of YAML 1.2.2). Lines keep their
// numbers.
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

// Guard says what of data could cost a YAML parser or decoder far more than its length, and in which line, 0 where that
// is not known: deep nesting, and aliases of aliases. It refuses UTF-16, which would be one text. Everything that reads
// YAML calls it first. It takes time by the length of data alone, and says nothing of other mistakes.
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
	alias := 0 // line of the first
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
		return 0, nil //nolint:nilerr // whoever decodes it finds the same, and says it better
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
	anchors map[string]int // values that each stands for
	written int            // without what aliases stand for
}

// most bounds a count, so that sums do not overflow.
const most = 1 << 40

// weigh is how many values there are in a node once aliases are replaced. An alias within its own anchor stands for
// nothing, as it does for the decoder.
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
// and comments, which come in pairs in an honest file.
func tooDeep(data []byte) int {
	brackets := 0
	var columns []int // of the lines that the present one is indented below
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

// before is how many dashes, question marks, anchors and tags stand before a value, up to more than MaxDepth.
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
