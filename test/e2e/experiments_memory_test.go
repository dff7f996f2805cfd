package e2e

import (
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"tare/internal/results/analysis"
	"tare/internal/scale/host/cgroup"
)

// TestStress: at the verifier's limit the programs take most of a machine that stays usable, and a waiting task is held
// up by about one run.
func TestStress(t *testing.T) {
	needsTime(t)
	needsRoot(t)
	leavesNothing(t)
	_, s := quickly(t, "ebpf-stress")
	at := map[string]string{"steps": "8388608"}
	share, run, wait := s.Find("bpf_cpu_share", "kernelmesh", at), s.Find("bpf_run_seconds", "kernelmesh",
		at), s.Find("sched_delay_p50_seconds", "kernelmesh", at)
	if share == nil || run == nil || wait == nil {
		t.Fatalf("missing: %v, %v, %v", share, run, wait)
	}
	if !share.Difference.Resolved || share.Value < 0.3 {
		t.Errorf("the programs took %g of the machine: %+v", share.Value, share.Difference)
	}
	// 2^23 steps take far longer than any time slice; a task that becomes ready during a run waits for a part of it.
	if run.Value < 0.005 || !wait.Difference.Resolved || wait.Value > 4*run.Value {
		t.Errorf("a run takes %g s, a task waits %g s: %+v", run.Value, wait.Value, wait.Difference)
	}
	if e := s.Find("throughput_per_second", "kernelmesh", at); e == nil || !e.Difference.Resolved ||
		e.Difference.Value >= 0 {
		t.Errorf("throughput %+v", e)
	}
	if a := s.Answers[0].Answer; !regexp.MustCompile(`^(The machine stays|The machine does not stay|Whether the machine stays) usable.* waited [0-9.]+ m?s at the longest`).MatchString(a) {
		t.Errorf("the answer is %q", a)
	}
	if len(s.Answers) != 3 {
		t.Errorf("%d answers for two levels: %+v", len(s.Answers), s.Answers)
	}
}

// TestMemory compares the model of ebpf-memory with what bpftool says of the same maps, of a data plane that the test
// starts by itself.
func TestMemory(t *testing.T) {
	needsTime(t)
	needsRoot(t)
	leavesNothing(t)
	c, s := quickly(t, "ebpf-memory")
	for _, tr := range c.Trials {
		if tr.Arm == "fixed" && (len(tr.Further) != 2 || tr.Metrics["map_before_bytes"] != tr.Metrics["map_bytes"]) {
			t.Errorf("trial %d: %d further readings, maps of %g and %g bytes", tr.Index, len(tr.Further),
				tr.Metrics["map_before_bytes"], tr.Metrics["map_bytes"])
		}
	}
	var model *analysis.Model
	for i := range s.Models {
		if m := &s.Models[i]; m.Metric == "map_bytes" && m.Arm == "fixed" {
			model = m
		}
	}
	if model == nil || len(model.Terms) != 2 {
		t.Fatalf("no model of map_bytes among %d", len(s.Models))
	}
	fixed, each := model.Terms[0].Value, model.Terms[1].Value
	const services = 300
	bytes, shared := bpftoolMaps(t, services)
	if predicted := fixed + each*services; math.Abs(predicted-bytes) > 0.001*bytes {
		t.Errorf("by the model %d services take %.0f + %.2f x %d = %.0f B; bpftool says %.0f B", services, fixed, each,
			services, predicted, bytes)
	}
	t.Logf("%.0f B and %.2f B for each service; bpftool says %.0f B with %d services", fixed, each, bytes, services)
	// A listener, a cluster, and some six records of up to 1600 bytes: see docs/kernelmesh.md.
	if each < 5000 || each > 20_000 {
		t.Errorf("%g bytes for each service", each)
	}
	top := map[string]string{"*.services": "10000"}
	byProgram, declared := s.Find("map_by_program_bytes", "fixed", top), s.Find("map_declared_bytes", "fixed", top)
	if first := s.Find("map_by_program_bytes", "fixed", map[string]string{"*.services": "1"}); byProgram == nil ||
		first == nil || first.Value != byProgram.Value {
		t.Errorf("by max_entries, the maps are %+v with 1 service and %+v with 10,000", first, byProgram)
	}
	if shared && declared != nil && byProgram != nil && byProgram.Value <= declared.Value {
		t.Errorf("programs share maps, and once for each program they are %g B, each once %g B", byProgram.Value,
			declared.Value)
	}
	for _, want := range []string{"each map counted once", "for each service", "once for each program that uses them",
		"own control group", "After the services are removed"} {
		if !strings.Contains(s.Answers[len(s.Answers)-1].Answer, want) {
			t.Errorf("the answer lacks %q: %s", want, s.Answers[len(s.Answers)-1].Answer)
		}
	}
}

// bpftoolMaps starts a data plane with maps like those of the arm "fixed" and the given number of services, and adds up
// what bpftool says of its maps, each once. It also says whether any map has more than one program.
func bpftoolMaps(t *testing.T, services int) (bytes float64, shared bool) {
	t.Helper()
	if _, err := exec.LookPath("bpftool"); err != nil {
		t.Skip("needs bpftool")
	}
	var text strings.Builder
	text.WriteString("services:\n")
	for i := range services {
		n := strconv.Itoa(i>>8) + "." + strconv.Itoa(i&0xff)
		text.WriteString("  - address: 10.96." + n + ":80\n    endpoints: [{address: 198.18." + n + ":8080}]\n")
	}
	file := filepath.Join(t.TempDir(), "services.yaml")
	if err := os.WriteFile(file, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	dir := ""
	for _, h := range layout.Hierarchies {
		if h.V2 {
			dir = filepath.Join(h.Mount, "tare-test-maps-"+strconv.Itoa(os.Getpid()))
		}
	}
	if dir == "" {
		t.Skip("needs a cgroup v2 hierarchy")
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	defer removeGroup(t, dir)
	p := command{args: []string{"subject", "kernelmesh", "--services", file, "--cgroup", dir, "--store", "sized",
		"--max-services", "16384", "--max-endpoints", "16384", "--human"}}.start(t)
	p.waitFor(t, "km_clusters")
	p.waitFor(t, "sized_strings") // the last line
	programs, maps := map[int]bool{}, map[int]bool{}
	table := programs
	for line := range strings.Lines(p.stdout.String()) {
		f := strings.Fields(line)
		switch {
		case len(f) > 1 && f[0] == "map" && f[1] == "id":
			table = maps
		case len(f) == 4:
			if id, err := strconv.Atoi(f[1]); err == nil {
				table[id] = true
			}
		}
	}
	if len(programs) != 9 || len(maps) != 13 {
		t.Fatalf("%d programs and %d maps in:\n%s", len(programs), len(maps), p.stdout.String())
	}
	var shown []struct {
		ID     int     `json:"id"`
		Bytes  float64 `json:"bytes_memlock"`
		MapIDs []int   `json:"map_ids"`
	}
	list := func(what string) {
		shown = nil
		if err := json.Unmarshal(bpftool(t, "--json", what, "show"), &shown); err != nil {
			t.Fatal(err)
		}
	}
	list("map")
	for _, m := range shown {
		if maps[m.ID] {
			bytes += m.Bytes
		}
	}
	list("prog")
	users := map[int]int{}
	for _, prog := range shown {
		for _, id := range prog.MapIDs {
			if programs[prog.ID] {
				users[id]++
				shared = shared || users[id] > 1
			}
		}
	}
	p.signal(t, syscall.SIGINT)
	p.wait(t)
	return bytes, shared
}
