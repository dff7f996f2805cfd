package charge

import (
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"tare/internal/lib/document"
	"tare/internal/lib/fault"
	"tare/internal/lib/text"
	"tare/internal/scale/ledger"
)

const (
	maxFileBytes = 64 << 10
	maxPattern   = 4096 // PATH_MAX
	maxName      = 64   // of workloads and components
	// The kernel's names of processes (TASK_COMM_LEN), eBPF programs and maps (BPF_OBJ_NAME_LEN), without the final 0.
	kernelName = 15
)

// Charges are those that a rule can give: what the scale itself costs needs none.
var charges = []string{string(ledger.ChargeWorkload), string(ledger.ChargeTare), string(ledger.ChargeLoad)}

// The keys that a rule can have beside its selector.
const (
	keyCharge    = "charge"
	keyWorkload  = "workload"
	keyComponent = "component"
)

// ParseFlag reads the value of --workload (NAME=/PATH or NAME=SELECTOR=PATTERN), --tare or --load
// (SELECTOR=PATTERN), with ,component=NAME and, for tare, ,workload=NAME behind it. Its errors are faults with code
// Usage.
func ParseFlag(charge ledger.Charge, text string) (Rule, error) {
	r := Rule{Charged: ledger.Charged{Charge: charge}, Where: fmt.Sprintf("--%s '%s'", charge, clip(text))}
	example := map[ledger.Charge]string{
		ledger.ChargeWorkload: "such as --workload 'shop=/kubepods/shop*'",
		ledger.ChargeTare:     "such as --tare 'cgroup=/kube-system/*' or --tare 'comm=containerd*'",
		ledger.ChargeLoad:     "such as --load 'cgroup=/k6'",
	}[charge]
	fail := func(hint, format string, args ...any) (Rule, error) {
		return Rule{}, fault.New(fault.Usage, r.Where, hint, format, args...)
	}
	if charge == ledger.ChargeWorkload {
		name, rest, found := strings.Cut(text, "=")
		switch {
		case !found:
			return fail(example, "a workload needs a name and its control groups")
		case slices.Contains(selectors, name):
			return fail(fmt.Sprintf("put its name first: --workload 'NAME=%s'", clip(text)), "the workload has no name")
		}
		r.Workload, text = name, rest
		if strings.HasPrefix(text, "/") {
			text = string(Cgroup) + "=" + text
		}
	}
	pieces := split(text)
	key, pattern, found := strings.Cut(pieces[0], "=")
	if strings.HasPrefix(key, "/") {
		return fail(fmt.Sprintf("put what it is first: cgroup=%s", clip(pieces[0])),
			"the rule does not say what it matches")
	}
	if !found || !slices.Contains(selectors, key) {
		return fail(withGuess(key, selectors, "a rule selects by "+strings.Join(selectors, ", ")+", "+example),
			"there is no selector %q", clip(key))
	}
	r.By, r.Pattern = By(key), pattern
	further := []string{keyComponent}
	if charge == ledger.ChargeTare {
		further = append(further, keyWorkload)
	}
	for _, piece := range pieces[1:] {
		key, value, _ := strings.Cut(piece, "=")
		into := &r.Component
		switch {
		case key == keyWorkload && charge == ledger.ChargeWorkload:
			return fail("name it once", "the workload has two names")
		case key == keyWorkload && charge == ledger.ChargeTare:
			into = &r.Workload
		case key != keyComponent:
			may := "it may have " + strings.Join(further, " and ") + `; a comma that belongs to the pattern is written \,`
			return fail(withGuess(key, further, may), "there is no %q in such a rule", clip(key))
		}
		if *into != "" {
			return fail("give it once", "%q is there twice", key)
		}
		if *into = value; value == "" {
			return fail("leave it out, or give it a name", "%q is empty", key)
		}
	}
	return r, r.check(func(hint, format string, args ...any) error {
		return fault.New(fault.Usage, r.Where, hint, format, args...)
	})
}

// split cuts at commas but those behind a backslash.
func split(text string) (pieces []string) {
	from := 0
	for i := 0; i < len(text); {
		_, _, next := at(text, i)
		if text[i] == ',' {
			pieces = append(pieces, text[from:i])
			from = next
		}
		i = next
	}
	return append(pieces, text[from:])
}

func withGuess(name string, known []string, hint string) string {
	if n := text.Nearest(name, known); n != "" {
		return fmt.Sprintf("did you mean %s? %s", n, hint)
	}
	return hint
}

// clip keeps what others wrote short in messages, and leaves room for a path.
func clip(s string) string { return text.ClipTo(s, 80) }

// check finds what is wrong with the values of a rule.
func (r *Rule) check(fail func(hint, format string, args ...any) error) error {
	named := func(what, name string) error {
		ok := func(c rune) bool {
			return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' ||
				strings.ContainsRune("._-/:@", c)
		}
		if len(name) > maxName || strings.ContainsFunc(name, func(c rune) bool { return !ok(c) }) ||
			strings.HasPrefix(name, "/") {
			return fail(fmt.Sprintf("letters, digits and . _ - / : @, at most %d, and no / at the start", maxName),
				"%q is no name of a %s", clip(name), what)
		}
		return nil
	}
	switch {
	case r.Charge == ledger.ChargeWorkload && r.Workload == "":
		return fail("give it one, such as shop", "the workload has no name")
	case r.Charge == ledger.ChargeLoad && r.Workload != "":
		return fail("leave the workload out", "a load belongs to no workload")
	case r.Pattern == "":
		return fail(fmt.Sprintf("name what it matches: %s=NAME, with * for any characters", r.By),
			"the pattern is empty")
	case len(r.Pattern) > maxPattern:
		return fail("", "the pattern has %d bytes; the longest path has %d", len(r.Pattern), maxPattern)
	case strings.ContainsFunc(r.Pattern, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return fail("", "the pattern has control characters")
	case r.By == Cgroup && !strings.HasPrefix(r.Pattern, "/"):
		return fail(fmt.Sprintf("try cgroup=/%s, or cgroup=/**/%s wherever it is; 'tare weigh' lists them",
			clip(r.Pattern), clip(r.Pattern)),
			"the path of a control group begins with /")
	case r.By == Comm && literals(r.Pattern) > kernelName:
		return fail("shorten it, with a * at its end",
			"the kernel keeps %d bytes of the name of a process: %q matches none", kernelName, clip(r.Pattern))
	}
	if err := named("workload", r.Workload); err != nil {
		return err
	}
	return named("component", r.Component)
}

// Check finds what is wrong with rules as a whole.
func Check(rules []Rule) error {
	var names []string
	for _, r := range rules {
		if r.Charge == ledger.ChargeWorkload {
			names = append(names, r.Workload)
		}
	}
	for _, r := range rules {
		if r.Charge == ledger.ChargeTare && r.Workload != "" && !slices.Contains(names, r.Workload) {
			return fault.New(fault.Usage, r.Where, withGuess(r.Workload, names,
				fmt.Sprintf("say what it is: --workload '%s=/PATH'", r.Workload)),
				"there is no workload %q", r.Workload)
		}
	}
	return nil
}

// ParseFile reads a file of rules. Its errors are faults with code Usage and the place as file:line:column.
func ParseFile(file string, data []byte) ([]Rule, error) {
	const example = "a file of rules begins so: 'rules: [{charge: tare, cgroup: /kube-system}]'; see docs/charges.md"
	f := rulesFile{document.File(file)}
	documents, err := f.Parse(data, document.Limit{
		What: "a file of rules", Bytes: maxFileBytes, Hint: "patterns with * say in one line what many names say",
	})
	if err != nil {
		return nil, err
	}
	if len(documents) == 0 {
		return nil, fault.New(fault.Usage, file, example, "the file has no rules")
	}
	root, ok := documents[0].(*ast.MappingNode)
	if !ok || len(documents) > 1 {
		return nil, f.Fail(documents[0], example, "the file must have the one key \"rules\" with a list")
	}
	var rules []Rule
	for _, v := range root.Values {
		list, isList := v.Value.(*ast.SequenceNode)
		if v.Key.String() != "rules" || !isList {
			return nil, f.Fail(v.Key, example, "the file must have the one key \"rules\" with a list")
		}
		if rules, err = ParseList(f.File, list); err != nil {
			return nil, err
		}
	}
	if len(rules) == 0 {
		return nil, fault.New(fault.Usage, file, example, "the file has no rules")
	}
	return rules, nil
}

// ParseList reads the rules of a list in a file, with the errors of ParseFile.
func ParseList(file document.File, list *ast.SequenceNode) (rules []Rule, err error) {
	for _, n := range list.Values {
		r, err := rulesFile{file}.rule(n)
		if err != nil {
			return nil, err
		}
		rules = append(rules, r)
	}
	return rules, nil
}

type rulesFile struct{ document.File }

func (f rulesFile) rule(n ast.Node) (Rule, error) {
	keys := append([]string{keyCharge, keyWorkload, keyComponent}, selectors...)
	known := "a rule has charge, one of " + strings.Join(selectors, ", ") + ", and may have workload and component"
	m, ok := n.(*ast.MappingNode)
	if !ok {
		return Rule{}, f.Fail(n, known, "a rule must be keys with values")
	}
	r := Rule{Where: f.Place(n)}
	seen := map[string]bool{}
	for _, v := range m.Values {
		key, isText := v.Key.(*ast.StringNode)
		if !isText {
			return Rule{}, f.Fail(v.Key, known, "a key must be a plain word")
		}
		if seen[key.Value] {
			return Rule{}, f.Fail(v.Key, "give it once", "%q is there twice", clip(key.Value))
		}
		seen[key.Value] = true
		var value string
		switch n := v.Value.(type) {
		case *ast.StringNode:
			value = n.Value
		case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
			value = n.GetToken().Value
		default:
			return Rule{}, f.Fail(v.Value, `a pattern with a * at its start stands in quotes: comm: "*proxy"`,
				"%q must be a single value", clip(key.Value))
		}
		if value == "" {
			return Rule{}, f.Fail(v.Value, "leave it out, or give it a value", "%q is empty", clip(key.Value))
		}
		switch key.Value {
		case keyCharge:
			if !slices.Contains(charges, value) {
				return Rule{}, f.Fail(v.Value, text.Suggest(value, charges), "there is no charge %q", clip(value))
			}
			r.Charge = ledger.Charge(value)
		case keyWorkload:
			r.Workload = value
		case keyComponent:
			r.Component = value
		case string(Cgroup), string(Comm), string(Program), string(Map):
			if r.By != "" {
				return Rule{}, f.Fail(v.Key, "make it two rules", "a rule has one selector; this has %s and %s", r.By,
					key.Value)
			}
			r.By, r.Pattern = By(key.Value), value
		default:
			return Rule{}, f.Fail(v.Key, withGuess(key.Value, keys, known), "there is no key %q in a rule",
				clip(key.Value))
		}
	}
	switch {
	case r.Charge == "":
		return Rule{}, f.Fail(n, "add charge: workload, tare or load", "the rule does not say whose what it matches is")
	case r.By == "":
		return Rule{}, f.Fail(n, "add one of "+strings.Join(selectors, ", "), "the rule does not say what it matches")
	}
	return r, r.check(func(hint, format string, args ...any) error { return f.Fail(n, hint, format, args...) })
}
