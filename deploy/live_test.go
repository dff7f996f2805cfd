package deploy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"

	"tare/internal/scale/host/cgroup"
	"tare/test/binary"
	"tare/test/long"
	"tare/test/port"
)

// plantedName is the name of the eBPF program that is the load.
const plantedName = "tare_test_plant"

// empty holds the queries that may have no result: by a part of the query, the reason.
var empty = map[string]string{
	// Where the machine is too busy to measure what these cost, the agent warns (stats-cost, witness-cost).
	`tare_agent_bpf_stats_seconds_total{job`: "the cost of the kernel's run statistics is not known",
	`tare_agent_witness_seconds_total{job`:   "the cost of looking for stolen time is not known",
	"tare_node_part_cpu_seconds_total":       "the node is the whole machine, and no part of it as a container (kind) is",
}

// TestAgainstPrometheus runs every query of the dashboard and every rule on a real Prometheus, which scrapes a real
// agent while an eBPF program is under load. Each must have a result, unless it is in empty. The series that an alert
// looks at must exist, though the alert itself must not fire.
func TestAgainstPrometheus(t *testing.T) {
	long.Test(t, "1 min: a Prometheus that scrapes an agent until all rules have results")
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	group, root := makeContainer(t)
	startPlanted(t, group)
	address, agent := startAgent(t, group, root)
	dir := t.TempDir()
	file, err := filepath.Abs(rulesFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(file, filepath.Join(dir, "tare.rules.yaml")); err != nil {
		t.Fatal(err)
	}
	p := startPrometheus(t, program(t, "prometheus"), "global: {evaluation_interval: 1s}\n"+
		scraping(readmeScrapes(t)[0], address, dir))
	rules := readRules(t)
	p.wait(t, rules, agent)

	t.Run("rules", func(t *testing.T) {
		for _, r := range rules {
			if r.Record != "" {
				p.has(t, r.Record, r.Record, r.Expr)
				continue
			}
			p.query(t, r.Expr)
			for _, s := range selectors.FindAllString(r.Expr, -1) {
				p.has(t, r.Alert, s, s)
			}
		}
	})
	t.Run("dashboard", func(t *testing.T) { p.dashboard(t) })
	t.Run("budget", func(t *testing.T) {
		// This divides the counters themselves: of an agent that has just started, rate() would extrapolate each line by a
		// different amount.
		const lines = `(sum(tare_node_cpu_seconds_total) - sum(tare_node_cpu_counted_twice_seconds_total)` +
			` - sum(tare_node_cpu_ahead_seconds)) / sum(tare_node_cpu_capacity_seconds_total)`
		if got := p.query(t, lines); len(got) != 1 || math.Abs(got[0].value-1) > 1e-6 {
			t.Errorf("the lines of the budget are %v of the capacity, want 1", got)
		} else {
			t.Logf("the lines of the budget are %.5f of the capacity", got[0].value)
		}
	})
	t.Run("README", func(t *testing.T) {
		text, err := os.ReadFile("README.md")
		if err != nil {
			t.Fatal(err)
		}
		queries := regexp.MustCompile(`(?m)^    (topk\(.+)$`).FindAllSubmatch(text, -1)
		if len(queries) != 1 {
			t.Fatalf("the page has %d queries", len(queries))
		}
		machine, _, _ := strings.Cut(address, ":")
		expr := strings.NewReplacer("node-1", machine, "[5m]", "[1m]").Replace(string(queries[0][1]))
		if got := p.query(t, expr); len(got) == 0 || got[0].labels["pod"] != pod {
			t.Errorf("%s: %v, want pod %s first", expr, got, pod)
		}
	})
	t.Run("payer", func(t *testing.T) {
		ran := p.query(t, `sum(increase(tare_bpf_program_run_seconds_total{program="`+plantedName+`"}[1m]))`)
		paid := p.query(t, `topk(1, sum by (namespace, pod, container, program) (increase(tare_bpf_payer_seconds_total[1m])))`)
		if len(ran) != 1 || len(paid) != 1 || paid[0].labels["program"] != plantedName {
			t.Fatalf("%s ran for %v, and who pays most is %v", plantedName, ran, paid)
		}
		if who := paid[0].labels; who["namespace"] != namespace || who["pod"] != pod || who["container"] != container {
			t.Errorf("who pays is %v, want container %s of pod %s in namespace %s", who, container, pod, namespace)
		}
		// The agent splits run time once it has enough samples: of the last minute's, a part is not split yet, and some of
		// the minute before is included.
		if part := paid[0].value / ran[0].value; part < 0.5 || part > 1.5 {
			t.Errorf("%s ran for %v, and its payer has %v", plantedName, ran, paid)
		}
	})
}

// The planted program runs in a container of this pod.
const (
	namespace, pod, container = "shop", "web-0", "php"
	containerID               = "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00"
)

// makeContainer makes a control group as containerd does for a container of Kubernetes, and, in another root, the state
// that containerd keeps of the container. It returns the group's path, and the root.
func makeContainer(t *testing.T) (group, root string) {
	t.Helper()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	top := fmt.Sprintf("/tare-test-%d-deploy", os.Getpid())
	group = top + "/cri-containerd-" + containerID + ".scope"
	for _, h := range layout.Hierarchies {
		if !h.V2 && !h.Has("cpuacct") && !h.Has("cpu") && !h.Has("memory") {
			continue
		}
		for _, dir := range []string{top, group} {
			dir = filepath.Join(h.Mount, dir)
			if err := os.Mkdir(dir, 0o755); err != nil && !os.IsExist(err) {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
					t.Errorf("removing a group of the test: %v", err)
				}
			})
		}
	}
	root = t.TempDir()
	bundle := filepath.Join(root, "run/containerd/io.containerd.runtime.v2.task/k8s.io", containerID)
	if err := os.MkdirAll(bundle, 0o755); err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(bundle, "config.json"), fmt.Sprintf(`{"annotations": {"io.kubernetes.cri.container-name": %q,
		"io.kubernetes.cri.sandbox-name": %q, "io.kubernetes.cri.sandbox-namespace": %q}}`, container, pod, namespace))
	return group, root
}

// plantedVariable, if set, makes this test binary the planted program's process, in the control group that the variable
// names.
const plantedVariable = "TARE_TEST_PLANTED"

func TestMain(m *testing.M) {
	if group := os.Getenv(plantedVariable); group != "" {
		if err := runPlanted(group); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// startPlanted runs the planted program in a process in the group.
func startPlanted(t *testing.T, group string) {
	t.Helper()
	t.Setenv(plantedVariable, group)
	start(t, "/proc/self/exe")
	os.Unsetenv(plantedVariable)
}

// runPlanted loads an eBPF program, and keeps it running on a fifth of a CPU until SIGTERM.
func runPlanted(group string) error {
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM)
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		return err
	}
	for _, h := range layout.Hierarchies {
		dir := filepath.Join(h.Mount, group)
		if _, err := os.Stat(dir); err != nil {
			continue
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
			return fmt.Errorf("entering %s: %w", dir, err)
		}
	}
	const steps = 20_000 // below the verifier's million of instructions
	p, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Name: plantedName, Type: ebpf.SocketFilter, License: "GPL",
		Instructions: asm.Instructions{
			asm.Mov.Imm(asm.R0, 0),
			asm.Mov.Imm(asm.R1, steps),
			asm.Sub.Imm(asm.R1, 1).WithSymbol("step"),
			asm.JNE.Imm(asm.R1, 0, "step"),
			asm.Return(),
		},
	})
	if err != nil {
		return fmt.Errorf("loading the program: %w", err)
	}
	defer p.Close()
	for {
		began := time.Now()
		if _, err := p.Run(&ebpf.RunOptions{Data: make([]byte, 64), Repeat: 500}); err != nil {
			return fmt.Errorf("running the program: %w", err)
		}
		select {
		case <-end:
			return nil
		case <-time.After(4 * time.Since(began)):
		}
	}
}

// start starts a program. At the end of the test it sends SIGTERM, at which the program must exit with 0. The channel
// is closed when the program has ended.
func start(t *testing.T, path string, args ...string) (ended <-chan struct{}) {
	t.Helper()
	cmd := exec.Command(path, args...)
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	cmd.Dir = t.TempDir()
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-done
		if code := cmd.ProcessState.ExitCode(); code != 0 {
			t.Errorf("%s: %s", filepath.Base(path), cmd.ProcessState)
		}
		if t.Failed() {
			t.Logf("%s:\n%s", filepath.Base(path), output.Bytes())
		}
	})
	return done
}

// startAgent builds and starts an agent, and returns its address and a channel that is closed when it has ended. Its
// rules charge the planted program as infrastructure of the workload shop, whose group runs it.
func startAgent(t *testing.T, group, root string) (string, <-chan struct{}) {
	t.Helper()
	dir := t.TempDir()
	path := filepath.Join(dir, "tare-agent")
	if err := binary.Program(path, "./cmd/tare-agent"); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(dir, "agent.yaml")
	write(t, config, fmt.Sprintf(`rules:
- {charge: tare, component: planted, workload: shop, program: %s}
- {charge: workload, workload: shop, cgroup: %q}
`, plantedName, group))
	address := port.Free(t)
	return address, start(t, path, "--config", config, "--listen", address, "--host-root", root)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// server is a running Prometheus.
type server struct{ url string }

func startPrometheus(t *testing.T, path, configuration string) *server {
	t.Helper()
	dir := t.TempDir()
	config := filepath.Join(dir, "prometheus.yml")
	write(t, config, configuration)
	address := port.Free(t)
	start(t, path, "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"),
		"--web.listen-address="+address, "--log.level=warn")
	return &server{url: "http://" + address}
}

// sample is one series of a result.
type sample struct {
	labels map[string]string
	value  float64
}

// get reads from Prometheus' API. It returns false until the server answers.
func (p *server) get(t *testing.T, path string, form url.Values, into any) bool {
	t.Helper()
	client := http.Client{Timeout: time.Minute}
	r, err := client.Get(p.url + path + "?" + form.Encode())
	if err != nil {
		return false
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode == http.StatusServiceUnavailable {
		return false
	}
	answer := struct {
		Error string
		Data  any
	}{Data: into}
	if err := json.Unmarshal(body, &answer); err != nil || answer.Error != "" {
		t.Fatalf("%s %v: %v %s", path, form, err, answer.Error)
	}
	return true
}

func (p *server) query(t *testing.T, expr string) []sample {
	t.Helper()
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	if !p.get(t, "/api/v1/query", url.Values{"query": {expr}}, &data) {
		return nil
	}
	samples := make([]sample, len(data.Result))
	for i, r := range data.Result {
		text, _ := r.Value[1].(string)
		value, err := strconv.ParseFloat(text, 64)
		if err != nil {
			t.Fatalf("%s: %v", expr, err)
		}
		samples[i] = sample{r.Metric, value}
	}
	return samples
}

// wait waits until each recording rule that must have a result has one, and then for as long as a rate of the dashboard
// needs. After two minutes it returns all the same: the tests then name the rules without a result.
func (p *server) wait(t *testing.T, rules []rule, agentEnded <-chan struct{}) {
	t.Helper()
	const patience = 2 * time.Minute
	for began := time.Now(); time.Since(began) < patience; {
		select {
		case <-agentEnded:
			t.Fatal("the agent has ended")
		case <-time.After(time.Second):
		}
		missing := 0
		for _, r := range rules {
			if r.Record != "" && reason(r.Record+r.Expr) == "" && len(p.query(t, r.Record)) == 0 {
				missing++
			}
		}
		if missing == 0 {
			time.Sleep(10 * time.Second)
			return
		}
	}
}

// reason says why a query may have no result; it is empty where it must.
func reason(expr string) string {
	for part, why := range empty {
		if strings.Contains(expr, part) {
			return why
		}
	}
	return ""
}

// has runs a query, and fails the test if no result is a number, unless reason(text) says why there may be none.
func (p *server) has(t *testing.T, name, expr, text string) {
	t.Helper()
	for _, s := range p.query(t, expr) {
		if !math.IsNaN(s.value) {
			return
		}
	}
	if why := reason(text); why != "" {
		t.Logf("%s has no result: %s", name, why)
		return
	}
	t.Errorf("%s has no result: %s", name, expr)
}

// selectors matches the series selectors of a rule, without ranges and offsets.
var selectors = regexp.MustCompile(`(?:\b[a-z_]+:)?\b(?:tare_[a-z0-9_]+|up)\b(?::[a-z0-9_]+)?(?:\{[^}]*\})?`)

// labelValues matches the query of a Grafana variable for the values of a label.
var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

// dashboard runs the queries of the panels and of the variables.
func (p *server) dashboard(t *testing.T) {
	t.Helper()
	var d struct {
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	text, err := os.ReadFile(dashboardFile)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	node := p.query(t, "tare_node_cpus")
	if len(node) != 1 {
		t.Fatalf("tare_node_cpus: %v", node)
	}
	fill := strings.NewReplacer("$job", node[0].labels["job"], "$instance", node[0].labels["instance"],
		"$namespace", ".*", "$__rate_interval", "10s", "$__range", "1m")
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		m := labelValues.FindStringSubmatch(v.Query)
		if m == nil {
			t.Fatalf("variable %s: this test does not know %s", v.Name, v.Query)
		}
		p.has(t, "variable "+v.Name, fill.Replace(m[1]), v.Query)
	}
	queries := 0
	for _, panel := range d.Panels {
		for _, q := range panel.Targets {
			queries++
			p.has(t, panel.Title, fill.Replace(q.Expr), q.Expr)
		}
	}
	if queries < 30 {
		t.Errorf("the dashboard has %d queries", queries)
	}
}
