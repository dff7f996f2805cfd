package charge

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tare/internal/scale/ledger"
)

// mustParse reads rules of the form "tare cgroup=/a".
func mustParse(t *testing.T, texts ...string) (rules []Rule) {
	t.Helper()
	for _, text := range texts {
		charge, rule, _ := strings.Cut(text, " ")
		r, err := ParseFlag(ledger.Charge(charge), rule)
		if err != nil {
			t.Fatal(err)
		}
		rules = append(rules, r)
	}
	return rules
}

// machine is a small node: two pods of a shop, one with a proxy, a runtime, an agent with programs, and somebody's
// session.
func machine() (*ledger.Ledger, []Process) {
	l := &ledger.Ledger{}
	for _, path := range []string{"/", "/kubepods", "/kubepods/shop-1", "/kubepods/shop-1/app",
		"/kubepods/shop-1/proxy", "/kubepods/shop-2", "/system",
		"/system/containerd", "/system/agent", "/user"} {
		cpu, hard := 1.0, int64(100)
		l.Cgroups = append(l.Cgroups, ledger.Cgroup{Path: path, CPUSeconds: &cpu, Memory: &ledger.Memory{Hard: &hard}})
	}
	owner := func(pid int, comm string) []ledger.Owner { return []ledger.Owner{{PID: pid, Comm: comm}} }
	l.Programs = []ledger.Program{
		{ID: 1, Name: "cil_from", Owners: owner(5, "agent")},
		{ID: 2, Name: "shop_filter", Owners: owner(1, "java")},
		{ID: 3, Name: "pinned"},
		{ID: 4, Name: "own", Own: true, Charged: ledger.Charged{Charge: ledger.ChargeSelf}, Owners: owner(9, "tare")},
		{ID: 5, Name: "both", Owners: append(owner(1, "java"), owner(5, "agent")...)},
	}
	l.Maps = []ledger.Map{
		{ID: 1, Name: "cil_ct", UsedBy: []uint32{1}, HeldBy: owner(9, "tare")},
		{ID: 2, Name: "loose", HeldBy: owner(5, "agent")},
		{ID: 3, Name: "common", UsedBy: []uint32{1, 2}},
		{ID: 4, Name: "nobody"},
	}
	return l, []Process{{1, "java", "/kubepods/shop-1/app"}, {2, "envoy", "/kubepods/shop-1/proxy"}, {3, "java",
		"/kubepods/shop-2"},
		{4, "containerd", "/system/containerd"}, {5, "agent", "/system/agent"}, {6, "containerd-shim",
			"/system/containerd"},
		{7, "bash", "/user"}, {8, "agent", "/user"}, {9, "tare", "/user"}, {10, "kthreadd", "/"}}
}

// chargesOf lists the charges of all groups, programs and maps; a workload is shown by its name.
func chargesOf(l *ledger.Ledger) string {
	var b strings.Builder
	add := func(what string, c ledger.Charged) {
		if c.Charge != "" {
			side := []string{string(c.Charge), c.Workload, c.Component}
			if c.Charge == ledger.ChargeWorkload {
				side = side[1:]
			}
			side = slices.DeleteFunc(side, func(s string) bool { return s == "" })
			fmt.Fprintf(&b, "%s:%s ", what, strings.Join(side, "."))
		}
	}
	for _, g := range l.Cgroups {
		add(g.Path, g.Charged)
	}
	for _, p := range l.Programs {
		add(p.Name, p.Charged)
	}
	for _, m := range l.Maps {
		add(m.Name, m.Charged)
	}
	return strings.TrimSpace(b.String())
}

// TestRuleOf: what a rule charges records the rule's name, and so does what inherits the charge. Two rules with the
// same charge make one component.
func TestRuleOf(t *testing.T) {
	l, running := machine()
	rules := mustParse(t, "workload shop=/kubepods/shop-1", "workload shop=/kubepods/shop-2", "tare program=cil_*")
	rules[1].Where = "rules.yaml:2:3"
	Apply(rules, l, running)
	const first, second = "--workload 'shop=/kubepods/shop-1'", "rules.yaml:2:3 cgroup=/kubepods/shop-2"
	got := map[string]string{}
	for _, g := range l.Cgroups {
		got[g.Path] = g.Rule
	}
	for _, p := range l.Programs {
		got[p.Name] = p.Rule
	}
	for _, m := range l.Maps {
		got[m.Name] = m.Rule
	}
	for what, want := range map[string]string{"/": "", "/kubepods": "", "/system": "", "/kubepods/shop-1": first,
		"/kubepods/shop-1/app": first, "/kubepods/shop-2": second, "shop_filter": first, "cil_from": "--tare 'program=cil_*'",
		"cil_ct": "--tare 'program=cil_*'", "own": ""} {
		if got[what] != want {
			t.Errorf("%s is charged by %q, want %q", what, got[what], want)
		}
	}
	if len(l.Workloads) != 1 || *l.Workloads[0].GrossCPU != 2 {
		t.Errorf("%+v: want one workload with the CPU time of both pods", l.Workloads)
	}
}

func TestApply(t *testing.T) {
	for _, c := range []struct {
		name, rules, want string
		warnings          string // codes
	}{
		{"none", "", "own:self", ""},
		{"below, too", "workload shop=/kubepods/shop-1",
			"/kubepods/shop-1:shop /kubepods/shop-1/app:shop /kubepods/shop-1/proxy:shop shop_filter:shop own:self " +
				"both:shop common:shop", ""},
		{"the nearest group counts, and serves what it is in",
			"workload shop=/kubepods/shop-*|tare cgroup=/**/proxy,component=proxy",
			"/kubepods/shop-1:shop /kubepods/shop-1/app:shop /kubepods/shop-1/proxy:tare.shop.proxy " +
				"/kubepods/shop-2:shop shop_filter:shop own:self both:shop common:shop", ""},
		{"the first rule counts", "tare cgroup=/system/agent|load cgroup=/system/*|load cgroup=/system/agent",
			"/system/containerd:load /system/agent:tare cil_from:tare own:self both:tare cil_ct:tare loose:tare " +
				"common:tare", "rule-unused"},
		{"processes with a group of their own", "tare comm=containerd*",
			"/system/containerd:tare own:self", ""},
		{"processes without", "tare comm=agent",
			"/system/agent:tare cil_from:tare own:self both:tare cil_ct:tare loose:tare common:tare", "rule-partly"},
		{"all processes below a group", "workload shop=comm=java|tare comm=envoy",
			"/kubepods/shop-1/app:shop /kubepods/shop-1/proxy:tare /kubepods/shop-2:shop shop_filter:shop own:self " +
				"both:shop common:shop", ""},
		{"programs and maps by name", "tare program=cil_*|tare map=loo*|tare program=own",
			"cil_from:tare own:self cil_ct:tare loose:tare common:tare", "rule-unused"},
		{"both sides", "workload shop=/kubepods|tare cgroup=/system",
			"/kubepods:shop /kubepods/shop-1:shop /kubepods/shop-1/app:shop /kubepods/shop-1/proxy:shop " +
				"/kubepods/shop-2:shop /system:tare /system/containerd:tare /system/agent:tare cil_from:tare " +
				"shop_filter:shop own:self cil_ct:tare loose:tare", "charge-shared"},
		{"for a workload that is not there, and one that is",
			"workload {unit}=unit=*|workload shop=/kubepods/shop-1|tare program=cil_*,workload=shpo|tare map=loo*,workload=shop",
			"/kubepods/shop-1:shop /kubepods/shop-1/app:shop /kubepods/shop-1/proxy:shop cil_from:tare.shpo " +
				"shop_filter:shop own:self both:shop cil_ct:tare.shpo loose:tare.shop", "charge-shared rule-unused rule-unused"},
		{"nothing", "tare cgroup=/nosuch|tare comm=nosuch|tare program=nosuch|tare map=nosuch", "own:self",
			"rule-unused rule-unused rule-unused rule-unused"},
		{"everything", "workload all=/",
			"/:all /kubepods:all /kubepods/shop-1:all /kubepods/shop-1/app:all /kubepods/shop-1/proxy:all " +
				"/kubepods/shop-2:all /system:all /system/containerd:all /system/agent:all /user:all " +
				"cil_from:all shop_filter:all own:self both:all cil_ct:all loose:all common:all", ""},
	} {
		var rules []Rule
		if c.rules != "" {
			rules = mustParse(t, strings.Split(c.rules, "|")...)
		}
		l, running := machine()
		Apply(rules, l, running)
		var codes []string
		for _, w := range l.Warnings {
			codes = append(codes, w.Code)
		}
		if got := chargesOf(l); got != c.want || strings.Join(codes, " ") != c.warnings {
			t.Errorf("%s:\n got %s\nwant %s\nwarnings %+v, want %s", c.name, got, c.want, l.Warnings, c.warnings)
		}
	}
}

// Warnings say what would help.
func TestWarnings(t *testing.T) {
	l, running := machine()
	Apply(mustParse(t, "tare comm=agent", "tare cgroup=/nosuch*", "load cgroup=/system/agent",
		"tare map=sixteen_bytes_map", "tare map=fifteen_bytes_*", "tare program=sixteen_bytes_prog"), l, running)
	var got []string
	for _, w := range l.Warnings {
		got = append(got, w.Message)
	}
	l, running = machine()
	Apply(mustParse(t, "workload shop=/kubepods", "tare comm=containerd*,workload=shpo"), l, running)
	for _, w := range l.Warnings {
		got = append(got, w.Message)
	}
	for i, want := range []string{
		"--tare 'comm=agent': 1 of the 3 processes in /user have that name; CPU time and memory are counted by " +
			"group, so only eBPF programs and maps that they hold are charged; give them a group of their own, or name the " +
			"group with cgroup=/user",
		"--tare 'cgroup=/nosuch*' matches no control group",
		"--load 'cgroup=/system/agent' charges nothing: all that it matches belongs to rules before it, or to " +
			"tare itself",
		"--tare 'map=sixteen_bytes_map' matches no eBPF map; the kernel keeps 15 bytes of a map's name",
		"--tare 'map=fifteen_bytes_*' matches no eBPF map",
		"--tare 'program=sixteen_bytes_prog' matches no eBPF program; the kernel keeps 15 bytes of the name of a program " +
			"without type information",
		"--tare 'comm=containerd*,workload=shpo': no control group here belongs to a workload \"shpo\", so what the rule " +
			"charges is in no gross; did you mean shop?",
	} {
		if i >= len(got) || got[i] != want {
			t.Errorf("warning %d: %q, want %q", i, got, want)
		}
	}
}

// TestFirst: a rule that charges the group of PID 1 causes a warning if other processes are in that group. A service
// manager is alone in its group, so it causes none.
func TestFirst(t *testing.T) {
	const says = "--workload: the control group /init holds PID 1 (sh) and other processes: CPU time and memory are " +
		"counted by group, so those of all of them are charged; put what is meant into a separate group"
	for _, c := range []struct {
		name, rule, others string
		warns              bool
	}{
		{"with others", "/init", "/init", true},
		{"a group above, with others", "/", "/init", true},
		{"alone", "/init", "/user", false},
		{"another's group", "/user", "/init", false},
	} {
		l := &ledger.Ledger{Cgroups: []ledger.Cgroup{{Path: "/"}, {Path: "/init"}, {Path: "/user"}}}
		rules := mustParse(t, "workload shop="+c.rule)
		rules[0].Where = "--workload"
		Apply(rules, l, []Process{{1, "sh", "/init"}, {2, "java", c.others}})
		var said []string
		for _, w := range l.Warnings {
			said = append(said, w.Code+": "+w.Message)
		}
		if c.warns != slices.Contains(said, "rule-first: "+says) || !c.warns && len(said) > 0 {
			t.Errorf("%s: %q", c.name, said)
		}
	}
}
