package screen

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	tea "charm.land/bubbletea/v2"

	"tare/internal/scale/ledger"
)

// Tick is the message that a tick has ended: with its ledger, or why there is none.
type Tick struct {
	Ledger *ledger.Ledger
	Err    error
}

// lengths are what a tick can be changed to.
var lengths = []time.Duration{500 * time.Millisecond, time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second,
	30 * time.Second, time.Minute}

// Model is what is on the screen: the last ledger, the history of rows, and what a person chose. Update changes it by
// keys and ticks, View draws it.
type Model struct {
	options       Options
	every         atomic.Int64 // nanoseconds; the source's goroutine reads it
	width, height int

	ledger  *ledger.Ledger // that is shown; nil before the first
	latest  *ledger.Ledger // the same, unless the screen is frozen
	failed  error          // of the last tick
	history history

	tab     int
	tabs    []tab
	filter  string
	typing  bool // the filter
	frozen  bool
	overlay func(*Model, int) []string // instead of the table; nil: the table
}

// tab is a table as a person looks at it.
type tab struct {
	table

	sorted   int // column; len(columns): the name
	reversed bool
	folded   map[string]bool // rows by key that are shown otherwise than they begin
	all      []*row          // of the ledger
	latest   []*row          // of the latest one
	lines    []line          // what is not folded, and passes the filter
	selected string          // key of the line
	at       int             // index of the line
	first    int             // index of the line at the top
}

// line is a row with its place in the tree.
type line struct {
	*row

	depth int
	open  bool // what is below it follows
}

// New makes a Model of 80x24 without a ledger.
func New(o Options) *Model {
	m := &Model{options: o, width: 80, height: 24}
	m.every.Store(int64(o.Every))
	for _, t := range tables {
		m.tabs = append(m.tabs, tab{table: t, folded: map[string]bool{}})
	}
	return m
}

// Every is how long the next tick lasts. Other goroutines may call it.
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
	l := t.Ledger
	if l.Components == nil {
		l.AddComponents()
	}
	m.latest = l
	for i := range m.tabs {
		m.tabs[i].latest = m.tabs[i].rows(l)
	}
	m.remember(l)
	if !m.frozen {
		m.show()
	}
}

// busyKey is that of the machine in the history.
const busyKey = "busy"

// remember adds a ledger to the history.
func (m *Model) remember(l *ledger.Ledger) {
	used := map[string]float64{busyKey: busy(l)}
	var add func(t *tab, rows []*row)
	add = func(t *tab, rows []*row) {
		for _, r := range rows {
			if v, known := t.used(r); known {
				used[t.name+" "+r.key] = v
			}
			add(t, r.below)
		}
	}
	for i := range m.tabs {
		add(&m.tabs[i], m.tabs[i].latest)
	}
	m.history.add(l.Window.End, used)
}

// busy is the part of the machine's CPU time in which something ran.
func busy(l *ledger.Ledger) float64 {
	c := l.CPU
	return min(max((c.Capacity-c.Waited()-c.Steal)/max(c.Capacity, 1e-9), 0), 1)
}

// show makes the latest ledger the one on the screen.
func (m *Model) show() {
	m.ledger = m.latest
	for i := range m.tabs {
		m.tabs[i].all = m.tabs[i].latest
	}
	m.list()
}

// list makes the lines of all tabs anew.
func (m *Model) list() {
	for i := range m.tabs {
		m.tabs[i].list(strings.ToLower(m.filter))
	}
}

// press does what a key asks for.
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
	case "1", "2", "3", "4", "5":
		m.turn(int(key[0] - '1'))
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
		t.sorted, t.reversed = (t.sorted+1)%(len(t.columns)+1), false
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

// turnOver shows an overlay, or ends the one that is shown.
func (m *Model) turnOver(overlay func(*Model, int) []string) {
	if m.overlay != nil {
		overlay = nil
	}
	m.overlay = overlay
}

// edit changes the filter.
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

// list makes the lines: the rows sorted among those beside them, without what is folded or does not pass the filter.
// The same row stays selected, or the same line where the row is gone.
func (t *tab) list(filter string) {
	t.lines = t.lines[:0]
	t.add(t.all, 0, filter, false)
	if i := slices.IndexFunc(t.lines, func(l line) bool { return l.key == t.selected }); i >= 0 {
		t.at = i
	}
	t.move(0)
}

// add adds rows and what is below them. Within a row that passes the filter everything passes.
func (t *tab) add(rows []*row, depth int, filter string, within bool) {
	for _, r := range t.sort(rows, depth) {
		passes := within || strings.Contains(strings.ToLower(r.fullName()), filter)
		deeper := false
		if !passes {
			if deeper = slices.ContainsFunc(r.below, func(r *row) bool { return passesBelow(r, filter) }); !deeper {
				continue
			}
		}
		open := len(r.below) > 0 && (deeper || r.open != t.folded[r.key])
		t.lines = append(t.lines, line{r, depth, open})
		if open {
			t.add(r.below, depth+1, filter, passes)
		}
	}
}

func passesBelow(r *row, filter string) bool {
	return strings.Contains(strings.ToLower(r.fullName()), filter) ||
		slices.ContainsFunc(r.below, func(r *row) bool { return passesBelow(r, filter) })
}

// sort sorts rows by the chosen column, the largest first, and what is not known or does not apply last.
func (t *tab) sort(rows []*row, depth int) []*row {
	rows = slices.Clone(rows)
	at := func(r *row) (c cell) {
		if t.sorted < len(r.cells) {
			c = r.cells[t.sorted]
		}
		return c
	}
	slices.SortStableFunc(rows, func(a, b *row) int {
		var order int
		x, y := at(a), at(b)
		switch {
		case t.sorted == len(t.columns):
			order = strings.Compare(a.name, b.name)
		case x.known && y.known:
			order = cmp.Compare(y.value, x.value)
		case x.known != y.known:
			if x.known {
				return -1
			}
			return 1
		case len(a.cells) > 0 && len(b.cells) > 0:
			order = strings.Compare(x.text, y.text)
		}
		if t.reversed {
			order = -order
		}
		return order
	})
	return rows
}

// fold shows what is below the selected row, or hides it.
func (t *tab) fold() {
	if t.at >= len(t.lines) {
		return
	}
	if l := t.lines[t.at]; len(l.below) > 0 {
		if t.folded[l.key] = !t.folded[l.key]; !t.folded[l.key] {
			delete(t.folded, l.key)
		}
	}
}

// move selects another line: the one that many lines below.
func (t *tab) move(by int) {
	t.at = max(min(t.at+by, len(t.lines)-1), 0)
	if t.selected = ""; t.at < len(t.lines) {
		t.selected = t.lines[t.at].key
	}
}

// scroll sees to it that the selected line is among those that there is room for.
func (t *tab) scroll(room int) {
	t.first = max(min(t.first, t.at, len(t.lines)-room), t.at-room+1, 0)
}

// current is the selected row; nil where there is none.
func (t *tab) current() *row {
	if t.at >= len(t.lines) {
		return nil
	}
	return t.lines[t.at].row
}
