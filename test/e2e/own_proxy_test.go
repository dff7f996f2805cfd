package e2e

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/record"
	envoytest "tare/test/envoy"
	"tare/test/long"
	"tare/test/port"
)

// ownProxySpec is one short block of a user's proxy in front of a web server.
const ownProxySpec = `
name: own-proxy
question: What does our proxy cost?
blocks: 1
warmup: 200ms
duration: 1s
statistics: false
repeat: 0%
applications:
  web: {kind: http}
loads:
  client: {kind: http, to: web, connections: 4}
factors: {rate: [50, 100, 150]}
gates: {rate: 0, errors: 0, lag: 60s, drift: 1000, generator_cpu: 1, throttled: 1h, connections: 0, invalid: 1}
arms:
`

// TestOwnProxy: a user's proxy with the user's configuration stands in the path of requests, and what it costs is
// charged to it.
func TestOwnProxy(t *testing.T) {
	long.Test(t, "40 s: nine trials of each proxy")
	needsRoot(t)
	for name, command := range map[string]string{
		"haproxy": "haproxy -db -f {dir}/haproxy.cfg",
		"nginx":   "nginx -c {dir}/nginx.conf",
		"envoy":   "envoy -c {dir}/envoy.yaml --concurrency 1 --use-dynamic-base-id --log-level error",
	} {
		t.Run(name, func(t *testing.T) {
			c := command
			if name == "envoy" {
				c = filepath.Dir(envoytest.Path(t)) + "/" + c
			} else {
				needsProxy(t, name)
			}
			leavesNothing(t)
			configs, err := filepath.Glob("../../docs/own-proxy/" + name + ".*")
			if err != nil || len(configs) != 1 {
				t.Fatalf("%v, %v", configs, err)
			}
			config, err := filepath.Abs(configs[0])
			if err != nil {
				t.Fatal(err)
			}
			spec := ownProxySpec + fmt.Sprintf("  mine: {subject: command, serves: web, files: %s, command: %q}\n", config, c)
			trials := ownProxyRun(t, spec, 0)
			for _, trial := range trials {
				m := trial.Metrics
				switch {
				case trial.Validity.Failed != "" || len(trial.Loads["client"].Errors) > 0:
					t.Errorf("%s at %v: %s, %v", trial.Arm, trial.Factors, trial.Validity.Failed, trial.Loads["client"].Errors)
				case trial.Arm == "mine" && (m["subject_cpus"] <= 0 ||
					m["subject_cpu_seconds_per_request"] <= 0):
					t.Errorf("at %v its CPU time is not counted: %v", trial.Factors, m)
				case trial.Arm == "mine" && !strings.Contains(string(trial.Subject), filepath.Base(config)):
					t.Errorf("its file is not recorded: %s", trial.Subject)
				}
			}
			if len(trials) != 9 { // three rates for the baseline, its twin and the arm
				t.Errorf("%d trials", len(trials))
			}
		})
	}
}

// TestBypassed: a trial fails if its loads bypass the subject that is to stand in their path.
func TestBypassed(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	needsProxy(t, "haproxy")
	leavesNothing(t)
	config, err := filepath.Abs("../../docs/own-proxy/haproxy.cfg")
	if err != nil {
		t.Fatal(err)
	}
	at := port.Free(t)
	_, number, _ := strings.Cut(at, ":")
	spec := strings.NewReplacer("[50, 100, 150]", "[50]", "{kind: http}", fmt.Sprintf(`{kind: command, command: "python3 -m http.server --bind `+
		`127.0.0.1 %s", address: %q}`, number, at)).Replace(ownProxySpec)
	proxy := fmt.Sprintf("  mine: {subject: command, serves: web, files: %s, "+
		"command: \"haproxy -db -f {dir}/haproxy.cfg\"}\n", config)
	past := fmt.Sprintf(`{kind: command, to: web, command: "sh -c 'while :; do curl -s -o /dev/null http://%s/; `+
		`sleep 0.1; done'"}`, at)
	other := fmt.Sprintf(`{kind: command, to: web, command: "bash -c 'exec 3<>/dev/tcp/127.0.0.1/%s; exec sleep 60'"}`,
		number)
	for name, c := range map[string]struct {
		spec, says string
		code       int
	}{
		"the address of the application": {spec + fmt.Sprintf("  mine: {subject: command, command: sleep 60, "+
			"ready-after: 100ms, address: %q}\n", at), "loads would go past it", 4},
		"a load that knows another address": {strings.NewReplacer("{kind: http, to: web, connections: 4}", past,
			"factors: {rate: [50]}\n", "").Replace(spec) + proxy, "they went past it", 4},
		"a second load that knows another address": {strings.NewReplacer("loads:\n", "loads:\n  other: "+other+"\n",
			"{rate: [50]}", "{client.rate: [50]}", "duration: 1s", "duration: 4s").Replace(spec) + proxy, // 2 more looks
			"the load other went to the application web itself, past mine", 4},
	} {
		t.Run(name, func(t *testing.T) {
			failed := 0
			for _, trial := range ownProxyRun(t, c.spec, c.code) {
				if trial.Arm != "mine" {
					continue
				}
				failed++
				if !strings.Contains(trial.Validity.Failed, c.says) {
					t.Errorf("a trial past it: %q, %v", trial.Validity.Failed, trial.Validity.Reasons)
				}
			}
			if failed == 0 {
				t.Error("there is no trial of the arm")
			}
		})
	}
}

// ownProxyRun runs a spec, which must end with the given exit code, and returns its trials.
func ownProxyRun(t *testing.T, spec string, code int) []record.Trial {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	o := command{args: []string{"run", specFile(t, spec), "--out", out, "--seed", "1"}, timeout: 5 * time.Minute}.
		start(t).wait(t)
	if o.code != code {
		t.Fatalf("%s", o)
	}
	c, err := record.Read(out)
	if err != nil {
		t.Fatal(err)
	}
	return c.Trials
}
