package deploy

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tare/test/long"
)

// TestRules has promtool check the rules and run their tests, except those in weekFile.
func TestRules(t *testing.T) {
	check(t, "check", "rules", "--lint=all", "--lint-fatal", rulesFile)
	short := slices.DeleteFunc(testFiles(t), func(name string) bool { return name == weekFile })
	check(t, append([]string{"test", "rules"}, short...)...)
}

// weekFile has the tests of the two alerts that compare with a day or a week ago.
const weekFile = "prometheus/tare_week_test.yaml"

// TestRulesOfAWeek runs the tests of alerts that compare with a day or a week ago.
func TestRulesOfAWeek(t *testing.T) {
	long.Test(t, "20 s of CPU time: promtool evaluates all rules over a week")
	check(t, "test", "rules", weekFile)
}

func check(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(program(t, "promtool"), args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func testFiles(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob("prometheus/*_test.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d files of promtool's tests: %v", len(files), err)
	}
	return files
}

// levels matches names of the form level:metric:operations.
var levels = regexp.MustCompile(`^[a-z_]+:tare_[a-z_]+:[a-z0-9_]+$`)

// TestEveryRuleIsTested: each recording rule has a test of its value, and each alert one at which it fires and one at
// which it does not. An alert has texts that say what happened and what to look at.
func TestEveryRuleIsTested(t *testing.T) {
	type alertTest struct {
		Alertname string
		Expected  []any `yaml:"exp_alerts"`
	}
	fires, silent := map[string]bool{}, map[string]bool{}
	var queries []string
	for _, path := range testFiles(t) {
		var file struct {
			Tests []struct {
				Queries []struct{ Expr string } `yaml:"promql_expr_test"`
				Alerts  []alertTest             `yaml:"alert_rule_test"`
			}
		}
		readYAML(t, path, &file)
		for _, test := range file.Tests {
			for _, q := range test.Queries {
				queries = append(queries, q.Expr)
			}
			for _, a := range test.Alerts {
				if len(a.Expected) > 0 {
					fires[a.Alertname] = true
				} else {
					silent[a.Alertname] = true
				}
			}
		}
	}
	for _, r := range readRules(t) {
		switch {
		case r.Record != "":
			if !slices.ContainsFunc(queries, func(q string) bool { return strings.HasPrefix(q, r.Record) }) {
				t.Errorf("no promql_expr_test has a value of %s", r.Record)
			}
			if !levels.MatchString(r.Record) {
				t.Errorf("%s is not of the form level:metric:operations", r.Record)
			}
		case !fires[r.Alert] || !silent[r.Alert]:
			t.Errorf("%s has no case that fires, or none that does not", r.Alert)
		case r.Annotations["summary"] == "" || r.Annotations["description"] == "":
			t.Errorf("%s has no summary or no description", r.Alert)
		}
	}
}
