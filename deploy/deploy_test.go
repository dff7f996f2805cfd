package deploy

import (
	"os"
	"testing"

	"github.com/goccy/go-yaml"

	"tare/test/binary"
)

const (
	rulesFile     = "prometheus/tare.rules.yaml"
	dashboardFile = "grafana/tare.json"
)

// program returns the path of prometheus or promtool, and skips the test where it is not installed.
func program(t *testing.T, name string) string {
	t.Helper()
	path, err := binary.Prometheus(name)
	if err != nil {
		t.Skip(err)
	}
	return path
}

// rule is a recording rule or an alert.
type rule struct {
	Record, Alert, Expr string
	Annotations         map[string]string
}

func readRules(t *testing.T) []rule {
	t.Helper()
	var file struct{ Groups []struct{ Rules []rule } }
	readYAML(t, rulesFile, &file)
	var all []rule
	for _, g := range file.Groups {
		all = append(all, g.Rules...)
	}
	if len(all) < 20 {
		t.Fatalf("%s has %d rules", rulesFile, len(all))
	}
	return all
}

func readYAML(t *testing.T, path string, into any) {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}
