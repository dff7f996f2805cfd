package vm

import (
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/test/long"
)

// TestNodes: an agent and a coordinator run a trial of a tracer on an older kernel with only cgroup v2, and every event
// is counted there. Local nodes need pairs of virtual interfaces (veth), which this kernel has only as a module that
// the machine lacks: tare says so, with a hint.
func TestNodes(t *testing.T) {
	long.Test(t, "3 min: trials of a node on an emulated machine, which stands still for seconds")
	t.Parallel()
	const spec = `name: nodes
question: Is every event counted?
nodes: 1
blocks: 1
warmup: 100ms
duration: 4s
loads: {storm: {kind: exec, rate: 50}}
arms: {exectrace: {subject: exectrace}}
gates: {rate: 0, lag: 60s, drift: 1000, errors: 1, throttled: 1h}
`
	script := `
tare node keys --dir /keys a >&2 || exit 1
tare run /spec.yaml --nodes-listen 127.0.0.1:7117 --nodes-keys /keys --nodes 1 --out /out >&2 & run=$!
tare node --join 127.0.0.1:7117 --name a --ca /keys/authority.pem --cert /keys/a.pem --key /keys/a.key >&2
echo "agent $?" >&2
wait $run
echo "run $?" >&2
cat /out/trials.jsonl
tare run /spec.yaml --local-nodes 1 --out /local >/dev/null 2>/said; echo "local $?" >>/said
cat /said >&2
grep -q 'load the module veth' /said && test "$(tail -n 1 /said)" = "local 3"`
	var failed []string
	for range 2 {
		r := Run(t, Options{Files: map[string][]byte{"/spec.yaml": []byte(spec)}, Timeout: 6 * time.Minute},
			script)
		ok(t, r)
		trials := nodeTrials(t, r.Output)
		if len(trials) != 3 {
			t.Errorf("%d trials", len(trials))
		}
		failed = nil
		for _, tr := range trials {
			if tr.Nodes[0].Failed != "" {
				failed = append(failed, tr.Nodes[0].Failed)
			}
		}
		if len(failed) == 0 || t.Failed() {
			return
		}
		t.Logf("a machine that stands still is late, or taken for gone: %s", strings.Join(failed, "; "))
	}
	t.Skipf("needs a machine that runs: twice in two it stood still (%s)", failed[0])
}

// nodeTrials returns the trials of a run with one node. In each, the node's counts must agree, however late the node
// was.
func nodeTrials(t *testing.T, lines string) (trials []record.Trial) {
	t.Helper()
	for line := range strings.Lines(lines) {
		var tr record.Trial
		if err := json.Unmarshal([]byte(line), &tr); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		trials = append(trials, tr)
		if len(tr.Nodes) != 1 {
			t.Fatalf("trial %d: %+v, nodes %+v", tr.Index, tr.Validity, tr.Nodes)
		}
		n := tr.Nodes[0]
		if n.Failed != "" && !lateness.MatchString(n.Failed) {
			t.Errorf("trial %d failed: %s", tr.Index, n.Failed)
		}
		if n.Trial == nil || n.Trial.Events == nil {
			if n.Failed == "" {
				t.Errorf("trial %d has no events: %+v", tr.Index, n)
			}
			continue
		}
		e := n.Trial.Events
		if e.Generated == 0 && n.Failed == "" || e.Generated != e.Counted ||
			tr.Arm == "exectrace" && *e.Delivered+*e.SaidLost != e.Generated {
			t.Errorf("trial %d (%s): %+v", tr.Index, tr.Arm, e)
		}
	}
	return trials
}

// lateness matches the errors that a node has only in a machine that stands still for a while.
var lateness = regexp.MustCompile(`is too busy|it began [0-9.]+m?s late|it has said nothing for|its clock could not be read within`)
