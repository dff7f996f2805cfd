package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestReadme has promtool check the configurations of Prometheus that the page shows, and looks for the alerts and the
// files that it names.
func TestReadme(t *testing.T) {
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	promtool := program(t, "promtool")
	blocks := regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(text, -1)
	if len(blocks) != 2 {
		t.Errorf("the page has %d configurations", len(blocks))
	}
	// Debian's Prometheus knows no Kubernetes.
	discovery := regexp.MustCompile(`(?m)^  kubernetes_sd_configs:\n(?:  [- ] .*\n)+?(  relabel_configs)`)
	for _, b := range blocks {
		shown := discovery.ReplaceAllString(string(b[1]), "  static_configs: [{targets: [node-1:9633]}]\n$1")
		config := filepath.Join(t.TempDir(), "prometheus.yml")
		write(t, config, strings.ReplaceAll(shown, "/etc/prometheus/tare.rules.yaml", rules))
		if out, err := exec.Command(promtool, "check", "config", config).CombinedOutput(); err != nil {
			t.Errorf("promtool check config: %v\n%s\n%s", err, out, b[1])
		}
	}
	for _, r := range readRules(t) {
		if r.Alert != "" && !strings.Contains(string(text), "| `"+r.Alert+"` |") {
			t.Errorf("the table has no %s", r.Alert)
		}
	}
	for _, m := range regexp.MustCompile("`((?:kubernetes|prometheus|grafana)/[^`*]*)`").FindAllSubmatch(text, -1) {
		if _, err := os.Stat(string(m[1])); err != nil {
			t.Error(err)
		}
	}
}
