package cli

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/lib/fault"
	"tare/internal/scale/charge"
	"tare/internal/scale/ledger"
)

// TestWeighRefusesWrongRules: a wrong rule, or a wrong flag for rows, ends the command before anything is weighed. The
// error says what is wrong, where, and what helps.
func TestWeighRefusesWrongRules(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte("rules:\n- charge: tare\n  cgruop: /a\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args             []string
		where, what, fix string
	}{
		{[]string{"--tare", "/kube-system"}, "--tare '/kube-system'", "what it matches", "cgroup=/kube-system"},
		{[]string{"--workload", "cgroup=/shop"}, "--workload 'cgroup=/shop'", "no name", "NAME=cgroup=/shop"},
		{[]string{"--workload", "shop=/shop", "--tare", "cgroup=/a,workload=shpo"},
			"--tare 'cgroup=/a,workload=shpo'", "no workload", "did you mean shop?"},
		{[]string{"--load", "comm=a-name-that-is-too-long"}, "--load ", "15 bytes", "shorten"},
		{[]string{"--rules", file}, file + ":3:3", `no key "cgruop"`, "did you mean cgroup?"},
		{[]string{"--rules", file + ".not"}, file + ".not", "cannot be read", "its name"},
		{[]string{"--top", "-1"}, "--top -1", "0 or more", "0 for all"},
		{[]string{"--depth", "-2"}, "--depth -2", "0 or more", "0 for all"},
		{[]string{"--match", "kubepods"}, "--match kubepods", "begins with /", "'/**/kubepods'"},
	} {
		root := Command()
		root.SetArgs(append([]string{"weigh"}, c.args...))
		root.SetOut(io.Discard)
		err := root.Execute()
		if fault.CodeOf(err) != fault.Usage || !strings.HasPrefix(err.Error(), c.where) ||
			!strings.Contains(err.Error(), c.what) ||
			!strings.Contains(fault.HintOf(err), c.fix) {
			t.Errorf("%q: %v (%s)", c.args, err, fault.HintOf(err))
		}
	}
}

// TestRulesAreInOrder: rules are in the order of the command line, including those from files.
func TestRulesAreInOrder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(file, []byte("rules: [{charge: load, cgroup: /b}, {charge: load, cgroup: /c}]"),
		0o600); err != nil {
		t.Fatal(err)
	}
	var given []ruleFlag
	for _, f := range []struct {
		charge ledger.Charge
		text   string
	}{{ledger.ChargeTare, "cgroup=/a"}, {"", file}, {ledger.ChargeWorkload, "shop=/d"}, {ledger.ChargeTare,
		"cgroup=/e"}} {
		if err := (&ruleValue{f.charge, &given}).Set(f.text); err != nil {
			t.Fatal(err)
		}
	}
	rules, err := readRules(given, "")
	var got []string
	for _, r := range rules {
		got = append(got, string(r.Charge)+r.Cgroup)
	}
	if want := "tare/a load/b load/c workload/d tare/e"; err != nil || strings.Join(got, " ") != want {
		t.Errorf("%q, %v, want %s", got, err, want)
	}
}

// TestRulesInTheDocumentation: the example of a file of rules in docs/charges.md can be read.
func TestRulesInTheDocumentation(t *testing.T) {
	page, err := os.ReadFile("../../docs/charges.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, found := strings.Cut(string(page), "```yaml\n")
	example, _, ended := strings.Cut(example, "```")
	if !found || !ended {
		t.Fatal("the page has no example")
	}
	rules, err := charge.ParseFile("docs/charges.md", []byte(example))
	if err == nil {
		_, err = charge.Complete(rules, "", "")
	}
	if err != nil || len(rules) < 3 {
		t.Errorf("%d rules, %v", len(rules), err)
	}
}
