package charge

import (
	"errors"
	"strings"
	"testing"

	"tare/internal/lib/fault"
	"tare/internal/scale/ledger"
)

func TestParseFlag(t *testing.T) {
	for _, c := range []struct {
		charge     ledger.Charge
		text, want string
	}{
		{ledger.ChargeWorkload, "shop=/kubepods/shop*", "--workload 'shop=cgroup=/kubepods/shop*'"},
		{ledger.ChargeWorkload, "ns/shop=cgroup=/a,component=web", "--workload 'ns/shop=cgroup=/a,component=web'"},
		{ledger.ChargeWorkload, "shop=comm=java*", "--workload 'shop=comm=java*'"},
		{ledger.ChargeTare, "cgroup=/kube-system/*", "--tare 'cgroup=/kube-system/*'"},
		{ledger.ChargeTare, "comm=containerd-shim", "--tare 'comm=containerd-shim'"},
		{ledger.ChargeTare, "program=cil_*,component=agent,workload=shop",
			"--tare 'program=cil_*,workload=shop,component=agent'"},
		{ledger.ChargeTare, `map=a\,b=c`, `--tare 'map=a\,b=c'`},
		{ledger.ChargeTare, "comm=exactly-15-char", "--tare 'comm=exactly-15-char'"},
		{ledger.ChargeLoad, "cgroup=/k6", "--load 'cgroup=/k6'"},
		{ledger.ChargeWorkload, "shop=namespace=shop", "--workload 'shop=namespace=shop'"},
		{ledger.ChargeWorkload, "{namespace}/{pod}=namespace=shop*", "--workload '{namespace}/{pod}=namespace=shop*'"},
		{ledger.ChargeTare, "component=sidecar,container=envoy,namespace=shop",
			"--tare 'namespace=shop,container=envoy,component=sidecar'"},
		{ledger.ChargeTare, "container=envoy,component=sidecar,namespace=shop",
			"--tare 'namespace=shop,container=envoy,component=sidecar'"},
		{ledger.ChargeTare, "label=app=web=x*", "--tare 'label=app=web=x*'"},
		{ledger.ChargeTare, "comm=pause,container=(sandbox)", "--tare 'container=(sandbox),comm=pause'"},
		{ledger.ChargeTare, "unit=kubelet.service", "--tare 'unit=kubelet.service'"},
		{ledger.ChargeLoad, "comm=wrk", "--load 'comm=wrk'"},
	} {
		r, err := ParseFlag(c.charge, c.text)
		if got := r.String(); err != nil || got != c.want {
			t.Errorf("--%s '%s': %s, %v", c.charge, c.text, got, err)
		}
	}
}

func TestParseFlagErrors(t *testing.T) {
	for _, c := range []struct {
		charge           ledger.Charge
		text, want, hint string
	}{
		{ledger.ChargeWorkload, "/kubepods", "needs a name", "--workload 'shop=namespace=shop'"},
		{ledger.ChargeWorkload, "", "needs a name", "shop="},
		{ledger.ChargeWorkload, "cgroup=/a", "has no name", "--workload 'NAME=cgroup=/a'"},
		{ledger.ChargeWorkload, "=/a", "has no name", "shop"},
		{ledger.ChargeWorkload, "shop=a", `no selector "a"`, "cgroup, namespace"},
		{ledger.ChargeWorkload, "sh op=/a", "is not a valid name for a workload", "letters"},
		{ledger.ChargeWorkload, "shop=/a,workload=b", "two names", "once"},
		{ledger.ChargeTare, "/kube-system", "does not say what it matches", "cgroup=/kube-system"},
		{ledger.ChargeTare, "", `no selector ""`, "--tare"},
		{ledger.ChargeTare, "cgruop=/a", `no selector "cgruop"`, "did you mean cgroup?"},
		{ledger.ChargeTare, "cgroup=kube-system", "begins with /", "cgroup=/kube-system"},
		{ledger.ChargeTare, "cgroup=", "empty", "cgroup=NAME"},
		{ledger.ChargeTare, "comm=containerd-shim-runc-v2", "15 bytes", "shorten"},
		{ledger.ChargeTare, "comm=*containerd-shim-", "15 bytes", "shorten"},
		{ledger.ChargeTare, "cgroup=/a,b", `no "b"`, `\,`},
		{ledger.ChargeTare, "cgroup=/a,componet=x", `no "componet"`, "did you mean component?"},
		{ledger.ChargeTare, "cgroup=/a,component=x,component=y", "twice", "once"},
		{ledger.ChargeTare, "cgroup=/a,component=", "empty", "leave it out"},
		{ledger.ChargeTare, "cgroup=/a\x1b", "control characters", ""},
		{ledger.ChargeTare, "component=web", "does not say what it matches", "namespace"},
		{ledger.ChargeTare, "owner=web", `no selector "owner"`, "namespace=NAMESPACE,pod=NAME-*"},
		{ledger.ChargeTare, "namespace=shop,deployment=web", `no "deployment"`, "name the pods"},
		{ledger.ChargeTare, "namespaces=shop", `no selector "namespaces"`, "did you mean namespace?"},
		{ledger.ChargeTare, "namespace=shop,namespace=bank", "twice", "once"},
		{ledger.ChargeTare, "namespace=shop,pod=", "empty", "pod=NAME"},
		{ledger.ChargeTare, "namespace=shop,map=x", "stand alone", "two rules"},
		{ledger.ChargeTare, "label=app", "KEY=VALUE", "label=app=*"},
		{ledger.ChargeWorkload, "{pods}=namespace=shop", "is not a valid name for a workload", "{pod}"},
		{ledger.ChargeLoad, "cgroup=/a,workload=b", `no "workload"`, "component"},
	} {
		_, err := ParseFlag(c.charge, c.text)
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want) ||
			!strings.Contains(fault.HintOf(err), c.hint) ||
			!strings.HasPrefix(err.Error(), "--"+string(c.charge)) {
			t.Errorf("--%s '%s': %v (%s), want %q and a hint with %q", c.charge, c.text, err, fault.HintOf(err),
				c.want, c.hint)
		}
	}
}

func TestParseFile(t *testing.T) {
	rules, err := ParseFile("r.yaml", []byte(`# whose is what
rules:
- {charge: workload, workload: shop, cgroup: /kubepods/shop*}
- charge: tare
  workload: shop
  component: proxy
  cgroup: "/**/istio-proxy"
- {charge: load, comm: wrk}
`))
	var got []string
	for _, r := range rules {
		got = append(got, r.Where+" "+r.String())
	}
	want := "r.yaml:3:3 --workload 'shop=cgroup=/kubepods/shop*'|r.yaml:4:3 --tare " +
		"'cgroup=/**/istio-proxy,workload=shop,component=proxy'|r.yaml:8:3 --load 'comm=wrk'"
	if err != nil || strings.Join(got, "|") != want || check(rules) != nil {
		t.Errorf("%v\n got %s\nwant %s", err, strings.Join(got, "|"), want)
	}
	for text, want := range map[string]string{
		"":                                     "r.yaml: the file has no rules",
		"rules: []":                            "r.yaml: the file has no rules",
		"rules: a":                             `r.yaml:1:1: the file must have the one key "rules"`,
		"- a":                                  `r.yaml:1:1: the file must have the one key "rules"`,
		"rules: [a]":                           "r.yaml:1:9: a rule must be keys with values",
		"rules:\n- cgroup: /a":                 "r.yaml:2:3: the rule does not say to what",
		"rules:\n- charge: tare":               "r.yaml:2:3: the rule does not say what it matches",
		"rules:\n- charge: self\n  cgroup: /a": `r.yaml:2:11: there is no charge "self"`,
		"rules:\n- charge: workload\n  cgroup: /a":            "r.yaml:2:3: the workload has no name",
		"rules:\n- charge: load\n  workload: a\n  cgroup: /a": "r.yaml:2:3: a load belongs to no workload",
		"rules:\n- charge: tare\n  cgroup: /a\n  program: b":  "r.yaml:2:3: program and map stand alone",
		"rules:\n- charge: tare\n  cgruop: /a":                `r.yaml:3:3: there is no key "cgruop"`,
		"rules:\n- charge: tare\n  cgroup: a": "r.yaml:2:3: the path of a control " +
			"group begins with /",
		"rules:\n- charge: tare\n  cgroup: " +
			"[[/a]]": `r.yaml:3:12: "cgroup" must be a single value`,
		"rules:\n- charge: tare\n  cgroup: []":                     `r.yaml:3:11: "cgroup" must be a single value`,
		"rules:\n- charge: tare\n  label: {app: web}":              `"label" must be a single value`,
		"rules:\n- charge: tare\n  label: web":                     "r.yaml:2:3: a label is KEY=VALUE",
		"rules:\n- charge: tare\n  owner: web":                     `there is no key "owner"`,
		"rules:\n- {charge: tare, workload: [a], pod: b}":          `"workload" must be a single value`,
		"rules:\n- {charge: workload, workload: '{node}', pod: b}": `"{node}" is not a valid name for a workload`,
		"rules:\n- {charge: workload, workload: '{pod}', comm: b}": "comm names no group",
		"rules:\n- {charge: tare, namespace: [" + strings.Repeat("a,", 20) + "a], pod: [" + strings.Repeat("b,", 20) +
			"b]}": "make 441 rules; at most 256 are allowed",
		"rules:\n- charge: tare\n  charge: load\n  cgroup: /a":           "r.yaml:3:3: ",
		"rules:\n- {charge: tare, cgroup: /a":                            "this is not YAML",
		"rules:\n- {charge: tare, cgroup: /a, workload: b, component: '": "this is not YAML",
		strings.Repeat("#", maxFileBytes+1):                              "64 KiB",
	} {
		_, err := ParseFile("r.yaml", []byte(text))
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}

func TestCheck(t *testing.T) {
	rules := mustParse(t, "workload shop=/a", "tare cgroup=/b,workload=shpo")
	if err := check(rules); fault.CodeOf(err) != fault.Usage || !strings.Contains(fault.HintOf(err),
		"did you mean shop?") {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
	if err := check(mustParse(t, "tare cgroup=/b,workload=shop", "workload shop=/a")); err != nil {
		t.Error(err)
	}
}

// String returns the rule in the syntax of flags.
func (r Rule) String() string {
	var b strings.Builder
	b.WriteString("--" + string(r.Charge) + " '")
	if r.Charge == ledger.ChargeWorkload {
		b.WriteString(r.Workload + "=")
	}
	b.WriteString(r.Patterns.String())
	if r.Charge == ledger.ChargeTare && r.Workload != "" {
		b.WriteString(",workload=" + r.Workload)
	}
	if r.Component != "" {
		b.WriteString(",component=" + r.Component)
	}
	return b.String() + "'"
}

// Any input gives either a rule or a fault, and a rule that is written out and parsed again is the same.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"shop=/kubepods/shop*", "cgroup=/a,component=b,workload=c", `comm=a\,b`,
		"rules:\n- {charge: tare, cgroup: /a}", "rules: [&a *a]"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		for _, c := range []ledger.Charge{ledger.ChargeWorkload, ledger.ChargeTare, ledger.ChargeLoad} {
			r, err := ParseFlag(c, text)
			if err != nil {
				refused(t, err)
				continue
			}
			matchPath(r.Cgroup, "/a/b/c")
			written := strings.TrimSuffix(strings.SplitN(r.String(), "'", 2)[1], "'")
			again, err := ParseFlag(c, written)
			if again.Where = r.Where; err != nil || again != r {
				t.Errorf("%q is %+v; written out %q it is %+v, %v", text, r, written, again, err)
			}
		}
		if _, err := ParseFile("f", []byte(text)); err != nil {
			refused(t, err)
		}
	})
}

func refused(t *testing.T, err error) {
	t.Helper()
	var e *fault.Error
	if !errors.As(err, &e) || e.Code != fault.Usage || e.Where == "" || e.What == "" {
		t.Errorf("%v: want a fault with code 2 and a place", err)
	}
}

// TestClusterFile: rules for a cluster select only by what the Kubernetes API knows.
func TestClusterFile(t *testing.T) {
	rules, err := ParseClusterFile("rules.yaml", []byte(`rules:
- {charge: tare, component: cdn, owner: [DaemonSet/edge-*, gateway], namespace: edge}
- {charge: workload, label: team=shop}`))
	if err != nil || len(rules) != 3 {
		t.Fatalf("%d rules, %v", len(rules), err)
	}
	edge := &ledger.Name{Namespace: "edge", Pod: "edge-1-x", Container: "main", Labels: map[string]string{"team": "shop"}}
	for i, want := range []struct {
		kind, owner string
		matches     []bool
	}{
		{"DaemonSet", "edge-1", []bool{true, false, true}},
		{"daemonset", "edge-1", []bool{true, false, true}},
		{"Deployment", "edge-1", []bool{false, false, true}},
		{"Deployment", "gateway", []bool{false, true, true}},
	} {
		for j := range rules {
			if got := rules[j].MatchesPod(edge, want.kind, want.owner); got != want.matches[j] {
				t.Errorf("case %d: rule %d matches: %v", i, j, got)
			}
		}
	}
	for text, hint := range map[string]string{
		"rules: [{charge: tare, unit: a}]":        "owner",
		"rules: [{charge: tare, deployment: a}]":  "owner",
		"rules: [{charge: tare, component: cdn}]": "owner",
	} {
		_, err := ParseClusterFile("rules.yaml", []byte(text))
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(fault.HintOf(err), hint) {
			t.Errorf("%s: %v (%s)", text, err, fault.HintOf(err))
		}
	}
}
