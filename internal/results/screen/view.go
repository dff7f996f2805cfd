package screen

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/results/report"
)

// The smallest terminal with room for the budget, a few rows and the keys.
const (
	leastWidth  = 80
	leastHeight = 16
)

// View implements tea.Model.
func (m *Model) View() tea.View {
	v := tea.NewView(strings.Join(m.screen(), "\n"))
	v.AltScreen = true
	return v
}

// screen returns the lines of the screen. They fit into its width and height.
func (m *Model) screen() []string {
	if m.width < leastWidth || m.height < leastHeight {
		says := fmt.Sprintf("%s needs %dx%d, not %dx%d: enlarge the window, or q", m.options.Command, leastWidth,
			leastHeight, m.width, m.height)
		return []string{shown(says, m.width)}
	}
	head := m.head()
	foot := m.foot()
	body := m.height - len(head) - len(foot)
	middle := m.rows
	switch {
	case m.overlay != nil:
		middle = func(n int) []string { return m.overlay(m, n) }
	case m.picture == nil:
		middle = func(int) []string {
			return []string{"", shown("the first window ends in "+m.Every().String()+" ...", m.width)}
		}
	}
	lines := middle(body)
	lines = slices.Concat(head, lines[:min(len(lines), body)], make([]string, max(body-len(lines), 0)), foot)
	return lines
}

// room returns how many rows of a table fit on the screen.
func (m *Model) room() int {
	if m.width < leastWidth || m.height < leastHeight {
		return 1
	}
	return m.height - len(m.head()) - len(m.foot()) - 1
}

// head returns the title, the budget and the names of the tabs.
func (m *Model) head() []string {
	lines := []string{bold(shown(m.title(), m.width))}
	lines = append(lines, m.budget()...)
	return append(lines, m.tabLine())
}

func (m *Model) title() string {
	words := []string{m.options.Command}
	if m.frozen {
		words = append(words, "FROZEN: p resumes")
	}
	if m.options.From != "" {
		words = append(words, shown(m.options.From, 30))
	}
	if p := m.picture; p != nil {
		words = append(words, shown(p.Of, 20), countedCPUs(p.CPUs), p.End.Format("15:04:05"),
			quantity.Value(p.Seconds, quantity.Seconds))
		if n := len(p.Warnings); n > 0 {
			words = append(words, quantity.Counted(n, "warning")+": w")
		}
		words = append(words, p.Note)
	}
	return strings.Join(words, "  ")
}

func countedCPUs(n float64) string {
	unit := " CPUs"
	if n == 1 {
		unit = " CPU"
	}
	return strconv.FormatFloat(n, 'f', -1, 64) + unit
}

// partWidth is the number of cells for a part of the budget below the bar.
const partWidth = 26

// budget returns the bar, its legend, and how busy the machine was.
func (m *Model) budget() []string {
	now := m.picture
	if now == nil {
		return nil
	}
	lines := []string{"[" + m.bar(now.Parts, now.Capacity) + "]"}
	across := m.width / partWidth
	var b strings.Builder
	for i, p := range now.Parts {
		value := "-"
		if !p.Unknown {
			value = cpus(p.Seconds / now.Seconds)
		}
		b.WriteString(signed(p.Sign, string(p.Sign)) + " " + left(shown(p.Line, 14), 14) + whole(value, 9) + " ")
		if (i+1)%across == 0 || i == len(now.Parts)-1 {
			lines = append(lines, b.String())
			b.Reset()
		}
	}
	busy := shown(fmt.Sprintf("busy %8s of %s  ", percent(now.Busy), countedCPUs(now.CPUs)), m.width)
	return append(lines, busy+sparkline(m.history.of(busyKey), 1, m.width-width(busy)))
}

// bar draws each part of the budget with its sign, in the colour of that sign.
func (m *Model) bar(parts []report.Part, capacity float64) string {
	var b strings.Builder
	for rest := report.Bar(parts, capacity, m.width-2); rest != ""; {
		run := len(rest) - len(strings.TrimLeft(rest, rest[:1]))
		b.WriteString(signed(rune(rest[0]), rest[:run]))
		rest = rest[run:]
	}
	return b.String()
}

// tabLine returns the names of the tabs with their numbers of rows, and marks the current one.
func (m *Model) tabLine() string {
	names := make([]string, len(m.tabs))
	for i := range m.tabs {
		t := &m.tabs[i]
		count := strconv.Itoa(t.count(t.All))
		if m.picture == nil || t.Unread {
			count = "-"
		}
		names[i] = fmt.Sprintf(" %d %s %s ", i+1, t.Name, count)
		if i == m.tab {
			names[i] = "[" + strings.TrimSpace(names[i]) + "]"
		}
	}
	return inverse(left(shown(strings.Join(names, ""), m.width), m.width))
}

// rows returns the head of the table, and as many rows as fit.
func (m *Model) rows(room int) []string {
	t := &m.tabs[m.tab]
	head := make([]string, len(t.Columns))
	for i, c := range t.Columns {
		head[i] = c.Title + t.mark(i)
	}
	lines := []string{bold(m.inColumns(head, t.Last+t.mark(len(t.Columns)), " "))}
	if len(t.lines) == 0 {
		why := t.None
		if t.Unread {
			why = "not read: w shows the warnings"
		}
		if m.filter != "" && len(t.All) > 0 {
			why = "no row matches " + m.filter
		}
		return append(lines, shown("  "+why, m.width))
	}
	end := min(t.first+room-1, len(t.lines))
	for i, l := range t.lines[t.first:end] {
		lines = append(lines, m.row(l, t.first+i == t.at))
	}
	return lines
}

// mark returns the sign that marks the sorted column and shows its direction; empty for other columns.
func (t *tab) mark(column int) string {
	switch {
	case column != t.sorted:
		return ""
	case t.reversed != (column == len(t.Columns)):
		return " ^"
	}
	return " v"
}

// row draws a row. The selected row also has a sign, for terminals without styles.
func (m *Model) row(l line, selected bool) string {
	sign := " "
	if selected {
		sign = ">"
	}
	fold := "  "
	if len(l.Below) > 0 {
		if fold = "+ "; l.open {
			fold = "- "
		}
	}
	name := strings.Repeat("  ", min(l.depth, 20)) + fold + l.Name
	cells := lists.Map(l.Cells, func(c Cell) string { return c.text })
	drawn := m.inColumns(cells, name, sign)
	if selected {
		return inverse(left(drawn, m.width))
	}
	return drawn
}

// inColumns aligns cells in the columns of the table, as many as fit on the terminal, and the name after them.
func (m *Model) inColumns(cells []string, name, sign string) string {
	var b strings.Builder
	b.WriteString(sign)
	for i, c := range m.tabs[m.tab].Columns {
		if m.width < c.Least {
			continue
		}
		value := ""
		if i < len(cells) {
			value = cells[i]
		}
		b.WriteString(whole(value, c.Cells) + " ")
	}
	b.WriteString(" ")
	return b.String() + shown(name, m.width-width(b.String()))
}

// whole right-aligns a value. A value that does not fit is replaced by "#", because a truncated number would be
// another number.
func whole(value string, cells int) string {
	if width(value) > cells {
		return strings.Repeat("#", cells)
	}
	return right(value, cells)
}

// foot returns the selected row with its history, and the keys or the text being typed.
func (m *Model) foot() []string {
	lines := []string{"", "", m.lastLine()}
	t := &m.tabs[m.tab]
	r := t.current()
	if r == nil || m.picture == nil || m.overlay != nil {
		return lines
	}
	lines[0] = faint(shownMiddle(r.fullName(), m.width))
	values := m.history.of(t.Name + " " + r.Key)
	if most := peak(values); slices.ContainsFunc(values, func(v float64) bool { return !math.IsNaN(v) }) {
		label := left(fmt.Sprintf("0 to %s in %s ", t.Amount(most), quantity.Wait(m.history.span())), 30)
		label = shown(label, m.width)
		lines[1] = label + sparkline(values, most, m.width-width(label))
	}
	return lines
}

// shownMiddle is like shown, but leaves out the middle of a name that does not fit: paths differ at their ends.
func shownMiddle(name string, cells int) string {
	if len(name) <= cells && width(shown(name, cells+1)) <= cells {
		return shown(name, cells)
	}
	from := max(len(name)-cells/8, 0) // escaping turns a byte into up to four cells
	for from < len(name) && !utf8.RuneStart(name[from]) {
		from++
	}
	end := shown(name[from:], cells)
	return shown(name, cells-width(end)) + end
}

func (m *Model) lastLine() string {
	switch {
	case m.typing:
		return shown("filter: "+m.filter+"_   (enter keeps it, esc clears it)", m.width)
	case m.failed != nil:
		return shown("trying again: "+m.failed.Error(), m.width)
	case m.filter != "":
		return shown("filter: "+m.filter+"   (esc clears it)", m.width)
	}
	return faint(shown("tab view  j/k move  enter expand  s sort  / filter  p freeze  ? all keys  q quit", m.width))
}

func (m *Model) keys(int) []string {
	all := [][2]string{
		{fmt.Sprintf("tab, shift-tab, 1 to %d", len(m.tabs)), "the tables"},
		{"j, k, arrows, page, home, end", "select a row"},
		{"enter, space", "show what is below a row, or hide it"},
		{"s", "sort by the next column; r reverses"},
		{"/", "show rows whose name has a text; esc ends that"},
		{"p", "freeze the screen; measuring goes on"},
		{"+, -", "longer and shorter ticks, now " + m.Every().String()},
		{"w", "the warnings: read them before quoting"},
		{"?", "these keys"},
		{"q, ctrl-c", "quit"},
	}
	return lists.Map(all, func(k [2]string) string { return shown(fmt.Sprintf("  %-30s %s", k[0], k[1]), m.width) })
}

// warnings returns the warnings of the picture, folded into the lines that there is room for.
func (m *Model) warnings(room int) []string {
	if m.picture == nil || len(m.picture.Warnings) == 0 {
		return []string{"  no warnings"}
	}
	var lines []string
	for _, w := range m.picture.Warnings {
		lines = append(lines, folded(w, m.width)...)
	}
	if len(lines) > room {
		lines = append(lines[:room-1], "  and more: "+m.options.Weigh+" prints all of them")
	}
	return lines
}

// mostOfWarning is the maximum number of bytes shown of a warning.
const mostOfWarning = 2000

// folded breaks text between words into lines of at most the given number of cells.
func folded(prose string, cells int) (lines []string) {
	line := " "
	for _, w := range strings.Fields(text.ClipLine(prose, mostOfWarning)) {
		w = shown(w, cells-4)
		if len(line) > 4 && width(line)+1+width(w) > cells {
			lines = append(lines, line)
			line = "   "
		}
		line += " " + w
	}
	return append(lines, line)
}

// The styles only repeat what signs say, because some terminals do not show them, and some people cannot see them.
func bold(s string) string    { return ansi.NewStyle().Bold().Styled(s) }
func faint(s string) string   { return ansi.NewStyle().Faint().Styled(s) }
func inverse(s string) string { return ansi.NewStyle().Reverse(true).Styled(s) }

// partColours are the colours of the parts of the budget, by sign.
var partColours = map[rune]ansi.BasicColor{
	'#': ansi.Green, '=': ansi.Cyan, 'k': ansi.Blue, 'B': ansi.Magenta, 'i': ansi.Yellow, 't': ansi.BrightBlack,
	's': ansi.Red, '?': ansi.BrightRed,
}

// signed colours text like the part of the budget that has the sign.
func signed(sign rune, s string) string {
	if colour, has := partColours[sign]; has {
		return ansi.NewStyle().ForegroundColor(colour).Styled(s)
	}
	return s
}
