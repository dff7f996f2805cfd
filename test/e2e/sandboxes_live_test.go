package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"tare/internal/scale/host/proc"
	"tare/internal/scale/ledger"
)

// TestWeighManySandboxes: with many sandboxes of all runtimes running side by side, 'tare weigh' lists every process of
// each, as what it is. TARE_SANDBOXES is how many of each there are; without it there are two, and no virtual machines.
func TestWeighManySandboxes(t *testing.T) {
	needsRoot(t)
	leavesNothing(t)
	each := 2
	if n, err := strconv.Atoi(os.Getenv("TARE_SANDBOXES")); err == nil {
		each = n
	}
	root := func(name string) string {
		dir := filepath.Join(t.TempDir(), name)
		t.Cleanup(func() { // runsc keeps a network namespace mounted there
			_ = unix.Unmount(filepath.Join(dir, "null-netns"), unix.MNT_DETACH)
		})
		return dir
	}
	runc := ociRuntime{name: "runc", argv: []string{runtimeFor(t, "runc"), "--root", root("runc")}}
	runsc := ociRuntime{name: "runsc", argv: []string{
		runtimeFor(t, "runsc"), "--root", root("runsc"), "--platform=systrap", "--overlay2=none", "--network=none",
	}}
	all := []ociRuntime{runc, runsc}
	if os.Getenv("TARE_SANDBOXES") != "" {
		vm := microvm(t)
		vm.env = append(vm.env, "TARE_MICROVM_MEMORY=96")
		all = append(all, vm)
	}
	want := map[string]ociRuntime{} // by id
	for _, r := range all {
		for i := range each {
			id := fmt.Sprintf("%s-%d", idOf("many-"+r.name), i)
			bundle := ociBundle(t, id, "sleep 10000 & echo ready; wait", func(s *specs.Spec) {
				s.Linux.CgroupsPath = filepath.Join(filepath.Dir(s.Linux.CgroupsPath), "many", id)
			})
			out := r.create(t, id, bundle)
			r.must(t, "start", id)
			waitFor(t, out, "ready")
			want[id] = r
		}
	}
	o := command{args: []string{"weigh", "--for", "1s", "--json", "--runtime-root", runc.argv[2]},
		timeout: 5 * time.Minute}.
		start(t).wait(t)
	if o.code != 0 {
		t.Fatal(o)
	}
	l := readLedger(t, o.stdout)
	found := map[int]string{} // "sandbox component" by process
	arranged := map[string]int{}
	for _, s := range l.Sandboxes {
		if _, ours := want[s.ID]; ours {
			arranged[s.Arrangement]++
		}
		for _, p := range s.Processes {
			found[p.PID] = s.ID + " " + p.Component
			if p.Component == "vmm" && !slices.ContainsFunc(p.Threads, func(t ledger.SandboxThread) bool {
				return t.Component == "vcpu"
			}) {
				t.Errorf("%s: no thread of the VMM is a virtual CPU: %+v", s.ID, p.Threads)
			}
		}
	}
	truth := sandboxTruth(want)
	missed, wrong, counts := 0, 0, map[string]int{}
	for pid, is := range truth {
		_, component, _ := strings.Cut(is, " ")
		counts[component]++
		switch has, listed := found[pid]; {
		case !listed:
			missed++
			t.Errorf("process %d (%s) is missing", pid, is)
		case has != is:
			wrong++
			t.Errorf("process %d is %s, and is said to be %s", pid, is, has)
		}
	}
	extra := 0
	for pid, is := range found {
		id, _, _ := strings.Cut(is, " ")
		if _, ours := want[id]; ours && truth[pid] == "" {
			extra++
			t.Errorf("process %d, which is said to be %s, is none", pid, is)
		}
	}
	if counts["workload"] < 2*2*each || counts["sentry"] != each || counts["gofer"] != each {
		t.Errorf("the processes are %v", counts)
	}
	t.Logf("%d sandboxes, %d processes %v: %d missed, %d wrong, %d too many; arranged %v; finding sandboxes took %v s",
		len(want), len(truth), counts, missed, wrong, extra, arranged, *l.Self.SandboxSeconds)
}

// sandboxTruth returns, by process, what the processes of sandboxes are, as "sandbox component". It finds that out
// without tare: by control groups, which are named after the sandboxes, by environments and by parents.
func sandboxTruth(want map[string]ociRuntime) map[int]string {
	truth := map[int]string{}
	pids, _ := proc.FS{}.PIDs()
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/", pid)
		line, _ := os.ReadFile(dir + "cmdline")
		groups, _ := os.ReadFile(dir + "cgroup")
		env, _ := os.ReadFile(dir + "environ")
		for id, r := range want {
			if !slices.ContainsFunc(strings.Split(string(groups), "\n"), func(line string) bool {
				return strings.HasSuffix(line, "/"+id) || strings.HasSuffix(line, "/kata_"+id)
			}) && !strings.Contains(string(env), "TARE_MICROVM=/run/tare-microvm/"+id+"\x00") {
				continue
			}
			is, program := "workload", filepath.Base(strings.Split(string(line), "\x00")[0])
			switch {
			case r.name == "runsc" && program == "runsc-sandbox":
				is = "sentry"
			case r.name == "runsc" && program == "runsc-gofer":
				is = "gofer"
			case r.name == "microvm" && program == "qemu-system-x86_64":
				is = "vmm"
			case r.name == "microvm" && program == "virtiofsd":
				is = "virtiofsd"
			case r.name == "microvm":
				is = "shim"
			}
			truth[pid] = id + " " + is
		}
	}
	return truth
}
