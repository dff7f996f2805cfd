package vm

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/test/long"
)

// TestTrace: on an older kernel with only cgroup v2, every exec is counted in all three arms, and the cost of a tracer
// is measured.
func TestTrace(t *testing.T) {
	long.Test(t, "2 min: tracers under storms on an emulated machine, which stands still for seconds")
	t.Parallel()
	const spec = `name: traced
question: Is every event counted?
blocks: 1
warmup: 0s
duration: 10s # seconds in which the emulator stands still must not be half of a window
sampling: 97
repeat: 500%
loads: {execs: {kind: exec, rate: 20}} # more than a processor that is emulated, and not always there, may manage
arms: {exectrace: {subject: exectrace, ring: 8MiB}}
gates: {rate: 0, lag: 60s, drift: 1000, errors: 1, throttled: 1h}
`
	for _, mode := range []CgroupMode{V2} { // not Hybrid, which most test machines are themselves
		t.Run(string(mode), func(t *testing.T) {
			r := Run(t, Options{CgroupMode: mode, Files: map[string][]byte{"/traced.yaml": []byte(spec)},
				Timeout: 6 * time.Minute},
				"tare run /traced.yaml --out /tmp/out >&2; cat /tmp/out/trials.jsonl")
			ok(t, r)
			arms := 0
			for line := range strings.Lines(r.Output) {
				var tr record.Trial
				if err := json.Unmarshal([]byte(line), &tr); err != nil {
					t.Fatal(err)
				}
				e := tr.Events
				if e == nil || e.Generated == 0 && tr.Validity.Valid || e.Generated != e.Counted || e.Missed != 0 {
					t.Errorf("%s, attempt %d: %+v, %+v", tr.Arm, tr.Attempt, tr.Validity, e)
					continue
				}
				if !tr.Validity.Valid {
					// For example, the emulator stood still while a window opened or closed. The trial is run again.
					t.Logf("%s, attempt %d was spoiled: %+v", tr.Arm, tr.Attempt, tr.Validity)
					continue
				}
				arms++
				if tr.Arm != "exectrace" {
					continue
				}
				if *e.Delivered != e.Counted || *e.Offset.Delivered != e.Offset.Counted || e.SaidLost == nil || *e.SaidLost != 0 {
					t.Errorf("delivered are %d of %d, and %d of %d before", *e.Delivered, e.Counted, *e.Offset.Delivered,
						e.Offset.Counted)
				}
				for _, m := range []string{"cpu_seconds_per_kiloevent", "agent_cpu_seconds_per_kiloevent",
					"bpf_seconds_per_kiloevent", "machine_cpu_seconds_per_kiloevent",
					"load_cpu_seconds_per_kiloevent", "memory_peak_bytes", "memory_anon_bytes", "rss_bytes", "rss_peak_bytes",
					"map_bytes", "start_seconds"} {
					if tr.Metrics[m] <= 0 {
						t.Errorf("%s is %g", m, tr.Metrics[m])
					}
				}
			}
			if arms != 3 {
				t.Errorf("%d arms have a valid trial, and there are 3:\n%s", arms, r.Output)
			}
		})
	}
}
