package vm

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"tare/internal/record"
)

// An agent and a coordinator run a trial of a tracer on an older kernel with control groups v2 alone, and every event
// is counted there. Local nodes need pairs of virtual interfaces, which this kernel has as a module that is not here:
// that is said with its mend.
func TestNodes(t *testing.T) {
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
	r := Run(t, Options{Files: map[string][]byte{"/spec.yaml": []byte(spec)}, Timeout: 6 * time.Minute}, `
tare node keys --dir /keys a >&2 || exit 1
tare run /spec.yaml --nodes-listen 127.0.0.1:7117 --nodes-keys /keys --nodes 1 --out /out >&2 & run=$!
tare node --join 127.0.0.1:7117 --name a --ca /keys/authority.pem --cert /keys/a.pem --key /keys/a.key >&2
echo "agent $?" >&2
wait $run
echo "run $?" >&2
cat /out/trials.jsonl
tare run /spec.yaml --local-nodes 1 --out /local >/dev/null 2>/said; echo "local $?" >>/said
cat /said >&2
grep -q 'load the module veth' /said && test "$(tail -n 1 /said)" = "local 3"`)
	ok(t, r)
	trials := 0
	for line := range strings.Lines(r.Output) {
		var tr record.Trial
		if err := json.Unmarshal([]byte(line), &tr); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		trials++
		if len(tr.Nodes) != 1 || tr.Nodes[0].Trial == nil || tr.Nodes[0].Trial.Events == nil {
			t.Fatalf("trial %d: %+v, nodes %+v", tr.Index, tr.Validity, tr.Nodes)
		}
		if failed := tr.Nodes[0].Failed; failed != "" && !strings.Contains(failed, "is too busy") { // an emulated machine can be
			t.Errorf("trial %d failed: %s", tr.Index, failed)
		}
		e := tr.Nodes[0].Trial.Events
		if e.Generated == 0 || e.Generated != e.Counted || tr.Arm == "exectrace" && *e.Delivered+*e.SaidLost != e.Generated {
			t.Errorf("trial %d (%s): %+v", tr.Index, tr.Arm, e)
		}
	}
	if trials != 3 {
		t.Errorf("%d trials", trials)
	}
}
