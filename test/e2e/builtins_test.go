package e2e

import (
	"encoding/json"
	"maps"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"tare/experiments"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/mesh/sidecar"
	"tare/internal/results/analysis"
	"tare/internal/sandboxes/subject"
	"tare/internal/scale/ledger"
	"tare/test/long"
)

// smallest describes a built-in experiment in its smallest form, and what every run of that must show on any machine.
type smallest struct {
	arms     []string         // in addition to the baseline and its twin
	levels   map[string][]any // the cheapest levels of its factors
	duration string           // of a window; 300ms when empty
	set      []string         // further settings, as for --set
	flags    []string         // further flags of tare run

	// tells holds the metrics that the answer is about. Every trial of every arm has each, or names the cause that voided
	// it.
	tells []string
	// ofSubject holds the further metrics of arms with a subject, which are all arms if the baseline is a subject too.
	ofSubject []string
	// check makes further checks of one trial.
	check func(t *testing.T, tr record.Trial)
}

// openGates holds settings at which no noise trips a gate: the figures of a short window on a busy machine mean little,
// and this test does not judge them.
var openGates = map[string]any{
	"rate": 0, "errors": 1, "lag": "60s", "drift": 1000, "generator_cpu": 1, "throttled": "1h", "held": 0,
	"connections": 0, "invalid": 1,
}

var smallests = map[string]smallest{
	"quickstart": {
		arms: []string{"kernelmesh"}, set: []string{"rate=200", "connections=16"},
		tells: []string{"latency_p50_seconds", "cpu_seconds_per_connection", "bpf_seconds_per_connection",
			"memory_hard_bytes", "map_bytes"},
		ofSubject: []string{"start_seconds"},
		check:     requestsAnswered,
	},
	"config-consistency": {
		arms: []string{"snapshot"},
		tells: []string{"wrong_connect_share", "failed_connect_share", "stale_connect_share", "torn_connect_share",
			"missed_connect_share", "backward_connect_share", "replacements_per_second",
			"replacement_seconds", "throughput_per_second"},
		check: func(t *testing.T, tr record.Trial) {
			for _, metric := range []string{"wrong_connect_share", "failed_connect_share"} {
				if c := tr.Counts[metric]; c.Of == 0 || tr.Arm == "snapshot" && c.In != 0 {
					t.Errorf("%s: of %d connections %d are in %s", tr.Arm, c.Of, c.In, metric)
				}
			}
		},
	},
	"config-flush": {
		arms:   []string{"naive", "snapshot"},
		levels: map[string][]any{"*.resource": {"cluster"}, "*.operation": {"insert"}, "*.from": {"struct"}},
		tells: []string{"flush_seconds", "records_per_flush", "map_updates_per_flush", "map_deletes_per_flush",
			"syscalls_per_flush", "bytes_per_flush", "grace_periods_per_flush"},
		check: func(t *testing.T, tr record.Trial) {
			if n := tr.Metrics["records_per_flush"]; n < 1 || n != math.Trunc(n) {
				t.Errorf("%s: every flush is of the same resource, and has %g records", tr.Arm, n)
			}
		},
	},
	"config-path": {
		arms: []string{"snapshot"}, levels: map[string][]any{"*.services": {1}},
		set:   []string{"*.max-services=64", "*.max-endpoints=1280"},
		tells: []string{"bpf_seconds_per_connection", "connect_p50_seconds", "throughput_per_second"},
		check: func(t *testing.T, tr record.Trial) {
			if programRuns(t, tr, "km_connect4") == 0 && !windowCut(tr) {
				t.Errorf("%s: the connect program never ran", tr.Arm)
			}
		},
	},
	"config-push": {
		arms: []string{"snapshot"}, levels: map[string][]any{"mesh.services": {10}, "push.what": {"one"}},
		set: []string{"*.max-services=64", "*.max-endpoints=1280"},
		// On a busy machine 300 ms have too few changes for a median.
		tells: []string{"push_usable_seconds", "push_received_seconds", "push_decoded_seconds", "push_visible_seconds",
			"push_refused_ratio", "push_wrong_ratio"},
		check: func(t *testing.T, tr record.Trial) {
			for _, metric := range []string{"push_refused_ratio", "push_wrong_ratio"} {
				if v := tr.Metrics[metric]; tr.Arm == "snapshot" && v != 0 {
					t.Errorf("a store that changes as a whole has %s %g", metric, v)
				}
			}
			steps := []string{"push_received_p50_seconds", "push_decoded_p50_seconds", "push_visible_p50_seconds"}
			steps = slices.DeleteFunc(steps, func(step string) bool { _, is := tr.Metrics[step]; return !is })
			for i := range len(steps) - 1 {
				if a, b := tr.Metrics[steps[i]], tr.Metrics[steps[i+1]]; a > b {
					t.Errorf("%s: %s is %g s, and %s, which comes after it, %g s", tr.Arm, steps[i], a, steps[i+1], b)
				}
			}
		},
	},
	"config-scale": {
		arms: []string{"value", "snapshot"}, levels: map[string][]any{"*.services": {1}},
		tells: []string{"lookup_seconds", "map_bytes", "start_seconds"},
	},
	"ebpf-cpu-limit": {
		arms: []string{"kernelmesh", "sockops-10000"}, levels: map[string][]any{"client.count": {1}}, duration: "400ms",
		tells: []string{"limited_cpus", "limited_share", "limited_cpu_seconds_per_connection",
			"bpf_seconds_per_connection", "cpu_seconds_per_connection", "throughput_per_second"},
		check: func(t *testing.T, tr record.Trial) {
			if v := tr.Metrics["limit_cpus"]; v != 0.25 {
				t.Errorf("%s: the limit is %g CPUs", tr.Arm, v)
			}
			requestsAnswered(t, tr)
		},
	},
	"ebpf-memory": {
		arms: []string{"fixed", "fitted"}, levels: map[string][]any{"*.services": {100}},
		set:   []string{"rate=100", "connections=16"},
		tells: []string{"memory_hard_bytes", "memory_kernel_bytes", "map_bytes"},
		ofSubject: []string{"map_before_bytes", "map_after_bytes", "map_by_program_bytes", "map_declared_bytes",
			"map_charged_share"},
		check: func(t *testing.T, tr record.Trial) {
			before, under := tr.Metrics["map_before_bytes"], tr.Metrics["map_bytes"]
			if tr.Arm == "fixed" && before != under {
				t.Errorf("maps that load does not change have %g bytes before it and %g under it", before, under)
			}
			requestsAnswered(t, tr)
		},
	},
	"ebpf-saturation": {
		arms: []string{"kernelmesh"}, levels: map[string][]any{"connections": {8}}, duration: "1s",
		set:   []string{"app.count=2", "client.count=2"},
		tells: []string{"bpf_cpu_share", "bpf_seconds_per_connection", "throughput_per_second", "latency_p50_seconds"},
		check: func(t *testing.T, tr record.Trial) {
			connections := 0
			for _, l := range tr.Loads {
				connections += l.Connections
			}
			if len(tr.Loads) != 2 || connections != 8 {
				t.Errorf("%s: %d connections of %d loads, not 8 of 2", tr.Arm, connections, len(tr.Loads))
			}
			requestsAnswered(t, tr)
		},
	},
	"ebpf-stress": {
		arms: []string{"kernelmesh"}, levels: map[string][]any{"steps": {65535}},
		tells: []string{"sched_delay_p50_seconds", "sched_delay_max_seconds", "bpf_cpu_share",
			"throughput_per_second"},
		ofSubject: []string{"bpf_run_seconds", "bpf_seconds_per_connection"},
		check:     requestsAnswered,
	},
	"mesh-connections": {
		arms: []string{"envoy", "haproxy"}, levels: map[string][]any{"client.connections": {100}},
		tells:     []string{"latency_p50_seconds", "cpu_seconds_per_request", "busy_cpu_seconds_per_request"},
		ofSubject: []string{"subject_cpus", "memory_hard_bytes", "memory_kernel_bytes"},
		check: func(t *testing.T, tr record.Trial) {
			if l := tr.Loads["client"]; l.MaxConnections != 100 {
				t.Errorf("%s: %d connections were open, not 100", tr.Arm, l.MaxConnections)
			}
			proxiesSeen(t, tr)
		},
	},
	"mesh-policy": {
		arms: []string{"envoy", "haproxy"}, levels: map[string][]any{"*.rules": {50}},
		tells:     []string{"latency_p50_seconds", "cpu_seconds_per_request", "busy_cpu_seconds_per_request"},
		ofSubject: []string{"subject_cpus", "subject_cpu_seconds_per_request", "memory_hard_bytes"},
		check:     proxiesSeen,
	},
	"mesh-protocol": {
		arms: []string{"envoy", "haproxy"}, levels: map[string][]any{"traffic": {"grpc"}},
		tells: []string{"latency_p50_seconds"}, ofSubject: []string{"subject_cpus", "memory_hard_bytes"},
		check: proxiesSeen,
	},
	"mesh-kernel": {
		arms: []string{"haproxy", "kernelmesh"}, levels: map[string][]any{"client.keepalive": {false}},
		set:   []string{"client.rate=200"},
		tells: []string{"latency_p50_seconds", "connect_p50_seconds", "cpu_seconds_per_connection"},
		check: allAnswered,
	},
	"mesh-redirect": {
		arms: []string{"iptables", "tproxy", "ebpf"}, levels: map[string][]any{"client.keepalive": {false}},
		set:   []string{"client.rate=200"},
		tells: []string{"latency_p50_seconds", "connect_p50_seconds", "cpu_seconds_per_connection", "subject_cpus"},
		check: redirectedSeen,
	},
	"controlplane-certs": {
		arms: []string{"envoy"}, levels: map[string][]any{"*.certificate-life": {"2s"}}, duration: "2s",
		tells: []string{"latency_p50_seconds", "error_ratio"}, ofSubject: []string{"subject_cpu_seconds_per_request"},
		check: func(t *testing.T, tr record.Trial) {
			proxiesSeen(t, tr)
			for _, p := range sidecarsOf(t, tr).Proxies {
				taken := 0.0
				for name, n := range p.Own {
					if strings.HasPrefix(name, "sds.") && strings.HasSuffix(name, ".update_success") {
						taken = max(taken, n)
					}
				}
				if taken < 2 {
					t.Errorf("%s took certificates %g times: %v", p.Component, taken, p.Own)
				}
			}
		},
	},
	"controlplane-inject": {
		arms: []string{"half-cpu", "certificates", "certificates-half-cpu"},
		tells: []string{"throughput_per_second", "admission_capacity_per_second", "subject_cpu_seconds_per_request",
			"latency_p50_seconds"},
		check: func(t *testing.T, tr record.Trial) {
			for name, r := range tr.Loads {
				if r.Done == 0 || len(r.Errors) > 0 {
					t.Errorf("%s: %s had %d reviews answered, and errors %v", tr.Arm, name, r.Done, r.Errors)
				}
			}
			if v, has := tr.Metrics["admission_certificate_seconds"]; has != strings.HasPrefix(tr.Arm, "certificates") ||
				has && v <= 0 {
				t.Errorf("%s: a certificate takes %g s (measured: %v)", tr.Arm, v, has)
			}
		},
	},
	"controlplane-memory": {
		arms: []string{"mtls", "snapshot"}, levels: map[string][]any{"fleet.proxies": {20}, "*.services": {20}},
		tells: []string{"memory_hard_bytes"}, ofSubject: []string{"memory_hard_bytes"},
		check: func(t *testing.T, tr record.Trial) {
			if v, has := tr.Metrics["fleet_cpu_seconds"]; has { // nothing changes
				t.Errorf("%s: a change takes %g s of CPU time", tr.Arm, v)
			}
		},
	},
	"controlplane-scale": {
		arms: []string{"permissive", "mtls", "snapshot"}, levels: map[string][]any{"fleet.proxies": {20}},
		tells:     []string{"fleet_first_seconds", "fleet_last_seconds", "fleet_answered_seconds", "fleet_bytes"},
		ofSubject: []string{"memory_hard_bytes"},
	},
	"mesh-rate": {
		arms: []string{"envoy", "haproxy", "nginx"}, levels: map[string][]any{"client.rate": {200}}, duration: "1s",
		tells: []string{"latency_p50_seconds", "cpu_seconds_per_request", "busy_cpu_seconds_per_request",
			"app_cpu_seconds_per_request", "load_cpu_seconds_per_request", "kernel_cpu_seconds_per_request",
			"unexplained_cpu_seconds_per_request"},
		ofSubject: []string{"subject_cpu_seconds_per_request", "subject_cpus", "memory_hard_bytes", "start_seconds"},
		check:     proxiesSeen,
	},
	"mesh-size": {
		arms: []string{"envoy-permissive", "haproxy-permissive"}, levels: map[string][]any{"*.services": {50}},
		tells: []string{"latency_p50_seconds"}, ofSubject: []string{"memory_hard_bytes", "start_seconds"},
		check: proxiesSeen,
	},
	"sandbox-idle": {
		arms: []string{"runc"}, levels: map[string][]any{"idle.count": {2}},
		tells: []string{"sandbox_ready_seconds", "sandbox_lost_bytes", "sandbox_taken_bytes", "sandbox_unattributed_share",
			"sandbox_uncharged_share", "sandbox_hard_bytes", "sandbox_pss_bytes",
			"sandbox_thread_count"},
		check: containersSeen,
	},
	"sandbox-io": {
		arms: []string{"runc"}, levels: map[string][]any{"fio.size": {"10MiB"}}, duration: "1s",
		tells: []string{"sandbox_soft_bytes", "sandbox_hard_bytes", "sandbox_left_bytes", "sandbox_left_reclaimed_bytes",
			"fio_bytes_per_second"},
		check: containersSeen,
	},
	"sandbox-app": {
		arms: []string{"runc"}, set: []string{"rate=100", "connections=4"},
		tells: []string{"sandbox_pod_cpus", "sandbox_outside_cpus", "sandbox_pod_hard_bytes", "sandbox_outside_hard_bytes",
			"sandbox_pss_bytes"},
		check: func(t *testing.T, tr record.Trial) {
			allAnswered(t, tr)
			containersSeen(t, tr)
		},
	},
	"sandbox-overhead": {
		arms: []string{"runc"}, tells: []string{"sandbox_hard_bytes", "sandbox_pod_cpus"}, check: containersSeen,
	},
	"sandbox-placement": {
		arms:  []string{"runc"},
		tells: []string{"sandbox_pod_cpus", "sandbox_pod_hard_bytes", "sandbox_pod_working_set_bytes"},
		check: containersSeen,
	},
	"sandbox-redis": {
		arms:  []string{"runc"},
		tells: []string{"tool_rate_per_second", "sandbox_pod_cpus", "sandbox_pod_hard_bytes", "sandbox_outside_hard_bytes"},
		check: containersSeen,
	},
	"sandbox-syscall": {
		arms: []string{"runc"},
		tells: []string{"syscall_getpid_seconds", "syscall_read_seconds", "syscall_write_seconds", "syscall_open_seconds",
			"syscall_open_root_seconds", "syscall_connect_seconds", "syscall_fork_seconds", "syscall_exec_seconds"},
		check: containersSeen,
	},
	"trace-exec": {
		// A load that starts late drops what was due before: it needs some of the window.
		arms: []string{"exectrace"}, levels: map[string][]any{"execs.rate": {200}}, duration: "2s",
		tells:     []string{"events_generated", "throughput_per_second"},
		ofSubject: []string{"events_lost", "cpu_seconds_per_kiloevent", "rss_bytes"},
		check:     eventsCounted,
	},
	"trace-scaling": {
		// Counters may be read a tenth of the window after its edges, and two nodes on a busy machine need that.
		arms: []string{"exectrace"}, levels: map[string][]any{"nodes": {2}}, duration: "2s",
		flags:     []string{"--local-nodes", "2"},
		tells:     []string{"events_generated", "throughput_per_second"},
		ofSubject: []string{"events_lost", "cpu_seconds_per_kiloevent", "rss_bytes"},
		check:     nodesCounted,
	},
	"trace-starved": {
		duration: "1s", // the neighbour holds every CPU: in 300 ms the load may get to nothing
		arms:     []string{"exectrace", "exectrace-limited"}, levels: map[string][]any{"neighbour.share": {1}},
		set:       []string{"execs.rate=500"},
		tells:     []string{"events_generated"},
		ofSubject: []string{"events_lost", "cpu_seconds_per_kiloevent", "rss_bytes"},
		check:     eventsCounted,
	},
}

// requestsAnswered: requests were answered, and the programs of the data plane ran, if the arm has one.
func requestsAnswered(t *testing.T, tr record.Trial) {
	t.Helper()
	allAnswered(t, tr)
	if runs := programRuns(t, tr, "km_connect4"); (runs > 0) != hasSubject(tr) && !windowCut(tr) {
		t.Errorf("%s: the connect program ran %d times", tr.Arm, runs)
	}
}

// allAnswered: requests were answered, and none failed, because noise makes requests late but does not make them fail.
func allAnswered(t *testing.T, tr record.Trial) {
	t.Helper()
	for name, l := range tr.Loads {
		if l.Generator != "http" {
			continue
		}
		if l.Done == 0 || len(l.Errors) > 0 || l.Sent > l.Intended || l.Done+l.Unfinished > l.Sent || l.Late > l.Done {
			t.Errorf("%s, %s: of %d requests %d were sent, %d answered, %d of them late, %d unfinished, errors %v; %s",
				tr.Arm, name, l.Intended, l.Sent, l.Done, l.Late, l.Unfinished, l.Errors, tr.Evidence)
		}
	}
}

// sidecarsOf returns what a trial recorded about its proxies.
func sidecarsOf(t *testing.T, tr record.Trial) (seen sidecar.Evidence) {
	t.Helper()
	for name, raw := range tr.Evidence { // by subject, whose name is the beginning of the arm's
		if !strings.HasPrefix(tr.Arm, name) {
			continue
		}
		if err := json.Unmarshal(raw, &seen); err != nil {
			t.Errorf("%s: %v", tr.Arm, err)
		}
	}
	return seen
}

// proxiesSeen: requests went through both proxies, and the trial has the CPU time and the memory of each.
func proxiesSeen(t *testing.T, tr record.Trial) {
	t.Helper()
	allAnswered(t, tr)
	if !hasSubject(tr) {
		return
	}
	for _, component := range []string{sidecar.Client, sidecar.Server} {
		for _, metric := range []string{"subject_cpus", "subject_cpu_seconds_per_request", "memory_hard_bytes"} {
			if v := tr.Components[component][metric]; v <= 0 && !windowCut(tr) && !starved(tr) {
				t.Errorf("%s: %s of %s is %g", tr.Arm, metric, component, v)
			}
		}
	}
	seen := sidecarsOf(t, tr)
	if len(seen.Proxies) != 2 || !seen.MTLS {
		t.Errorf("%s: %+v", tr.Arm, seen)
	}
	for _, p := range seen.Proxies {
		if p.Own == nil || p.Unsaid != "" {
			t.Errorf("%s: %s says nothing of itself: %s", tr.Arm, p.Component, p.Unsaid)
		}
	}
}

// redirectedSeen: the connections of each arm were redirected to the proxies by the arm's method, and those of the
// baseline went to the proxies' own addresses; all in pods.
func redirectedSeen(t *testing.T, tr record.Trial) {
	t.Helper()
	allAnswered(t, tr)
	want := tr.Arm
	if !hasSubject(tr) {
		want = "explicit"
	}
	var seen sidecar.Evidence
	if err := json.Unmarshal(tr.Evidence["haproxy"], &seen); err != nil || len(seen.Proxies) != 2 || !seen.MTLS ||
		seen.Network != "pods" || seen.Redirect != want {
		t.Errorf("%s: %+v, %v", tr.Arm, seen, err)
	}
	if ran := programRuns(t, tr, "rd_connect4"); (ran > 0) != (want == "ebpf") && !windowCut(tr) {
		t.Errorf("%s: the program at connect() ran %d times", tr.Arm, ran)
	}
}

// starved reports whether others took a quarter of the machine or more, and a load had so few answers that there is no
// cost of a request (none within the window) or no median (not many more than half of the requests were answered at
// all). No gate trips then, because the gates are open.
func starved(tr record.Trial) bool {
	if d := measured.DisturbanceOf(tr.Ledger, 0); d.Stolen+d.Foreign < 0.25 {
		return false
	}
	for _, l := range tr.Loads {
		if l.Finished != nil && *l.Finished == 0 || 5*l.Done < 3*l.Intended {
			return true
		}
	}
	return false
}

// windowCut reports whether the counters were read outside the load's window, because tare was held up, and the trial
// says so. They then do not count the load alone, and a cost may be missing.
func windowCut(tr record.Trial) bool {
	return slices.ContainsFunc(tr.Validity.Reasons,
		func(r record.Reason) bool { return r.Gate == "window" && r.Cause != "" })
}

func hasSubject(tr record.Trial) bool { return tr.Arm != record.Direct && tr.Arm != record.AA }

// runGroup matches a path below a control group of a run. Its submatch identifies the process whose run it is.
var runGroup = regexp.MustCompile(`/tare-[^/]*(-p\d+-t\d+)/`)

// programRuns returns how often the programs of the given name ran that are attached to control groups of the trial's
// run. Another run on the machine may have programs of the same name.
func programRuns(t *testing.T, tr record.Trial, name string) (runs uint64) {
	t.Helper()
	ofRun := "" // part of the path of the run's groups: of all trials, so that what an earlier one left counts too
	for _, g := range tr.Ledger.Cgroups {
		if m := runGroup.FindStringSubmatch(g.Path); m != nil && g.Role != "" {
			ofRun = m[1] + "/"
		}
	}
	if ofRun == "" {
		t.Fatalf("%s: no control group has a role in the trial", tr.Arm)
	}
	for _, p := range tr.Ledger.Programs {
		attached := slices.ContainsFunc(p.Attached, func(target string) bool { return strings.Contains(target, ofRun) })
		if p.Name == name && p.RunCount != nil && attached {
			runs += *p.RunCount
		}
	}
	return runs
}

// containersSeen: the processes in containers were charged to the container's control group, and each container had one
// shim that was charged elsewhere; the containers ended when asked to, and left nothing. The baseline runs the same
// processes without containers.
func containersSeen(t *testing.T, tr record.Trial) {
	t.Helper()
	var seen subject.Evidence
	if err := json.Unmarshal(tr.Evidence["sandbox"], &seen); err != nil || len(seen.Sandboxes) == 0 {
		t.Errorf("%s: %d sandboxes, %v", tr.Arm, len(seen.Sandboxes), err)
	}
	for _, s := range seen.Sandboxes {
		components := map[string]int{}
		for _, p := range s.Processes {
			components[p.Component]++
			if inPod := strings.HasPrefix(p.MemoryCgroup, s.Cgroup); inPod != (p.Component == subject.Workload) {
				t.Errorf("%s: the %s %d of %s is charged to %s", tr.Arm, p.Component, p.PID, s.Name, p.MemoryCgroup)
			}
		}
		contained := tr.Arm == "runc"
		if components[subject.Workload] == 0 || (components[subject.Shim] == 1) != contained {
			t.Errorf("%s: %s consists of %v", tr.Arm, s.Name, components)
		}
		if contained && (s.Times.Started == 0 || s.Times.Deleted < s.Times.Started || s.Times.Killed) {
			t.Errorf("%s: %s has the times %+v", tr.Arm, s.Name, s.Times)
		}
	}
	for _, w := range tr.Ledger.Warnings {
		if w.Code == record.LeftBehind {
			t.Errorf("%s: %s", tr.Arm, w.Message)
		}
	}
}

// eventsCounted: the kernel counted the events that the load made, and the reference tracer either delivered each or
// reported it as lost.
func eventsCounted(t *testing.T, tr record.Trial) {
	t.Helper()
	e := tr.Events
	switch {
	case e == nil || e.Generated == 0 && !starved(tr) || e.Generated != e.Counted || e.Missed != 0 || e.Failed != 0:
		t.Errorf("%s: the load made what the kernel did not count: %s", tr.Arm, shown(e))
	case !hasSubject(tr):
		if e.Delivered != nil {
			t.Errorf("%s has no tracer: %s", tr.Arm, shown(e))
		}
	case e.Delivered == nil || e.SaidLost == nil || *e.Expected != e.Counted || *e.Delivered+*e.SaidLost != *e.Expected:
		t.Errorf("%s: what was not delivered is not what was lost: %s", tr.Arm, shown(e))
	}
}

// nodesCounted: every node counted its own events, and the trial has the sum. A node whose counters were read too late
// is not in the sum, and says so.
func nodesCounted(t *testing.T, tr record.Trial) {
	t.Helper()
	generated := int64(0)
	for _, n := range tr.Nodes {
		if n.Trial == nil {
			t.Errorf("%s has no trial: %s", n.Name, n.Failed)
			continue
		}
		eventsCounted(t, *n.Trial)
		switch {
		case n.Failed == "":
			generated += n.Trial.Events.Generated
		case strings.Contains(n.Failed, "is too busy"):
			t.Logf("%s: %s", n.Name, n.Failed)
		default:
			t.Errorf("%s: %s", n.Name, n.Failed)
		}
	}
	if v, ok := tr.Metrics["events_generated"]; len(tr.Nodes) != 2 || ok && v != float64(generated) {
		t.Errorf("%d nodes made %d events, and all together %g", len(tr.Nodes), generated, v)
	}
}

// env returns the further environment variables that the experiment needs.
func (s smallest) env(t *testing.T) []string {
	t.Helper()
	if slices.ContainsFunc(s.arms, func(arm string) bool { return strings.HasPrefix(arm, "envoy") }) {
		return withEnvoy(t)
	}
	return nil
}

// spec returns the text of the experiment in its smallest form.
func (s smallest) spec(t *testing.T, name string) string {
	t.Helper()
	_, text, ok := experiments.File(name)
	if !ok {
		t.Fatalf("there is no experiment %s", name)
	}
	spec := map[string]any{}
	if err := yaml.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	section := func(key string) map[string]any {
		m, _ := spec[key].(map[string]any)
		if m == nil {
			m = map[string]any{}
		}
		spec[key] = m
		return m
	}
	delete(spec, "quick")
	spec["blocks"], spec["warmup"], spec["duration"] = 1, "50ms", "300ms"
	spec["repeat"] = "100%" // with the usual 50 % of so short a plan, hardly any trial could be repeated
	if s.duration != "" {
		spec["duration"] = s.duration
	}
	maps.Copy(section("gates"), openGates)
	arms := section("arms")
	for _, arm := range s.arms {
		if arms[arm] == nil {
			t.Fatalf("%s has no arm %s", name, arm)
		}
	}
	maps.DeleteFunc(arms, func(arm string, _ any) bool { return !slices.Contains(s.arms, arm) })
	if factors := section("factors"); len(factors) == 0 {
		delete(spec, "factors")
	} else {
		for factor := range factors {
			if len(s.levels[factor]) == 0 {
				t.Fatalf("%s has the factor %s, and no level of it was chosen", name, factor)
			}
			cases, named := factors[factor].(map[string]any)
			if !named {
				factors[factor] = s.levels[factor]
				continue
			}
			maps.DeleteFunc(cases, func(name string, _ any) bool { return !slices.Contains(s.levels[factor], any(name)) })
			if len(cases) != len(s.levels[factor]) {
				t.Fatalf("%s has not all of the cases %v of %s", name, s.levels[factor], factor)
			}
		}
	}
	out, err := yaml.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// TestBuiltIns runs the smallest form of every built-in experiment, from its spec to its answer. How busy the machine
// is must not matter: an invalid run, a failed trial, and a metric of the answer that is missing without a cause are
// failures.
func TestBuiltIns(t *testing.T) {
	t.Parallel()
	needsRoot(t)
	everyday := []string{"quickstart", "config-push", "mesh-connections", "sandbox-overhead", "trace-exec"}
	for _, name := range experiments.Names() {
		t.Run(name, func(t *testing.T) {
			s, ok := smallests[name]
			if !ok {
				t.Fatal("it has no smallest form here")
			}
			if !slices.Contains(everyday, name) {
				long.Test(t, "5 s each: the smallest form of every built-in experiment")
			}
			leavesNothing(t)
			s.run(t, name)
		})
	}
}

func (s smallest) run(t *testing.T, name string) {
	file := specFile(t, s.spec(t, name))
	dir, c := s.record(t, file)
	for again := 0; again < 2 && slices.ContainsFunc(c.Trials, holderEnded); again++ {
		t.Log("it runs again: a process of another test may have belonged to the subject")
		dir, c = s.record(t, file)
	}
	warnings := slices.DeleteFunc(c.Warnings, func(w string) bool { // the tests beside this one cause this warning
		return strings.HasPrefix(w, "another run of tare is under way on this machine")
	})
	if c.Partial || len(warnings) > 0 || len(c.Run.Plan) != 2+len(s.arms) {
		t.Errorf("partial %v, warnings %q, %d planned trials of %d arms",
			c.Partial, warnings, len(c.Run.Plan), 2+len(s.arms))
	}
	last := map[int]record.Trial{} // the last attempt at each planned trial: if any succeeded, this one did
	for _, tr := range c.Trials {
		last[tr.Index] = tr
	}
	for _, p := range c.Run.Plan {
		tr, ok := last[p.Index]
		if !ok || tr.Arm != p.Arm || tr.Validity.Failed != "" {
			t.Errorf("trial %d, %s: there %v, failed: %s", p.Index, p.Arm, ok, tr.Validity.Failed)
			continue
		}
		metrics := s.tells
		if hasSubject(tr) || c.Run.Baseline != "" {
			metrics = slices.Concat(s.tells, s.ofSubject)
		}
		for _, metric := range metrics {
			tellsOrVoided(t, tr, metric)
		}
		if s.check != nil {
			s.check(t, tr)
		}
	}
	s.answered(t, dir)
}

// record runs the experiment of a file, and returns the directory of the run and what it recorded.
func (s smallest) record(t *testing.T, file string) (dir string, c *record.Contents) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "out")
	args := append([]string{"run", file, "--out", dir, "--seed", "3"}, s.flags...)
	for _, set := range s.set {
		args = append(args, "--set", set)
	}
	o := command{args: args, env: s.env(t), timeout: 10 * time.Minute}.start(t).wait(t)
	if o.code != 0 {
		t.Fatal(o)
	}
	c, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d trials in %s", len(c.Trials), o.took.Round(100*time.Millisecond))
	return dir, c
}

// holderEnded reports whether a process that held eBPF objects ended just after the window. What the subject's programs
// used is then unknown, although the process may be one of a test that runs beside this one.
func holderEnded(tr record.Trial) bool {
	return slices.ContainsFunc(tr.Warned(), func(w ledger.Warning) bool { return w.Code == "holder-ended" })
}

// tellsOrVoided: the trial has the metric, or tripped a gate that voids the metric, and names the cause.
func tellsOrVoided(t *testing.T, tr record.Trial, metric string) {
	t.Helper()
	if reason, voided := tr.Validity.VoidedBy(metric); voided {
		if reason.Cause == "" || reason.Message == "" {
			t.Errorf("%s: %s is void, and nobody is the cause: %+v", tr.Arm, metric, reason)
		}
		t.Logf("%s: %s is void: %s", tr.Arm, metric, reason.Message)
		return
	}
	if slices.ContainsFunc(tr.Nodes, func(n record.NodeTrial) bool { return n.Failed != "" }) {
		return // sums are of all nodes or of none; other checks look at why a node failed
	}
	value, single := tr.Metrics[metric]
	count, pooled := tr.Counts[metric]
	switch {
	case !single && !pooled && (windowCut(tr) || starved(tr)):
		t.Logf("%s: %s is missing: %+v", tr.Arm, metric, tr.Validity.Reasons)
	case !single && !pooled:
		t.Errorf("%s: %s is missing; there are %q and %q; loads %+v, reasons %+v, warnings %q", tr.Arm, metric,
			slices.Sorted(maps.Keys(tr.Metrics)), slices.Sorted(maps.Keys(tr.Counts)), tr.Loads, tr.Validity.Reasons,
			tr.Warned())
	case single && (math.IsNaN(value) || math.IsInf(value, 0)), pooled && (count.In < 0 || count.In > count.Of):
		t.Errorf("%s: %s is %g, %+v", tr.Arm, metric, value, count)
	}
}

// answered: the run is valid and has answers, each of which rests on estimates that the summary has.
func (s smallest) answered(t *testing.T, dir string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, record.SummaryFile))
	if err != nil {
		t.Fatal(err)
	}
	var summary analysis.Summary
	if err := json.Unmarshal(text, &summary); err != nil {
		t.Fatal(err)
	}
	if !summary.Valid || len(summary.Answers) == 0 {
		t.Fatalf("valid %v (%q), %d answers", summary.Valid, summary.InvalidReasons, len(summary.Answers))
	}
	rests := 0
	for _, a := range summary.Answers {
		t.Log(a.Answer)
		for _, e := range a.Evidence {
			metric, arm, _ := strings.Cut(e, " ")
			is := func(e analysis.Estimate) bool { return e.Metric == metric && e.Arm == arm }
			if !slices.ContainsFunc(summary.Estimates, is) {
				t.Errorf("an answer rests on %s, which is no estimate: %s", e, a.Answer)
			}
			rests++
		}
	}
	if rests == 0 && len(summary.Missing) == 0 {
		t.Errorf("the answers rest on nothing, and nothing is missing: %+v", summary.Answers)
	}
}
