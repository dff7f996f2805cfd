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
	maxName      = 64   // bytes of the name of a workload or component
	// kernelName is the length in bytes to which Linux limits the names of processes (TASK_COMM_LEN), eBPF programs and
	// maps (BPF_OBJ_NAME_LEN), not counting the final NUL.
	kernelName = 15
)

// charges are those that a rule can assign. The cost of the measuring process itself needs no rule.
var charges = []string{string(ledger.ChargeWorkload), string(ledger.ChargeTare), string(ledger.ChargeLoad)}

// The keys of a rule apart from selectors.
const (
	keyCharge    = "charge"
	keyWorkload  = "workload"
	keyComponent = "component"
)

// ParseFlag parses the value of --workload (NAME=/PATH or NAME=SELECTOR=PATTERN), --tare or --load (SELECTOR=PATTERN).
// More selectors may follow, and component=NAME and, for --tare, workload=NAME, all separated by commas. Its errors are
// faults with code Usage.
func ParseFlag(charge ledger.Charge, text string) (Rule, error) {
	r := Rule{Charged: ledger.Charged{Charge: charge}, Where: fmt.Sprintf("--%s '%s'", charge, clip(text))}
	example := map[ledger.Charge]string{
		ledger.ChargeWorkload: "such as --workload 'shop=namespace=shop' or --workload 'db=unit=postgresql*'",
		ledger.ChargeTare:     "such as --tare 'namespace=kube-system' or --tare 'unit=containerd.service'",
		ledger.ChargeLoad:     "such as --load 'pod=k6-*'",
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
			text = selectCgroup + "=" + text
		}
	}
	further := []string{keyComponent}
	if charge == ledger.ChargeTare {
		further = append(further, keyWorkload)
	}
	for i, piece := range split(text) {
		key, value, found := strings.Cut(piece, "=")
		into := r.at(key)
		if key == selectOwner {
			into = nil
		}
		switch {
		case i == 0 && strings.HasPrefix(key, "/"):
			return fail(fmt.Sprintf("put what it is first: cgroup=%s", clip(piece)), "the rule does not say what it matches")
		case i == 0 && (!found || into == nil && !slices.Contains(further, key)):
			return fail(hintFor(key, selectors, "a rule selects by "+strings.Join(selectors, ", ")+", "+example),
				"there is no selector %q", clip(key))
		case into != nil && value == "":
			return fail(fmt.Sprintf("name what it matches: %s=NAME, with * for any characters", key), "the pattern is empty")
		case into != nil:
		case slices.Contains(further, key):
			into = r.key(key)
		case key == keyWorkload && charge == ledger.ChargeWorkload:
			return fail("name it once", "the workload has two names")
		default:
			may := "it may have " + strings.Join(further, " and ") + `, and selectors; a comma that belongs to the pattern ` +
				`is written \,`
			return fail(hintFor(key, slices.Concat(further, selectors), may), "there is no %q in such a rule", clip(key))
		}
		if *into != "" {
			return fail("give it once", "%q is there twice", key)
		}
		if *into = value; value == "" {
			return fail("leave it out, or give it a name", "%q is empty", key)
		}
	}
	if r.Patterns == (Patterns{}) {
		return fail("add one of "+strings.Join(selectors, ", "), "the rule does not say what it matches")
	}
	return r, r.check(func(hint, format string, args ...any) error {
		return fault.New(fault.Usage, r.Where, hint, format, args...)
	})
}

// owners are kinds of Kubernetes objects that pods belong to. Only the Kubernetes API knows which pod belongs to which
// object.
var owners = []string{"owner", "deployment", "daemonset", "statefulset", "replicaset", "job", "cronjob", "node"}

// hintFor explains an unknown key.
func hintFor(key string, known []string, hint string) string {
	if slices.Contains(owners, strings.ToLower(key)) {
		return fmt.Sprintf("only Kubernetes' API knows which pods belong to which %s, and it is not asked: name the pods, "+
			"as in namespace=NAMESPACE,pod=NAME-*; kubectl tare weigh --rules knows owners", key)
	}
	return withGuess(key, known, hint)
}

// split splits at commas that are not escaped by a backslash.
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

// clip shortens user input for messages. It leaves room for a path.
func clip(s string) string { return text.ClipTo(s, 80) }

// check returns an error if a value of the rule is invalid.
func (r *Rule) check(fail func(hint, format string, args ...any) error) error {
	given := r.given()
	object := r.Program != "" || r.Map != ""
	switch {
	case r.Charge == ledger.ChargeWorkload && r.Workload == "":
		return fail("give it one, such as shop", "the workload has no name")
	case r.Charge == ledger.ChargeLoad && r.Workload != "":
		return fail("leave the workload out", "a load belongs to no workload")
	case len(given) > 1 && object:
		return fail("make it two rules", "program and map stand alone in a rule; this has %s", strings.Join(given, " and "))
	case r.template() && !r.byName() && r.Cgroup == "":
		return fail("select by namespace, pod, container, label or unit", "%s names no group that the workload could be "+
			"called after", given[0])
	}
	for _, s := range given {
		if err := checkPattern(s, *r.at(s), fail); err != nil {
			return err
		}
	}
	workload := r.Workload
	for _, p := range places {
		workload = strings.ReplaceAll(workload, p.place, "x")
	}
	if strings.ContainsAny(workload, "{}") {
		return fail("a workload can be called after {namespace}, {pod}, {container} and {unit} of what the rule matches",
			"%q is not a valid name for a workload", clip(r.Workload))
	}
	if err := checkName("workload", workload, fail); err != nil {
		return err
	}
	return checkName("component", r.Component, fail)
}

func checkName(what, name string, fail func(hint, format string, args ...any) error) error {
	ok := func(c rune) bool {
		return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' ||
			strings.ContainsRune("._-/:@", c)
	}
	if len(name) > maxName || strings.ContainsFunc(name, func(c rune) bool { return !ok(c) }) ||
		strings.HasPrefix(name, "/") {
		return fail(fmt.Sprintf("letters, digits and . _ - / : @, at most %d, and no / at the start", maxName),
			"%q is not a valid name for a %s", clip(name), what)
	}
	return nil
}

func checkPattern(selector, pattern string, fail func(hint, format string, args ...any) error) error {
	switch {
	case len(pattern) > maxPattern:
		return fail("", "the pattern has %d bytes; the longest path has %d", len(pattern), maxPattern)
	case strings.ContainsFunc(pattern, func(c rune) bool { return c < ' ' || c == 0x7f }):
		return fail("", "the pattern has control characters")
	case selector == selectCgroup && !strings.HasPrefix(pattern, "/"):
		return fail(fmt.Sprintf("try cgroup=/%s, or cgroup=/**/%s wherever it is; 'tare weigh' lists them",
			clip(pattern), clip(pattern)),
			"the path of a control group begins with /")
	case selector == selectLabel && strings.IndexByte(pattern, '=') <= 0:
		return fail(fmt.Sprintf("say label=%s=VALUE, or label=%[1]s=* for any value", clip(strings.Trim(pattern, "="))),
			"a label is KEY=VALUE")
	case selector == selectComm && literals(pattern) > kernelName:
		return fail("shorten it, with a * at its end",
			"the kernel keeps %d bytes of the name of a process: %q matches none", kernelName, clip(pattern))
	}
	return nil
}

// Complete appends the rules of a profile, unless its name is empty, and checks all rules as a whole. where is the
// source of the profile's name, such as a flag, for the error.
func Complete(rules []Rule, profile, where string) ([]Rule, error) {
	if profile != "" {
		more, err := Profile(profile, where)
		if err != nil {
			return nil, err
		}
		rules = append(rules, more...)
	}
	return rules, check(rules)
}

// check returns an error if rules contradict each other.
func check(rules []Rule) error {
	var names []string
	for _, r := range rules {
		if r.Charge == ledger.ChargeWorkload {
			names = append(names, r.Workload)
		}
		if r.template() {
			return nil // the workloads are known only with a ledger
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

// ParseFile parses a file of rules. Its errors are faults with code Usage and the position as file:line:column.
func ParseFile(file string, data []byte) ([]Rule, error) {
	return rulesFile{document.File(file), selectors}.parse(data)
}

// ParseClusterFile is ParseFile for rules that select pods by what the Kubernetes API knows about them, including
// owners.
func ParseClusterFile(file string, data []byte) ([]Rule, error) {
	return rulesFile{document.File(file), clusterSelectors}.parse(data)
}

func (f rulesFile) parse(data []byte) ([]Rule, error) {
	file := string(f.File)
	const example = "a file of rules begins so: 'rules: [{charge: tare, cgroup: /kube-system}]'; see docs/charges.md"
	documents, err := f.Parse(data, document.Limit{
		What: "a file of rules", Bytes: maxFileBytes, Hint: "write one pattern with * instead of many names",
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
		if rules, err = f.list(list); err != nil {
			return nil, err
		}
	}
	if len(rules) == 0 {
		return nil, fault.New(fault.Usage, file, example, "the file has no rules")
	}
	return rules, nil
}

// ParseList parses a list of rules in a file. Its errors have the code and the position that ParseFile's have.
func ParseList(file document.File, list *ast.SequenceNode) (rules []Rule, err error) {
	return rulesFile{file, selectors}.list(list)
}

func (f rulesFile) list(list *ast.SequenceNode) (rules []Rule, err error) {
	for _, n := range list.Values {
		some, err := f.rules(n)
		if err != nil {
			return nil, err
		}
		rules = append(rules, some...)
	}
	return rules, nil
}

type rulesFile struct {
	document.File
	selectors []string // the selectors that its rules may use
}

// rules parses an element of the list. It is one rule, or several if a selector has a list of patterns.
func (f rulesFile) rules(n ast.Node) ([]Rule, error) {
	keys := append([]string{keyCharge, keyWorkload, keyComponent}, f.selectors...)
	known := "a rule has charge, some of " + strings.Join(f.selectors, ", ") + ", and may have workload and component"
	if !document.IsMapping(n) {
		return nil, f.Fail(n, known, "a rule must be keys with values")
	}
	rules := []Rule{{Where: f.Place(n)}}
	err := f.Each(n, "a rule", func(key string, at, value document.Node) error {
		if !slices.Contains(keys, key) {
			hint := hintFor(key, keys, known)
			if slices.Contains(keys, selectOwner) {
				hint = withGuess(key, keys, known)
			}
			return f.Fail(at, hint, "there is no key %q in a rule", clip(key))
		}
		values, err := f.values(key, value)
		if err != nil {
			return err
		}
		if key == keyCharge && !slices.Contains(charges, values[0]) {
			return f.Fail(value, text.Suggest(values[0], charges), "there is no charge %q", clip(values[0]))
		}
		if rules = each(rules, key, values); len(rules) > maxRules {
			return f.Fail(n, "write one pattern with * instead of many names",
				"the lists of the rule make %d rules; at most %d are allowed", len(rules), maxRules)
		}
		return nil
	})
	switch r := &rules[0]; {
	case err != nil:
		return nil, err
	case r.Charge == "":
		return nil, f.Fail(n, "add charge: workload, tare or load", "the rule does not say to what its matches are charged")
	case r.Patterns == Patterns{}:
		return nil, f.Fail(n, "add one of "+strings.Join(f.selectors, ", "), "the rule does not say what it matches")
	}
	for i := range rules {
		if r := &rules[i]; r.Charge == ledger.ChargeWorkload && r.Workload == "" && slices.Contains(keys, selectOwner) {
			r.Workload = string(ledger.ChargeWorkload) // not shown: in a cluster, a pod's workload is its owner
		}
		err := rules[i].check(func(hint, format string, args ...any) error { return f.Fail(n, hint, format, args...) })
		if err != nil {
			return nil, err
		}
	}
	return rules, nil
}

// maxRules bounds the number of rules that the lists of one rule expand to.
const maxRules = 256

// each returns a copy of each rule for each value, with key set to that value.
func each(rules []Rule, key string, values []string) (all []Rule) {
	for _, r := range rules {
		for _, v := range values {
			*r.key(key) = v
			all = append(all, r)
		}
	}
	return all
}

// values returns the value of a key, or all values if a selector has a list.
func (f rulesFile) values(key string, n ast.Node) (values []string, err error) {
	items := []ast.Node{n}
	if s, is := n.(*ast.SequenceNode); is && slices.Contains(f.selectors, key) && len(s.Values) > 0 {
		items = s.Values
	}
	if len(items) > maxRules {
		return nil, f.Fail(n, "write one pattern with * instead of many names", "%q has more than %d values",
			clip(key), maxRules)
	}
	for _, item := range items {
		value, err := f.Scalar(item, key)
		if err != nil {
			return nil, f.Fail(item, `quote a pattern that begins with *, as in comm: "*proxy"; a label is `+
				`written KEY=VALUE`, "%q must be a single value", clip(key))
		}
		if value == "" {
			return nil, f.Fail(item, "leave it out, or give it a value", "%q is empty", clip(key))
		}
		values = append(values, value)
	}
	return values, nil
}
