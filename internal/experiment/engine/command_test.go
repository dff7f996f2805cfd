package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/placement"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/lists"
	"tare/test/port"
)

// commandSpec returns a spec with one application and one load, at least one of which is a user's command.
func commandSpec(app, load string) string {
	return fmt.Sprintf(`name: commands
question: Does anybody's program work?
blocks: 1
warmup: 400ms
duration: 600ms
applications: {server: {%s}}
loads: {client: {%s}}
gates: {drift: 1000, lag: 60s, generator_cpu: 1, rate: 0.1}
`, app, load)
}

// longer gives a spec a window so long that even a machine that stands still for a second has more answers than the
// gate requires.
func longer(spec string) string { return strings.Replace(spec, "duration: 600ms", "duration: 3s", 1) }

// installed skips a test if a program is missing that test/setup installs.
func installed(t *testing.T, names ...string) {
	t.Helper()
	for _, name := range names {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("needs %s: run test/setup", name)
		}
	}
}

// nginx is a command that serves from one worker, in the foreground. It listens before it has a worker, and starting
// that may take longer than these tests' windows on a busy machine.
const nginx = `kind: command, ready-http: "http://127.0.0.1:{port}/", command: >-
  sh -c 'echo "daemon off; pid {dir}/pid; error_log stderr; events { worker_connections 256; }
  http { access_log off; server { listen 127.0.0.1:{port}; location / { return 200 ok; } } }" > {dir}/nginx.conf;
  exec nginx -e stderr -c {dir}/nginx.conf'`

// flow converts a command with colons, quotes and braces to flow style, where YAML requires quotes around it.
func flow(block string) string {
	head, command, _ := strings.Cut(block, ">-")
	return head + `"` + strings.ReplaceAll(strings.Join(strings.Fields(command), " "), `"`, `\"`) + `"`
}

// firstTrial runs the first trial of a spec and returns it.
func (g *ground) firstTrial(spec string) record.Trial {
	g.t.Helper()
	g.first = true
	_, trials, err := g.run(g.t.Context(), mustParse(g.t, spec), quiet)
	if err != nil || len(trials) != 1 {
		g.t.Fatalf("%d trials: %v", len(trials), err)
	}
	return trials[0]
}

// TestCommandApplication: Tare's own load can use real servers that are configured only by a command line, wherever
// they listen.
func TestCommandApplication(t *testing.T) {
	const client = "kind: http, to: server, rate: 100, connections: 4, drain: 60s"
	for _, c := range []struct{ program, app, keepalive string }{
		{"nginx", flow(nginx), ", keepalive: true"},
		{"nginx", flow(nginx), ", keepalive: false"},
		{"python3", `kind: command, command: "python3 -m http.server --bind 127.0.0.1 -d {dir} {port}"`,
			", keepalive: false"},
		{"busybox", `kind: command, command: "busybox httpd -f -p {address} -h {dir}"`, ", keepalive: false"},
	} {
		t.Run(c.program+c.keepalive, func(t *testing.T) {
			installed(t, c.program)
			tr := newGround(t).firstTrial(longer(commandSpec(c.app, client+c.keepalive)))
			r := tr.Loads["client"]
			if tr.Validity.Failed != "" || r.Sent == 0 {
				t.Fatalf("%+v, %+v", tr.Validity, r)
			}
			if c.program == "busybox" { // it has no index.html to serve, and answers with status 404
				if r.Errors["status-404"] == 0 {
					t.Errorf("an empty directory was served: %+v", r)
				}
				return
			}
			if !tr.Validity.Valid || r.Done == 0 || tr.Metrics["latency_p50_seconds"] <= 0 {
				t.Errorf("%+v, %+v", tr.Validity, r)
			}
		})
	}
}

// TestCommandApplicationFails: an error about a server shows the last lines of its output.
func TestCommandApplicationFails(t *testing.T) {
	const client = "kind: http, to: server, rate: 100, connections: 4"
	for name, c := range map[string]struct{ app, says string }{
		"ends at once": {`kind: command, command: "sh -c 'echo no such config >&2; exit 3'"`,
			"exit status 3; its last words: no such config"},
		"never listens": {`kind: command, command: "sleep 60", ready-timeout: 300ms`,
			"was not ready within 300ms: it listened on no TCP port"},
		"listens nowhere": {`kind: command, command: "sleep 60", ready-after: 50ms`,
			"listens on no TCP port, and a load goes to it"},
		"dies in the window": {`kind: command, command:
  "sh -c 'busybox httpd -f -p {port} & sleep 3; echo out of luck >&2; kill $!; exit 1'"`,
			"its last words: out of luck"},
		"goes into the background": {`kind: command, command: "sh -c 'sleep 60 & exit 0'", ready-port: "1"`,
			"went into the background"},
	} {
		t.Run(name, func(t *testing.T) {
			installed(t, "busybox")
			// Set-up takes over a second on a busy machine, and the window must be open when the server ends.
			spec := strings.Replace(commandSpec(c.app, client), "duration: 600ms", "duration: 10s", 1)
			tr := newGround(t).firstTrial(spec)
			if !strings.Contains(tr.Validity.Failed, c.says) {
				t.Errorf("it says %q, not %q", tr.Validity.Failed, c.says)
			}
		})
	}
}

// ownResult returns what the load reports about the program.
func ownResult(t *testing.T, r load.Result) (own struct {
	Command string  `json:"command"`
	Window  float64 `json:"window_seconds"`
	Stopped bool    `json:"stopped"`
	Opened  *uint64 `json:"machine_connections"`
	Said    *struct {
		Requests int64   `json:"requests"`
		P50      float64 `json:"p50_seconds"`
	} `json:"said"`
}) {
	t.Helper()
	if err := json.Unmarshal(r.Own, &own); err != nil {
		t.Fatalf("%v: %s", err, r.Own)
	}
	return own
}

// TestCommandLoad: other load generators work with Tare's own server and with real ones. Their results are kept apart
// from Tare's measurements.
func TestCommandLoad(t *testing.T) {
	const server = "kind: http"
	for _, c := range []struct{ program, app, load string }{
		{"wrk", server, `command: "wrk --latency -t1 -c2 -d {seconds}s http://{address}/"`},
		{"ab", server, `command: "ab -q -t {seconds} -n 10000000 -c 2 http://{host}:{port}/"`},
		{"hey", server, `command: "hey -z {seconds}s -c 2 http://{address}/"`},
		{"wrk", flow(nginx), `command: "wrk --latency -t1 -c2 -d {seconds}s http://{address}/"`},
	} {
		t.Run(c.program+" to "+strings.Fields(c.app)[1], func(t *testing.T) {
			installed(t, c.program, "nginx")
			tr := newGround(t).firstTrial(commandSpec(c.app, "kind: command, to: server, "+c.load))
			if tr.Validity.Failed != "" || !tr.Validity.Valid {
				t.Fatalf("%+v", tr.Validity)
			}
			own := ownResult(t, tr.Loads["client"])
			if own.Said == nil || own.Said.Requests == 0 || own.Stopped || own.Window != 0.6 || own.Opened == nil ||
				strings.Contains(own.Command, "{") {
				t.Errorf("%s", tr.Loads["client"].Own)
			}
			m := tr.Metrics
			if m["tool_rate_per_second"] <= 0 || m["tool_latency_p50_seconds"] != own.Said.P50 || m["load_wall_seconds"] < 1 {
				t.Errorf("metrics %v", m)
			}
			for _, name := range []string{"throughput_per_second", "latency_p50_seconds", "cpu_seconds_per_request",
				"cpu_seconds_per_connection", "error_ratio"} {
				if v, has := m[name]; has {
					t.Errorf("%s is %v: nobody knows what the tool did in the window", name, v)
				}
			}
		})
	}
}

// TestCommandLoadAlone: an unknown program runs without an application, and is ended with the window.
func TestCommandLoadAlone(t *testing.T) {
	spec := strings.Replace(commandSpec("kind: http", `kind: command, command: "sh -c 'while :; do :; done'"`),
		"applications: {server: {kind: http}}\n", "", 1)
	tr := newGround(t).firstTrial(spec)
	own := ownResult(t, tr.Loads["client"])
	if !tr.Validity.Valid || !own.Stopped || own.Window != 0.6 || own.Said != nil {
		t.Errorf("%+v: %s", tr.Validity, tr.Loads["client"].Own)
	}
	if rate, has := tr.Metrics["tool_rate_per_second"]; has {
		t.Errorf("a loop of a shell has a rate of %v", rate)
	}
}

// TestCommandLoadFails: a load that did not run for the whole window, failed, or printed something unexpected is
// reported.
func TestCommandLoadFails(t *testing.T) {
	for name, c := range map[string]struct{ load, gate, says string }{
		"ends early": {`command: "sh -c 'sleep 0.3; echo done already'"`, "program-window",
			"its last words were: done already"},
		"fails": {`command: "sh -c 'sleep 0.3; echo bad option >&2; exit 2'"`, "",
			"exit status 2; its last words: bad option"},
		"fails late": {`command: "sh -c 'sleep 1.3; echo bad end >&2; exit 2'", tool: wrk`, "",
			"exit status 2; its last words: bad end"},
		"prints something else": {`command: "sh -c 'sleep 1.3; echo hello'", tool: wrk`, "tool-output",
			"reading what wrk printed"},
		"never ends": {`command: "sh -c 'sleep 60'", tool: wrk, drain: 100ms`, "tool-output", "it printed nothing"},
		"all failed": {`command: "hey -z {seconds}s -c 1 http://{address}/", to: missing`, "idle errors",
			"failed, as hey counts them"},
	} {
		t.Run(name, func(t *testing.T) {
			installed(t, "hey")
			spec := commandSpec("kind: http", "kind: command, "+c.load)
			spec = strings.Replace(spec, "{server: {kind: http}}",
				`{server: {kind: http},
  missing: {kind: command, command: "sleep 60", address: "127.0.0.1:1", ready-after: 1ms}}`, 1)
			// Even if a busy machine takes long to start the load, the load ends long before the window does; a failure ends the
			// trial.
			if d := map[string]string{"ends early": "3s", "fails": "30s"}[name]; d != "" {
				spec = strings.Replace(spec, "duration: 600ms", "duration: "+d, 1)
			}
			tr := newGround(t).firstTrial(spec)
			v := tr.Validity
			if c.gate == "" {
				if !strings.Contains(v.Failed, c.says) {
					t.Errorf("it says %q, not %q", v.Failed, c.says)
				}
				return
			}
			gates := strings.Join(lists.Map(v.Reasons, func(r record.Reason) string { return r.Gate }), " ")
			if v.Failed != "" || gates != c.gate || !strings.Contains(v.Reasons[len(v.Reasons)-1].Message, c.says) {
				t.Errorf("%+v, want %s: %s", v, c.gate, c.says)
			}
		})
	}
}

// outsider returns an HTTP server that has not been started, its address, and a control group for it outside every
// trial.
func (g *ground) outsider(t *testing.T) (group *placement.Group, server *exec.Cmd, address string) {
	t.Helper()
	tree, err := placement.NewTree(g.machine.Cgroups, "outsider")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	if group, err = tree.Group("server", placement.Limits{}); err != nil {
		t.Fatal(err)
	}
	address = port.Free(t)
	return group, exec.Command(g.machine.Self, "app", "http", "--listen", address), address
}

// TestStartedByAnother: an application has no known cost if its command asks a program outside the trial to start the
// server (as that of a container engine does), because the server is in no group of the trial.
func TestStartedByAnother(t *testing.T) {
	g := newGround(t)
	group, server, address := g.outsider(t)
	asked := filepath.Join(t.TempDir(), "asked")
	started := make(chan error, 1)
	over, stop := context.WithCancel(t.Context())
	defer stop()
	go func() {
		for {
			if _, err := os.Stat(asked); err == nil {
				started <- group.Start(server)
				return
			}
			select {
			case <-over.Done():
				started <- over.Err()
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	tr := g.firstTrial(commandSpec(fmt.Sprintf("kind: command, command: \"sh -c 'touch %s; exec sleep 100'\", address: %q",
		asked, address), "kind: http, to: server, rate: 100, connections: 2"))
	stop()
	if err := <-started; err != nil {
		t.Fatalf("%v: %+v", err, tr.Validity)
	}
	_ = server.Process.Kill()
	_ = server.Wait()
	says := fmt.Sprintf("process %d (tare) in the control group %s listens at %s, and is not part of the trial",
		server.Process.Pid, group.Path(), address)
	if i := slices.IndexFunc(tr.Validity.Reasons, func(r record.Reason) bool {
		return r.Gate == measured.GateContained.Name
	}); i < 0 || !strings.Contains(tr.Validity.Reasons[i].Message, says) {
		t.Errorf("%+v, want %s", tr.Validity, says)
	}
}

// TestObservedApplication: a server that already runs is put under load, and still runs after the trials.
func TestObservedApplication(t *testing.T) {
	g := newGround(t)
	group, server, address := g.outsider(t)
	if err := group.Start(server); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	}()
	up := func() error {
		r, err := http.Get("http://" + address + "/")
		if err == nil {
			err = r.Body.Close()
		}
		return err
	}
	for deadline := time.Now().Add(time.Minute); up() != nil && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	for _, target := range []string{"cgroup:" + group.Path(), fmt.Sprintf("pid:%d", server.Process.Pid)} {
		app := fmt.Sprintf("kind: command, observe: %q, address: %q", target, address)
		tr := g.firstTrial(longer(commandSpec(app, "kind: http, to: server, rate: 100, connections: 2, drain: 60s")))
		if !tr.Validity.Valid || tr.Loads["client"].Done == 0 {
			t.Errorf("%s: %+v", target, tr.Validity)
		}
		if err := up(); err != nil {
			t.Errorf("%s: the server is gone: %v", target, err)
		}
	}
	tr := g.firstTrial(commandSpec(fmt.Sprintf("kind: command, observe: pid:%d, address: %q", os.Getpid(), address),
		"kind: http, to: server, rate: 100, connections: 2"))
	if !strings.Contains(tr.Validity.Failed, "tare itself") {
		t.Errorf("this process was observed: %+v", tr.Validity)
	}
}

// TestCommandSpec: settings that cannot work are rejected with their position in the spec.
func TestCommandSpec(t *testing.T) {
	const server, client = "kind: http", "kind: http, to: server, rate: 100"
	for name, c := range map[string]struct{ app, load, says string }{
		"no command":       {"kind: command", client, `needs a "command"`},
		"both":             {`kind: command, command: cat, observe: pid:1`, client, "either started or runs already"},
		"observed nowhere": {`kind: command, observe: pid:1`, client, `needs an "address"`},
		"observed and ready": {`kind: command, observe: pid:1, address: "127.0.0.1:1", ready-after: 1s`, client,
			`"ready-after" cannot be combined`},
		"observed what": {`kind: command, observe: process1, address: "127.0.0.1:1"`, client,
			"not a process, control group"},
		"observed and limited": {`kind: command, observe: pid:1, address: "127.0.0.1:1", limits: {cpus: 1}`, client,
			"cannot be limited"},
		"observed twice": {`kind: command, observe: pid:1, address: "127.0.0.1:1", count: 2`, client,
			`leave out the "count"`},
		"load of nothing": {server, "kind: command, to: server", `needs a "command"`},
		"load to nowhere": {server, `kind: command, command: "wrk http://{address}/"`, "goes to no application"},
		"misspelt": {server, `kind: command, to: server, command: "wrk -d {second} http://{address}/"`,
			"did you mean {seconds}?"},
		"a shell's words": {server, `kind: command, to: server, command: "wrk x > y"`, "only a shell understands"},
		"tool":            {server, `kind: command, to: server, command: a, tool: wrk3`, `did you mean "wrk"`},
		"push to a command": {`kind: command, command: cat`, "kind: push, to: server",
			"cannot go to an application of kind command"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := spec.Parse("x.yaml", []byte(commandSpec(c.app, c.load)), nil)
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("got %v, want %q", err, c.says)
			}
		})
	}
	s := mustParse(t, commandSpec(`kind: command, command: tare-no-such-program`, client))
	_, err := s.LeaveOutAbsent(t.Context())
	if err == nil || !strings.Contains(err.Error(), "not installed") ||
		!strings.Contains(err.Error(), "applications.server") {
		t.Errorf("a program that is not there: %v", err)
	}
}
