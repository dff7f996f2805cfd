package text

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/mattn/go-runewidth"
)

// Clean replaces all characters of s that are not graphic by spaces. Untrusted text can then neither control a terminal
// nor pass for another line or column.
func Clean(s string) string {
	return strings.Map(func(r rune) rune {
		if !unicode.IsGraphic(r) || r == utf8.RuneError || unicode.In(r, unicode.Zl, unicode.Zp) {
			return ' '
		}
		return r
	}, s)
}

// Wrap wraps prose to lines of a width. The first line begins with lead, and the others are indented by its width.
func Wrap(width int, lead, prose string) string {
	var b strings.Builder
	line, empty := lead, true
	end := func() { b.WriteString(strings.TrimRight(line, " ") + "\n") }
	for _, word := range words(Clean(prose)) {
		if !empty && runewidth.StringWidth(line)+1+runewidth.StringWidth(word) > width {
			end()
			line, empty = strings.Repeat(" ", runewidth.StringWidth(lead)), true
		}
		if !empty {
			line += " "
		}
		line, empty = line+word, false
	}
	end()
	return b.String()
}

// words splits prose where lines may be broken. A number and its per cent sign stay together.
func words(prose string) (all []string) {
	for _, word := range strings.Fields(prose) {
		if n := len(all); n > 0 && strings.HasPrefix(word, "%") {
			all[n-1] += " " + word
			continue
		}
		all = append(all, word)
	}
	return all
}

// Widths returns the widths of the columns of rows of text.
func Widths(rows [][]string) (widths []int) {
	for _, r := range rows {
		for i, c := range r {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], runewidth.StringWidth(Clean(c)))
		}
	}
	return widths
}

// Aligned formats a row of text. Columns are aligned to the left or, if right is set, all but the first to the right.
func Aligned(cells []string, widths []int, right bool) string {
	padded := make([]string, len(cells))
	for i, c := range cells {
		c = Clean(c)
		pad := strings.Repeat(" ", widths[i]-runewidth.StringWidth(c))
		if padded[i] = c + pad; right && i > 0 {
			padded[i] = pad + c
		}
	}
	return strings.TrimRight(strings.Join(padded, "  "), " ")
}

// MarkdownTable formats rows of text, the first of which is the header. left is the number of columns, from the first
// one, that are aligned to the left; the others are aligned to the right.
func MarkdownTable(rows [][]string, left int) string {
	var b strings.Builder
	for i, row := range rows {
		for _, c := range row {
			b.WriteString("| " + Markdown(c) + " ")
		}
		b.WriteString("|\n")
		if i == 0 {
			b.WriteString("|" + strings.Repeat("---|", left) + strings.Repeat("---:|", len(row)-left) + "\n")
		}
	}
	return b.String()
}

var markdown = strings.NewReplacer(`\`, `\\`, "|", `\|`, "*", `\*`, "_", `\_`, "`", "\\`", "<", "&lt;", "[", `\[`, "]",
	`\]`, "#", `\#`)

// Markdown escapes untrusted text so that it is not read as Markdown or HTML.
func Markdown(s string) string { return markdown.Replace(Clean(s)) }

// Cell returns text for a CSV cell. It puts an apostrophe before text that a spreadsheet would take for a formula.
func Cell(text string) string {
	text = Clean(text)
	if text == "" || !strings.ContainsRune("=+-@", rune(text[0])) {
		return text
	}
	if _, err := strconv.ParseFloat(text, 64); err == nil {
		return text // a number, such as a level below 0
	}
	return "'" + text
}
