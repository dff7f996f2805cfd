package report_test

import (
	"bytes"
	"strings"
	"testing"

	"tare/internal/results/report"
	"tare/internal/scale/ledger"
)

// TestLedgerTellsSandboxes checks the exact text about a sandbox.
func TestLedgerTellsSandboxes(t *testing.T) {
	seconds := func(v float64) *float64 { return &v }
	bytesOf := func(v uint64) *uint64 { v *= 1e6; return &v }
	hard := func(v int64) *int64 { v *= 1e6; return &v }
	memory := func(pss, anon, file, shmem uint64) *ledger.SandboxMemory {
		return &ledger.SandboxMemory{PSS: pss * 1e6, Anon: bytesOf(anon), File: bytesOf(file), Shmem: bytesOf(shmem),
			PageTables: 1e6}
	}
	kata := ledger.Sandbox{
		ID: strings.Repeat("a1", 32), Pod: &ledger.SandboxPod{UID: "u", Namespace: "shop", Name: "web-0"}, Runtime: "kata",
		Engine: "containerd", VM: true, Arrangement: "x", Title: "Kata, all of it outside",
		GrossCPU: seconds(3), NetCPU: seconds(2), TareCPU: seconds(1),
		GrossMemory: bytesOf(300), NetMemory: bytesOf(200), TareMemory: bytesOf(100),
		Components: []ledger.SandboxComponent{
			{Component: ledger.ComponentGuest, Memory: memory(200, 0, 0, 200)},
			{Component: "vmm", Processes: 1, CPU: seconds(0.5), Memory: memory(60, 40, 20, 0)},
			{Component: "vcpu", Threads: 2, CPU: seconds(2)},
			{Component: "virtiofsd", Processes: 2, CPU: seconds(0.5), Memory: memory(40, 30, 10, 0)},
		},
		ByContainer: []ledger.SandboxContainer{
			{ID: strings.Repeat("b2", 32), Name: "app", CPU: seconds(2), MemoryHard: hard(90), Memory: memory(80, 70, 10, 0)},
			{ID: strings.Repeat("c3", 32)},
		},
		ChargedInside: hard(0), ChargedOutside: hard(290),
		Declared: &ledger.SandboxOverhead{MemoryBytes: 320e6, Source: "annotation x"}, MeasuredOverhead: bytesOf(72),
		Findings: []ledger.SandboxFinding{{Code: "mischarged",
			Message: "the VMM is charged to \x1b[31mcontainerd.service, outside its pod"}},
		Notes: []string{"net is the whole guest"},
	}
	l := ledger.Ledger{CPU: ledger.Budget(ledger.Usage{Capacity: 20, Idle: 20}),
		Sandboxes: []ledger.Sandbox{kata, {ID: "box", Runtime: "", Notes: []string{}}}}
	l.Window.Seconds = 10
	var b bytes.Buffer
	if err := report.Ledger(&b, &l, report.Options{Width: 100}); err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(b.String(), "Sandboxes: ")
	text, _, _ = strings.Cut(text, "\n\n")
	want := strings.TrimPrefix(`
2  (PSS: resident memory, pages that processes share divided among them)
   CPU gross        net       tare    PSS gross        net       tare  sandbox
      3.00 s     2.00 s     1.00 s       300 MB     200 MB     100 MB  a1a1a1a1a1a1 (shop/web-0)  kata, containerd
        Kata, all of it outside
        guest               -      200 MB  memory held by its VMM or sentry  shmem 200 MB, page tables 1.00 MB
        vmm            500 ms     60.0 MB  1 process  anon 40.0 MB, file 20.0 MB, page tables 1.00 MB
        vcpu           2.00 s           -  2 threads
        virtiofsd      500 ms     40.0 MB  2 processes  anon 30.0 MB, file 10.0 MB, page tables 1.00 MB
        container      2.00 s     80.0 MB  hard memory 90.0 MB, app
        container           -           -  hard memory -, c3c3c3c3c3c3
        hard memory charged to its own groups: 0 B; to groups outside of them: 290 MB
        overhead: 320 MB declared (annotation x), 72.0 MB measured on the host, without the guest's
        kernel
        net is the whole guest
           -          -          -            -          -          -  box  runtime unknown
  finding: the VMM is charged to [31mcontainerd.service, outside its pod`, "\n")
	if text != want {
		t.Errorf("the text is\n%s\nwant\n%s", text, want)
	}
}
