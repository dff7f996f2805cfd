package screen

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"
)

// Tick is the message at the end of a tick, which is one window. It has the window's picture or an error.
type Tick struct {
	Picture *Picture
	Err     error
}

// lengths lists the durations that the user can choose for a tick, in ascending order.
var lengths = []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	30 * time.Second, time.Minute}

// Model is the state of the screen: the last picture, the history of rows, and the user's choices. Update changes it
// on keys and ticks, View draws it.
type Model struct {
	options       Options
	every         atomic.Int64 // nanoseconds; the source's goroutine reads it
	width, height int

	picture *Picture // the one shown; nil before the first
	latest  *Picture // the same, unless the screen is frozen
	failed  error    // the error of the last tick; nil if it succeeded
	history history

	tab     int
	tabs    []tab
	filter  string
	typing  bool // the user types the filter
	frozen  bool
	overlay func(*Model, int) []string // replaces the table; nil: the table is shown
}

// tab is a table with the user's choices for it.
type tab struct {
	Table
	Rows // the rows of the table in the picture

	sorted   int // index of the column; len(Columns): the name
	reversed bool
	folded   map[string]bool // keys of rows whose folding the user has changed
	lines    []line          // rows that are not hidden by folding or the filter
	selected string          // key of the selected line
	at       int             // index of the selected line
	first    int             // index of the top line
}

// line is a row with its place in the tree.
type line struct {
	*Row

	depth int
	open  bool // the rows below it are shown
}

// New returns a Model of 80x24 cells without a picture.
func New(o Options) *Model {
	m := &Model{options: o, width: 80, height: 24}
	m.every.Store(int64(o.Every))
	for _, t := range o.Tables {
		m.tabs = append(m.tabs, tab{Table: t, folded: map[string]bool{}})
	}
	return m
}

// Every returns the length of the next tick. Other goroutines may call it.
func (m *Model) Every() time.Duration { return time.Duration(m.every.Load()) }

// Init implements tea.Model.
func (m *Model) Init() tea.Cmd { return nil }

// Update implements tea.Model.
func (m *Model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	var then tea.Cmd
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case Tick:
		m.tick(msg)
	case tea.PasteMsg:
		if m.typing {
			m.filter += msg.Content
			m.list()
		}
	case tea.KeyPressMsg:
		if m.typing {
			m.edit(msg)
		} else {
			then = m.press(msg.String())
		}
	}
	m.tabs[m.tab].scroll(m.room())
	return m, then
}

func (m *Model) tick(t Tick) {
	if m.failed = t.Err; t.Err != nil {
		return
	}
	m.latest = t.Picture
	m.remember(t.Picture)
	if !m.frozen {
		m.show()
	}
}

// busyKey is the key of the whole machine in the history.
const busyKey = "busy"

func (m *Model) remember(p *Picture) {
	used := map[string]float64{busyKey: p.Busy}
	var add func(table string, rows []*Row)
	add = func(table string, rows []*Row) {
		for _, r := range rows {
			if v, known := r.first(); known {
				used[table+" "+r.Key] = v
			}
			add(table, r.Below)
		}
	}
	for i := range m.tabs {
		add(m.tabs[i].Name, p.Rows[i].All)
	}
	m.history.add(p.End, used)
}

// show puts the latest picture on the screen.
func (m *Model) show() {
	m.picture = m.latest
	for i := range m.tabs {
		m.tabs[i].Rows = m.picture.Rows[i]
	}
	m.list()
}

// list rebuilds the lines of all tabs.
func (m *Model) list() {
	for i := range m.tabs {
		m.tabs[i].list(strings.ToLower(m.filter))
	}
}

// press handles a key.
func (m *Model) press(key string) tea.Cmd {
	t := &m.tabs[m.tab]
	page := max(m.room()-1, 1)
	switch key {
	case "q", "ctrl+c":
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	case "tab", "right", "l":
		m.turn((m.tab + 1) % len(m.tabs))
	case "shift+tab", "left", "h":
		m.turn((m.tab + len(m.tabs) - 1) % len(m.tabs))
	case "1", "2", "3", "4", "5", "6", "7", "8", "9":
		m.turn(min(int(key[0]-'1'), len(m.tabs)-1))
	case "down", "j":
		t.move(1)
	case "up", "k":
		t.move(-1)
	case "pgdown", "ctrl+f":
		t.move(page)
	case "pgup", "ctrl+b":
		t.move(-page)
	case "home", "g":
		t.move(-len(t.lines))
	case "end", "G":
		t.move(len(t.lines))
	case "enter", "space":
		t.fold()
		m.list()
	case "s":
		t.sorted, t.reversed = (t.sorted+1)%(len(t.Columns)+1), false
		m.list()
	case "r":
		t.reversed = !t.reversed
		m.list()
	case "/":
		m.typing, m.overlay = true, nil
	case "esc":
		m.overlay = nil
		m.filter = ""
		m.list()
	case "p":
		if m.frozen = !m.frozen; !m.frozen && m.latest != nil {
			m.show()
		}
	case "+", "=":
		if i := slices.IndexFunc(lengths, func(d time.Duration) bool { return d > m.Every() }); i >= 0 {
			m.every.Store(int64(lengths[i]))
		}
	case "-":
		if i, _ := slices.BinarySearch(lengths, m.Every()); i > 0 {
			m.every.Store(int64(lengths[i-1]))
		}
	case "?":
		m.turnOver((*Model).keys)
	case "w":
		m.turnOver((*Model).warnings)
	}
	return nil
}

func (m *Model) turn(to int) { m.tab, m.overlay = to, nil }

// turnOver shows an overlay, or closes the current one.
func (m *Model) turnOver(overlay func(*Model, int) []string) {
	if m.overlay != nil {
		overlay = nil
	}
	m.overlay = overlay
}

// edit handles a key while the filter is typed.
func (m *Model) edit(k tea.KeyPressMsg) {
	switch k.String() {
	case "enter", "ctrl+c":
		m.typing = false
	case "esc":
		m.typing, m.filter = false, ""
	case "backspace":
		runes := []rune(m.filter)
		m.filter = string(runes[:max(len(runes)-1, 0)])
	case "ctrl+u":
		m.filter = ""
	default:
		m.filter += k.Text
	}
	m.list()
}

// list rebuilds the lines: the rows, sorted within each parent, without those below folded rows and those that do not
// match the filter. The same row stays selected, or the same line if the row is gone.
func (t *tab) list(filter string) {
	t.lines = t.lines[:0]
	t.add(t.All, 0, filter, false)
	if i := slices.IndexFunc(t.lines, func(l line) bool { return l.Key == t.selected }); i >= 0 {
		t.at = i
	}
	t.move(0)
}

// add adds rows and the rows below them. Everything below a row that matches the filter is shown.
func (t *tab) add(rows []*Row, depth int, filter string, within bool) {
	for _, r := range t.sort(rows, depth) {
		passes := within || strings.Contains(strings.ToLower(r.fullName()), filter)
		deeper := false
		if !passes {
			if deeper = slices.ContainsFunc(r.Below, func(r *Row) bool { return passesBelow(r, filter) }); !deeper {
				continue
			}
		}
		open := len(r.Below) > 0 && (deeper || r.Open != t.folded[r.Key])
		t.lines = append(t.lines, line{r, depth, open})
		if open {
			t.add(r.Below, depth+1, filter, passes)
		}
	}
}

func passesBelow(r *Row, filter string) bool {
	return strings.Contains(strings.ToLower(r.fullName()), filter) ||
		slices.ContainsFunc(r.Below, func(r *Row) bool { return passesBelow(r, filter) })
}

// sort sorts rows by the chosen column, the largest first; values that are unknown or do not apply come last.
func (t *tab) sort(rows []*Row, depth int) []*Row {
	rows = slices.Clone(rows)
	at := func(r *Row) (c Cell) {
		if t.sorted < len(r.Cells) {
			c = r.Cells[t.sorted]
		}
		return c
	}
	slices.SortStableFunc(rows, func(a, b *Row) int {
		var order int
		x, y := at(a), at(b)
		switch {
		case t.sorted == len(t.Columns):
			order = strings.Compare(a.Name, b.Name)
		case x.known && y.known:
			order = cmp.Compare(y.value, x.value)
		case x.known != y.known:
			if x.known {
				return -1
			}
			return 1
		case len(a.Cells) > 0 && len(b.Cells) > 0:
			order = strings.Compare(x.text, y.text)
		}
		if t.reversed {
			order = -order
		}
		return order
	})
	return rows
}

// fold shows or hides the rows below the selected row.
func (t *tab) fold() {
	if t.at >= len(t.lines) {
		return
	}
	if l := t.lines[t.at]; len(l.Below) > 0 {
		if t.folded[l.Key] = !t.folded[l.Key]; !t.folded[l.Key] {
			delete(t.folded, l.Key)
		}
	}
}

// move moves the selection down by a number of lines.
func (t *tab) move(by int) {
	t.at = max(min(t.at+by, len(t.lines)-1), 0)
	if t.selected = ""; t.at < len(t.lines) {
		t.selected = t.lines[t.at].Key
	}
}

// scroll keeps the selected line visible.
func (t *tab) scroll(room int) {
	t.first = max(min(t.first, t.at, len(t.lines)-room), t.at-room+1, 0)
}

// current returns the selected row; nil if there is none.
func (t *tab) current() *Row {
	if t.at >= len(t.lines) {
		return nil
	}
	return t.lines[t.at].Row
}
