package deploy

import (
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/test/binary"
	"tare/test/port"
)

// readmeBlocks returns the code blocks of the page in a language, as the page marks them.
func readmeBlocks(t *testing.T, language string) []string {
	t.Helper()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for _, m := range regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllSubmatch(text, -1) {
		blocks = append(blocks, string(m[1]))
	}
	return blocks
}

// readmeScrapes returns the configurations of Prometheus on the page. The first names the machines to scrape, the
// second does so with TLS and a password, and the third has Kubernetes discover them.
func readmeScrapes(t *testing.T) []string {
	t.Helper()
	return slices.DeleteFunc(readmeBlocks(t, "yaml"), func(b string) bool {
		return !strings.HasPrefix(b, "scrape_configs:")
	})
}

// scraping returns a configuration of the page, changed to scrape only the agent at an address, every second, with the
// files in dir.
func scraping(shown, address, dir string) string {
	return strings.NewReplacer("node-1:9633, node-2:9633", address, "/etc/prometheus/", dir+"/",
		"scrape_interval: 15s", "scrape_interval: 1s").Replace(shown)
}

// TestReadmeTLS makes the certificate and the password as the page does, and has Prometheus scrape the agent with them.
func TestReadmeTLS(t *testing.T) {
	prometheus := program(t, "prometheus")
	for _, needed := range []string{"openssl", "htpasswd"} {
		if _, err := exec.LookPath(needed); err != nil {
			t.Skipf("needs %s", needed)
		}
	}
	shell := readmeBlocks(t, "sh")
	if len(shell) != 1 {
		t.Fatalf("the page has %d shell scripts", len(shell))
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "agent.yaml"), "")
	script := exec.Command("sh", "-e", "-c", strings.ReplaceAll(shell[0], "/etc/tare", dir))
	if out, err := script.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s\n%s", err, out, shell[0])
	}
	path := filepath.Join(dir, "tare-agent")
	if err := binary.Program(path, "./cmd/tare-agent"); err != nil {
		t.Fatal(err)
	}
	address := port.Free(t)
	start(t, path, "--config", filepath.Join(dir, "agent.yaml"), "--listen", address)

	rules, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	for link, file := range map[string]string{"tare-agent.crt": "agent.crt", "tare-agent.password": "agent.password",
		"tare.rules.yaml": rules} {
		if err := os.Symlink(file, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	config := scraping(readmeScrapes(t)[1], address, dir)
	if !strings.Contains(config, "tls_config: {") {
		t.Fatalf("no configuration with TLS:\n%s", config)
	}
	p := startPrometheus(t, prometheus, strings.Replace(config, "tls_config: {", "tls_config: {server_name: node-1, ", 1))
	machine, _, _ := strings.Cut(address, ":")
	up := `up{job="tare-agent", instance="` + machine + `"} == 1`
	for end := time.Now().Add(time.Minute); len(p.query(t, up)) == 0; time.Sleep(200 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s has no result, up is %v", up, p.query(t, "up"))
		}
	}
	if r, err := http.Get("https://" + address + "/metrics"); err == nil {
		r.Body.Close()
		t.Error("a client without the certificate is answered")
	}
}

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
	dir := t.TempDir()
	for _, name := range []string{"tare-agent.crt", "tare-agent.password"} {
		write(t, filepath.Join(dir, name), "")
	}
	if err := os.Symlink(rules, filepath.Join(dir, "tare.rules.yaml")); err != nil {
		t.Fatal(err)
	}
	scrapes := readmeScrapes(t)
	if len(scrapes) != 3 {
		t.Errorf("the page has %d configurations of Prometheus", len(scrapes))
	}
	// Debian's Prometheus knows no Kubernetes.
	discovery := regexp.MustCompile(`(?m)^    kubernetes_sd_configs:\n(?:    [- ] .*\n)+?(    relabel_configs)`)
	for _, scrape := range scrapes {
		shown := discovery.ReplaceAllString(scrape, "    static_configs: [{targets: [node-1:9633]}]\n$1")
		// The job is added to those of Debian's configuration, whose lists are indented by two spaces.
		shown = strings.Replace(shown, "scrape_configs:\n", "scrape_configs:\n  - job_name: node\n"+
			"    static_configs:\n      - targets: ['localhost:9100']\n", 1)
		config := filepath.Join(dir, "prometheus.yml")
		write(t, config, strings.ReplaceAll(shown, "/etc/prometheus/", dir+"/"))
		if out, err := exec.Command(promtool, "check", "config", config).CombinedOutput(); err != nil {
			t.Errorf("promtool check config: %v\n%s\n%s", err, out, scrape)
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
