package subject

import (
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
)

// TestMoved: for a virtual machine that was moved out of its overhead group, the metric for the version of control
// groups is reported; for one that was in the pod from the start, neither is.
func TestMoved(t *testing.T) {
	const pod, overhead, box = "/t/work/server", "/t/subject/overhead/server", "/t/work/server/kata_1"
	shim := Process{PID: 1, Component: Shim, MemoryCgroup: overhead + "/1", CPUCgroup: overhead + "/1",
		Resident: Resident{RSS: 9, PSS: 8, Anon: 3, File: 5}}
	virtiofsd := Process{PID: 3, Component: Virtiofsd, MemoryCgroup: overhead + "/1", CPUCgroup: overhead + "/1",
		Resident: Resident{RSS: 40, PSS: 20, Anon: 1, File: 2, Shmem: 17}}
	vmm := func(memory, cpu string, threads map[string]int) Process {
		return Process{PID: 2, Component: VMM, MemoryCgroup: memory, CPUCgroup: cpu, ThreadCgroups: threads,
			Resident: Resident{RSS: 400, PSS: 380, Anon: 80, File: 5, Shmem: 295}}
	}
	for _, c := range []struct {
		name          string
		vmm           Process
		held          *ledger.Memory // memory of the overhead group
		apart, stayed float64        // -1: not reported
	}{
		{"v1", vmm(overhead+"/1", overhead+"/1", map[string]int{box: 1}), memoryOf(82, 300, 390), 390, -1},
		{"v2", vmm(box, box, nil), memoryOf(70, 200, 280), -1, 70 + 200 - 3 - 1 - 17},
		{"v2, nothing stayed", vmm(box, box, nil), memoryOf(3, 2, 10), -1, 0},
		{"not counted", vmm(box, box, nil), &ledger.Memory{}, -1, -1},
		{"never moved", vmm(overhead+"/1", overhead+"/1", nil), memoryOf(82, 300, 390), -1, -1},
		{"all in the pod", vmm(box, box, nil), nil, -1, -1},
	} {
		l := &ledger.Ledger{Cgroups: []ledger.Cgroup{groupOf(pod, string(kind.Application), "", memoryOf(5, 5, 11))}}
		if c.held != nil {
			l.Cgroups = append(l.Cgroups,
				groupOf("/t/subject", string(kind.Subject), "", memoryOf(99, 999, 999)),
				groupOf(overhead, string(kind.Subject), overheadComponent, c.held),
				groupOf(overhead+"/1", string(kind.Subject), overheadComponent, c.held)) // already counted in the group above
		}
		m := &measured.Measured{Trial: record.Trial{Ledger: l}}
		e := &Evidence{Sandboxes: []Sandbox{{Name: "server", Cgroup: pod, Processes: []Process{shim, c.vmm, virtiofsd}}}}
		for what, got := range map[string]func(*Evidence, *measured.Measured) (float64, bool){
			"apart": apartBytes, "stayed": stayedBytes,
		} {
			want := c.apart
			if what == "stayed" {
				want = c.stayed
			}
			v, told := got(e, m)
			if told != (want >= 0) || told && v != want {
				t.Errorf("%s: %s is %g, %t; want %g", c.name, what, v, told, want)
			}
		}
	}
}

func memoryOf(anon, shmem uint64, hard int64) *ledger.Memory {
	return &ledger.Memory{Anon: &anon, Shmem: &shmem, Hard: &hard}
}

func groupOf(path, role, component string, m *ledger.Memory) ledger.Cgroup {
	g := ledger.Cgroup{Path: path, Role: role, Memory: m}
	g.Component = component
	return g
}
