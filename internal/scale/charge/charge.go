// Package charge assigns the groups, programs and maps of a ledger to workloads and infrastructure, by user-written
// rules, on a machine that Tare did not set up.
//
// The most specific rule applies. For a group, a rule that matches the group itself precedes a rule that matches a
// group above it. For a program or map, a rule that names the object or a process that holds it precedes the rules that
// match the group of that process. If several rules match the same object, the first applies.
package charge

import (
	"cmp"
	"fmt"
	"slices"

	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/scale/ledger"
)

// Process is a process that was running at the end of the window.
type Process struct {
	PID    int
	Comm   string
	Cgroup string // path of its group, as in the ledger
}

// Apply charges the groups, programs and maps of l by the rules, settles the ledger, and adds warnings about rules with
// unexpected effects. Existing charges, such as those of the measuring process's own programs, are kept.
func Apply(rules []Rule, l *ledger.Ledger, running []Process) {
	a := &application{l: l, rules: rules, matched: make([]int, len(rules)), counted: make([]int, len(rules)),
		names:   lists.Map(rules, func(r Rule) string { return r.name() }),
		groupOf: lists.Keyed(running, func(p Process) (int, string) { return p.PID, p.Cgroup })}
	a.groups(running)
	l.Settle() // passes the charges of groups on to their descendants
	a.index()
	a.first(running)
	a.programs()
	a.maps()
	l.Settle()
	a.unused()
}

type application struct {
	l       *ledger.Ledger
	rules   []Rule
	names   []string        // names of the rules
	groupOf map[int]string  // groups of processes, by PID
	sides   map[string]side // by path of each listed group
	matched []int           // by rule: number of objects that match
	counted []int           // by rule: number of objects that it charges
	shared  []string        // objects that belong to several sides
}

func (a *application) warn(code, format string, args ...any) {
	a.l.Warnings = append(a.l.Warnings, ledger.Warning{Code: code, Message: fmt.Sprintf(format, args...)})
}

// charge sets c to the charge of the first rule that matches, and rule to that rule's name, unless c already has a
// charge. name is the name of the group to charge; nil for a program or map.
func (a *application) charge(c *ledger.Charged, rule *string, name *ledger.Name, matches func(i int, r *Rule) bool) {
	taken := c.Charge != ""
	for i := range a.rules {
		if !matches(i, &a.rules[i]) {
			continue
		}
		a.matched[i]++
		if !taken {
			*c, *rule, taken = a.rules[i].charged(name), a.names[i], true
			a.counted[i]++
		}
	}
}

// tally is the number of processes in a group, and how many of them have the name that a rule selects.
type tally struct{ all, named int }

// numbers holds the number of processes by group: whole includes the descendants of a group, direct does not.
type numbers struct{ whole, direct map[string]int }

// number counts the processes that match.
func number(running []Process, matches func(comm string) bool) (n numbers) {
	n = numbers{map[string]int{}, map[string]int{}}
	for _, p := range running {
		if matches(p.Comm) {
			n.direct[p.Cgroup]++
			ledger.Ancestors(p.Cgroup, func(path string) { n.whole[path]++ })
		}
	}
	return n
}

func (a *application) groups(running []Process) {
	named, all := make([]numbers, len(a.rules)), numbers{}
	for i := range a.rules {
		if r := &a.rules[i]; r.Comm != "" {
			named[i] = number(running, func(comm string) bool { return matchName(r.Comm, comm) })
			if all.whole == nil {
				all = number(running, func(string) bool { return true })
			}
		}
	}
	names := make(map[string]*ledger.Name, len(a.l.Cgroups))
	for i := range a.l.Cgroups {
		names[a.l.Cgroups[i].Path] = a.l.Cgroups[i].Name
	}
	for i := range a.l.Cgroups {
		g := &a.l.Cgroups[i]
		over := ledger.Above(names, g.Path)
		a.charge(&g.Charged, &g.Rule, g.Name, func(i int, r *Rule) bool {
			return r.matchesGroup(g, over, tally{all.whole[g.Path], named[i].whole[g.Path]})
		})
	}
	a.index()
	for i := range a.rules {
		if r := &a.rules[i]; r.Comm != "" && r.Patterns == (Patterns{Comm: r.Comm}) && !r.Profile {
			a.partly(i, all.direct, named[i].direct)
		}
	}
}

// partly warns of groups in which only some processes have the name that a rule selects.
func (a *application) partly(i int, all, named map[string]int) {
	var groups []string
	for path, n := range named {
		if n < all[path] && ledger.At(a.sides, path).Charge == "" {
			groups = append(groups, path)
		}
	}
	if len(groups) == 0 {
		return
	}
	slices.Sort(groups)
	more := ""
	if n := len(groups) - 1; n > 0 {
		more = fmt.Sprintf(", and so in %d more groups", n)
	}
	a.warn("rule-partly", "%s: %d of the %d processes in %s have that name%s; CPU time and memory are counted by "+
		"group, so only eBPF programs and maps "+
		"that they hold are charged; give them a group of their own, or name the group with cgroup=%s",
		a.rules[i].Where, named[groups[0]], all[groups[0]], groups[0], more, groups[0])
}

// first warns of a rule that charges the group of PID 1 if other processes are in that group too. On a machine or in a
// container without a service manager, all processes are.
func (a *application) first(running []Process) {
	at := slices.IndexFunc(running, func(p Process) bool { return p.PID == 1 })
	if at < 0 {
		return
	}
	init := running[at]
	of := ledger.At(a.sides, init.Cgroup)
	i := slices.Index(a.names, of.rule)
	others := slices.ContainsFunc(running, func(p Process) bool { return p.PID != 1 && p.Cgroup == init.Cgroup })
	if !others || !belongs(of) || i < 0 || a.rules[i].Profile {
		return
	}
	a.warn("rule-first", "%s: the control group %s holds PID 1 (%s) and other processes: CPU time and memory are "+
		"counted by group, so those of all of them are charged; put what is meant into a separate group",
		a.rules[i].Where, init.Cgroup, text.Plain(init.Comm))
}

func (a *application) programs() {
	for i := range a.l.Programs {
		p := &a.l.Programs[i]
		a.charge(&p.Charged, &p.Rule, nil, func(_ int, r *Rule) bool {
			return r.Program != "" && matchProgram(r.Program, p.Name) || heldBy(r, p.Owners)
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
		a.charge(&m.Charged, &m.Rule, nil, func(_ int, r *Rule) bool {
			return r.Map != "" && matchName(r.Map, m.Name) || heldBy(r, m.HeldBy)
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
	return slices.ContainsFunc(holders, func(o ledger.Owner) bool { return r.holds(o.Comm) })
}

// side is a charge and the rule that it comes from.
type side struct {
	ledger.Charged
	rule string
}

// index records the sides of the listed groups. A group that was removed and created again is listed twice.
func (a *application) index() {
	a.sides = make(map[string]side, len(a.l.Cgroups))
	for i := range a.l.Cgroups {
		g := &a.l.Cgroups[i]
		if a.sides[g.Path].Charge == "" {
			a.sides[g.Path] = side{g.Charged, g.Rule}
		}
	}
}

// ofGroups returns the charges of the groups that the holders are in.
func (a *application) ofGroups(holders []ledger.Owner) (of []side) {
	for _, o := range holders {
		if path, known := a.groupOf[o.PID]; known {
			of = append(of, ledger.At(a.sides, path))
		}
	}
	return of
}

// belongs reports whether an object can belong to the side of its holder. It cannot if the holder is the measuring
// process, which also holds the objects that it reads.
func belongs(c side) bool { return c.Charge != "" && c.Charge != ledger.ChargeSelf }

// agreed returns the charge of an object if all of its owners have the same charge. If only their components differ,
// the result has no component. The rule is that of the first owner.
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

// unused warns of rules that charge nothing, and of those whose charges are in no workload's account.
func (a *application) unused() {
	nameless, unlabelled := a.unknown()
	workloads := lists.Map(a.l.Workloads, func(w ledger.Workload) string { return w.Name })
	for i := range a.rules {
		r := &a.rules[i]
		if r.Profile {
			continue
		}
		object := r.Comm != "" || r.Program != "" || r.Map != ""
		switch {
		case a.matched[i] == 0 && object && a.l.Programs == nil || r.Map != "" && a.l.Maps == nil:
			a.warn("rule-unused", "%s charges nothing: it matches no control group, and eBPF programs or maps could not be "+
				"read", r.Where)
		case a.matched[i] == 0 && r.byName() && r.Unit == "" && nameless > 0:
			a.warn("rule-unused", "%s matches no container whose name is known, and %s without one may be meant: other "+
				"warnings say what to mount or permit", r.Where, quantity.Counted(nameless, "container"))
		case a.matched[i] == 0 && r.Label != "" && unlabelled:
			a.warn("rule-unused", "%s matches nothing, and no container here has labels: containerd and Podman keep none "+
				"where they can be read; select by namespace=, pod= or container=", r.Where)
		case a.matched[i] == 0:
			a.warn("rule-unused", "%s matches no %s", r.Where, r.things())
		case a.counted[i] == 0:
			a.warn("rule-unused", "%s charges nothing: all that it matches belongs to rules before it, or to tare "+
				"itself", r.Where)
		case r.Charge == ledger.ChargeTare && r.Workload != "" && !r.template() && !slices.Contains(workloads, r.Workload):
			guess := ""
			if n := text.Nearest(r.Workload, workloads); n != "" {
				guess = fmt.Sprintf("; did you mean %s?", n)
			}
			a.warn("rule-unused", "%s: no control group here belongs to a workload %q, so what the rule charges is in no "+
				"gross%s", r.Where, r.Workload, guess)
		}
	}
}

// unknown returns the number of containers without a name, and whether there are containers but none has labels.
func (a *application) unknown() (nameless int, unlabelled bool) {
	containers, labelled := 0, 0
	for i := range a.l.Cgroups {
		g := &a.l.Cgroups[i]
		if g.Name == nil || g.Name.ContainerID == "" || g.Name.Top != g.Path {
			continue
		}
		containers++
		if g.Name.Container == "" {
			nameless++
		}
		if len(g.Name.Labels) > 0 {
			labelled++
		}
	}
	return nameless, containers > 0 && labelled == 0
}

// things describes what a rule selects.
func (r *Rule) things() string {
	switch long := literals(r.Program+r.Map) > kernelName; {
	case r.Comm != "":
		return "process that has a control group to itself, or holds an eBPF program or map"
	case r.Map != "" && long:
		return fmt.Sprintf("eBPF map; the kernel keeps %d bytes of a map's name", kernelName)
	case r.Map != "":
		return "eBPF map"
	case r.Program != "" && long:
		return fmt.Sprintf("eBPF program; the kernel keeps %d bytes of the name of a program without type information",
			kernelName)
	case r.Program != "":
		return "eBPF program"
	case r.Unit != "":
		return "control group of such a unit"
	case r.Container != "":
		return "container"
	case r.byName():
		return "pod or container"
	}
	return "control group"
}
