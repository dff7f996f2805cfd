// Package charge says what belongs to whom on a machine that Tare did not set up: rules that people write, and
// whose the groups, programs and maps of a ledger are by them.
//
// The most specific rule counts: one that matches a group itself comes before one that matches a group above it,
// and one that names a program, a map or the process that holds it comes before those of that process's group. Of
// rules that match the same thing the first one counts.
package charge

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"tare/internal/lib/lists"
	"tare/internal/scale/ledger"
)

// By is what a rule looks at.
type By string

// The selectors.
const (
	Cgroup  By = "cgroup"  // the path of a control group
	Comm    By = "comm"    // the names of processes
	Program By = "program" // the name of an eBPF program
	Map     By = "map"     // the name of an eBPF map
)

// selectors are all of them.
var selectors = []string{string(Cgroup), string(Comm), string(Program), string(Map)}

// Rule charges what matches its pattern.
type Rule struct {
	ledger.Charged
	By      By
	Pattern string
	Where   string // the flag or the place in a file that it is from, for messages
}

// name is where a rule stands, and what it selects, as the ledger names it.
func (r *Rule) name() string {
	what := fmt.Sprintf("%s=%s", r.By, r.Pattern)
	if strings.HasPrefix(r.Where, "--") { // a flag, which says it
		return r.Where
	}
	return r.Where + " " + what
}

// Process is a process that runs at the end of the window.
type Process struct {
	PID    int
	Comm   string
	Cgroup string // path of its group, as in the ledger
}

// Apply charges the groups, programs and maps of l by the rules, settles the ledger, and adds warnings about rules
// that do not do what they seem to say. What is charged already, as the scale's own programs are, stays as it is.
func Apply(rules []Rule, l *ledger.Ledger, running []Process) {
	a := &application{l: l, rules: rules, matched: make([]int, len(rules)), counted: make([]int, len(rules)),
		groupOf: map[int]string{}}
	for _, p := range running {
		a.groupOf[p.PID] = p.Cgroup
	}
	a.groups(running)
	l.Settle() // spreads the charges of groups to those below them
	a.index()
	a.programs()
	a.maps()
	l.Settle()
	a.unused()
}

type application struct {
	l       *ledger.Ledger
	rules   []Rule
	groupOf map[int]string  // of processes
	sides   map[string]side // of the listed groups
	matched []int           // by rule: things that match
	counted []int           // by rule: things that it charges
	shared  []string        // what belongs to several
}

func (a *application) warn(code, format string, args ...any) {
	a.l.Warnings = append(a.l.Warnings, ledger.Warning{Code: code, Message: fmt.Sprintf(format, args...)})
}

// charge gives c the charge of the first rule that matches, unless it has one, and says which rule that is.
func (a *application) charge(c *ledger.Charged, rule *string, matches func(i int, r *Rule) bool) {
	taken := c.Charge != ""
	for i := range a.rules {
		if !matches(i, &a.rules[i]) {
			continue
		}
		a.matched[i]++
		if !taken {
			*c, *rule, taken = a.rules[i].Charged, a.rules[i].name(), true
			a.counted[i]++
		}
	}
}

// tally is how many processes of a group there are, and how many of them have a name that a rule wants.
type tally struct{ all, named int }

func (a *application) groups(running []Process) {
	whole, direct := make([]map[string]tally, len(a.rules)), make([]map[string]tally, len(a.rules))
	for i := range a.rules {
		if r := &a.rules[i]; r.By == Comm {
			whole[i], direct[i] = tallies(r, running)
		}
	}
	for i := range a.l.Cgroups {
		g := &a.l.Cgroups[i]
		a.charge(&g.Charged, &g.Rule, func(i int, r *Rule) bool {
			switch r.By {
			case Cgroup:
				return matchPath(r.Pattern, g.Path)
			case Comm:
				t := whole[i][g.Path]
				return !g.Vanished && t.named > 0 && t.named == t.all
			}
			return false
		})
	}
	a.index()
	for i := range a.rules {
		if direct[i] != nil {
			a.partly(i, direct[i])
		}
	}
}

// tallies counts the processes of each group, with those of the groups below it and without.
func tallies(r *Rule, running []Process) (whole, direct map[string]tally) {
	whole, direct = map[string]tally{}, map[string]tally{}
	for _, p := range running {
		named := 0
		if matchName(r.Pattern, p.Comm) {
			named = 1
		}
		add := func(to map[string]tally, path string) {
			t := to[path]
			to[path] = tally{t.all + 1, t.named + named}
		}
		add(direct, p.Cgroup)
		ledger.Ancestors(p.Cgroup, func(path string) { add(whole, path) })
	}
	return whole, direct
}

// partly warns of groups in which only some processes have the name that a rule wants.
func (a *application) partly(i int, direct map[string]tally) {
	var groups []string
	for path, t := range direct {
		if t.named > 0 && t.named < t.all && a.sideOf(path).Charge == "" {
			groups = append(groups, path)
		}
	}
	if len(groups) == 0 {
		return
	}
	slices.Sort(groups)
	t := direct[groups[0]]
	more := ""
	if n := len(groups) - 1; n > 0 {
		more = fmt.Sprintf(", and so in %d more groups", n)
	}
	a.warn("rule-partly", "%s: %d of the %d processes in %s have that name%s; CPU time and memory are counted by "+
		"group, so only eBPF programs and maps "+
		"that they hold are charged; give them a group of their own, or name the group with cgroup=%s",
		a.rules[i].Where, t.named, t.all, groups[0], more, groups[0])
}

func (a *application) programs() {
	for i := range a.l.Programs {
		p := &a.l.Programs[i]
		a.charge(&p.Charged, &p.Rule, func(_ int, r *Rule) bool {
			return r.By == Program && matchProgram(r.Pattern, p.Name) || r.By == Comm && heldBy(r, p.Owners)
		})
		if p.Charge == "" {
			p.Charged, p.Rule = a.agreed(fmt.Sprintf("program %d (%s)", p.ID, cmp.Or(p.Name, "no name")), a.ofGroups(p.Owners))
		}
	}
}

func (a *application) maps() {
	byID := make(map[uint32]side, len(a.l.Programs))
	for i := range a.l.Programs {
		p := &a.l.Programs[i]
		byID[p.ID] = side{p.Charged, p.Rule}
	}
	for i := range a.l.Maps {
		m := &a.l.Maps[i]
		a.charge(&m.Charged, &m.Rule, func(_ int, r *Rule) bool {
			return r.By == Map && matchName(r.Pattern, m.Name) || r.By == Comm && heldBy(r, m.HeldBy)
		})
		if m.Charge == "" {
			of := lists.Map(m.UsedBy, func(id uint32) side { return byID[id] })
			if !slices.ContainsFunc(of, belongs) {
				of = a.ofGroups(m.HeldBy)
			}
			m.Charged, m.Rule = a.agreed(fmt.Sprintf("map %d (%s)", m.ID, cmp.Or(m.Name, "no name")), of)
		}
	}
	if n := len(a.shared); n > 0 {
		more := ""
		if n > 1 {
			more = fmt.Sprintf(" and %d more", n-1)
		}
		a.warn("charge-shared",
			"%s%s: held or used by both sides, so charged to neither; a rule with program= or map= can say whose "+
				"it is", a.shared[0], more)
	}
}

func heldBy(r *Rule, holders []ledger.Owner) bool {
	return slices.ContainsFunc(holders, func(o ledger.Owner) bool { return matchName(r.Pattern, o.Comm) })
}

// side is a charge, and the rule that it is from.
type side struct {
	ledger.Charged
	rule string
}

// index notes the sides of the listed groups, of which one that was removed and made again stands twice.
func (a *application) index() {
	a.sides = make(map[string]side, len(a.l.Cgroups))
	for i := range a.l.Cgroups {
		g := &a.l.Cgroups[i]
		if a.sides[g.Path].Charge == "" {
			a.sides[g.Path] = side{g.Charged, g.Rule}
		}
	}
}

// sideOf is the side of the group at path, or of the nearest group above it that is listed.
func (a *application) sideOf(path string) (s side) {
	found := false
	ledger.Ancestors(path, func(p string) {
		if at, listed := a.sides[p]; listed && !found {
			s, found = at, true
		}
	})
	return s
}

// ofGroups are the charges of the groups that processes are in.
func (a *application) ofGroups(holders []ledger.Owner) (of []side) {
	for _, o := range holders {
		if path, known := a.groupOf[o.PID]; known {
			of = append(of, a.sideOf(path))
		}
	}
	return of
}

// belongs says whether a charge makes its owner the owner of what it holds. The scale holds what it looks at.
func belongs(c side) bool { return c.Charge != "" && c.Charge != ledger.ChargeSelf }

// agreed is the charge of something by those of its owners, if they agree. Components may differ: then it belongs
// to none. The rule is that of the first.
func (a *application) agreed(what string, of []side) (c ledger.Charged, rule string) {
	for _, o := range of {
		switch {
		case !belongs(o):
		case c.Charge == "":
			c, rule = o.Charged, o.rule
		case c.Charge != o.Charge || c.Workload != o.Workload:
			a.shared = append(a.shared, what)
			return ledger.Charged{}, ""
		case c.Component != o.Component:
			c.Component = ""
		}
	}
	return c, rule
}

// unused warns of rules that charge nothing.
func (a *application) unused() {
	things := map[By]string{Cgroup: "no control group", Program: "no eBPF program", Map: "no eBPF map",
		Comm: "no process that has a control group to itself, or holds an eBPF program or map"}
	for i := range a.rules {
		r := &a.rules[i]
		switch {
		case a.matched[i] == 0 && r.By != Cgroup && a.l.Programs == nil || r.By == Map && a.l.Maps == nil:
			a.warn("rule-unused", "%s charges nothing: it matches no control group, and eBPF programs or maps could not be "+
				"read", r.Where)
		case a.matched[i] == 0:
			why := ""
			switch long := literals(r.Pattern) > kernelName; {
			case long && r.By == Map:
				why = fmt.Sprintf("; the kernel keeps %d bytes of a map's name", kernelName)
			case long && r.By == Program:
				why = fmt.Sprintf("; the kernel keeps %d bytes of the name of a program without type information", kernelName)
			}
			a.warn("rule-unused", "%s matches %s%s", r.Where, things[r.By], why)
		case a.counted[i] == 0:
			a.warn("rule-unused", "%s charges nothing: all that it matches belongs to rules before it, or to tare "+
				"itself", r.Where)
		}
	}
}
