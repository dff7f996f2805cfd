package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"tare/experiments"
	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/internal/sandboxes/subject"
)

// placementSpec returns the built-in experiment sandbox-placement with only the given arms, and with longer time
// limits: a virtual machine that boots here in two seconds takes some ten times as long where two kernels handle every
// page fault.
func placementSpec(t *testing.T, arms []string) []byte {
	t.Helper()
	_, text, ok := experiments.File("sandbox-placement")
	if !ok {
		t.Fatal("there is no such experiment")
	}
	var spec map[string]any
	if err := yaml.Unmarshal(text, &spec); err != nil {
		t.Fatal(err)
	}
	delete(spec, "quick")
	all := spec["arms"].(map[string]any)
	for name, arm := range all {
		if !slices.Contains(arms, name) {
			delete(all, name)
			continue
		}
		setting := arm.(map[string]any)
		delete(setting, "optional")
		setting["ready-timeout"] = "3m"
	}
	text, err := yaml.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestPlacementV2 runs sandbox-placement with only cgroup v2, with runc and with virtual machines. It does so in a
// machine with a kernel in user mode, in which QEMU is as fast as it is here. Because it takes minutes, it runs only on
// request: TARE_NESTED is the number of blocks to run, TARE_NESTED_ARMS names the arms, and TARE_NESTED_OUT is the
// directory in which the run is kept.
func TestPlacementV2(t *testing.T) {
	blocks, err := strconv.Atoi(os.Getenv("TARE_NESTED"))
	if err != nil {
		t.Skip("takes a minute or more for each block; TARE_NESTED=1 runs one")
	}
	arms := strings.Fields(os.Getenv("TARE_NESTED_ARMS"))
	if len(arms) == 0 {
		arms = []string{"runc", "microvm", "microvm-split"}
	}
	files, err := Sandboxes(true)
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	files["/spec.yaml"] = placementSpec(t, arms)
	o := Options{UserMode: true, Containers: true, Files: files, MemoryMiB: 3072, Timeout: 2 * time.Hour}
	r := Run(t, o, LoadModules+fmt.Sprintf(`
(while sleep 60; do cat /proc/uptime >&2; done) & # else a machine that only waits counts as hung
tare run /spec.yaml --blocks %d --seed 1 --out /run/out >&2
code=$?
kill $!
tar -c -C /run/out . | gzip | base64
exit $code`, blocks))
	dir := os.Getenv("TARE_NESTED_OUT")
	if dir == "" {
		dir = filepath.Join(t.TempDir(), "out")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	unpack := exec.Command("sh", "-c", `base64 -d | tar -xz -C "$0"`, dir)
	unpack.Stdin = strings.NewReader(r.Output)
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("unpacking the run directory: %v %s\nend of the console:\n%s", err, out, tail(r.Console))
	}
	if r.ExitCode != 0 && r.ExitCode != 4 {
		t.Fatalf("exit code %d\nend of the console:\n%s", r.ExitCode, tail(r.Console))
	}
	t.Logf("%s from start to power-off, in %s", r.Took, dir)
	run, err := record.Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	valid := map[string]int{}
	for _, tr := range run.Trials {
		if tr.Validity.Failed != "" { // now and then an emulated machine hangs while it boots
			t.Logf("block %d, %s failed: %s", tr.Block, tr.Arm, tr.Validity.Failed)
			continue
		}
		valid[tr.Arm]++
		checkPlacedV2(t, tr)
	}
	for _, arm := range arms {
		if 2*valid[arm] < blocks {
			t.Errorf("only %d trials of %s did not fail", valid[arm], arm)
		}
	}
	s, err := analysis.Summarize(run.Run, run.Trials)
	if err != nil {
		t.Fatal(err)
	}
	checkToldV2(t, s, arms)
}

// checkToldV2 looks for the report's sentence about what stayed behind: it must be in the answer for the arm that moves
// its machines, and in no other.
func checkToldV2(t *testing.T, s *analysis.Summary, arms []string) {
	t.Helper()
	const words = "a process moves whole, and its pages stay charged where they were touched"
	told := 0
	for _, a := range s.Answers {
		t.Log(a.Answer)
		told += strings.Count(a.Answer, words)
	}
	if want := slices.Contains(arms, "microvm-split"); (told == 1) != want {
		t.Errorf("the report says %d times that pages %q", told, words)
	}
}

// checkPlacedV2 checks that the evidence of a trial agrees with how cgroup v2 behaves.
func checkPlacedV2(t *testing.T, tr record.Trial) {
	t.Helper()
	var e subject.Evidence
	if err := json.Unmarshal(tr.Evidence["sandbox"], &e); err != nil {
		t.Fatal(err)
	}
	for _, s := range e.Sandboxes {
		for _, p := range s.Processes {
			if p.Component == subject.VMM && (p.MemoryCgroup != p.CPUCgroup || len(p.ThreadCgroups) > 0 ||
				!strings.HasPrefix(p.MemoryCgroup, s.Cgroup+"/")) {
				t.Errorf("%s: a VMM is not in the pod's group %s whole: %+v", tr.Arm, s.Cgroup, p)
			}
		}
	}
	stayed, told := tr.Metrics["sandbox_stayed_bytes"]
	outside := tr.Metrics["sandbox_outside_hard_bytes"]
	if told != (tr.Arm == "microvm-split") || told && (stayed < 20e6 || stayed > outside) {
		t.Errorf("%s: %g bytes stayed of %g outside of the pod", tr.Arm, stayed, outside)
	}
	if in, out := tr.Metrics["sandbox_pod_cpus"], tr.Metrics["sandbox_outside_cpus"]; in < 2*out {
		t.Errorf("%s: %g CPUs are charged to the pod, and %g to others", tr.Arm, in, out)
	}
	if _, told := tr.Metrics["sandbox_apart_bytes"]; told {
		t.Errorf("%s: only threads were moved", tr.Arm)
	}
}
