package vm

import (
	"bytes"
	"encoding/json"
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
	"tare/internal/analysis"
	"tare/internal/record"
	"tare/internal/subject/sandbox"
)

// slowGuest is what of a guest's boot is left out where it runs on a processor that is emulated twice: what these do
// takes minutes there, and no guest of ours needs it.
const slowGuest = "nokaslr ipv6.disable=1 initcall_blacklist=cubictcp_register,init_kprobe_trace,crypto_kdf108_init," +
	"load_system_certificate_list,init_ima,init_encrypted,ext4_init_fs,init_trace_printk_function_export," +
	"blake2s_mod_init,apparmor_nf_ip_init,aa_create_aafs,vga_arb_device_init,nvme_core_init"

// placementSpec is the built-in experiment sandbox-placement with some of its arms, and with a load and gates for a
// processor that is emulated.
func placementSpec(t *testing.T, arms ...string) []byte {
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
	spec["duration"] = "3s"
	spec["gates"] = map[string]any{"rate": 0, "errors": 1, "lag": "60s", "drift": 1000, "generator_cpu": 1,
		"throttled": "1h", "connections": 0, "invalid": 1}
	client := spec["loads"].(map[string]any)["client"].(map[string]any)
	client["rate"], client["connections"] = 20, 4
	all := spec["arms"].(map[string]any)
	for name, arm := range all {
		if !slices.Contains(arms, name) {
			delete(all, name)
			continue
		}
		setting := arm.(map[string]any)
		delete(setting, "optional")
		setting["ready-timeout"] = "20m"
		if name == "runc" {
			setting["ready-timeout"] = "1m"
		}
	}
	text, err := yaml.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// plainKernel is the kernel as it is once it has unpacked itself, which QEMU starts as well (PVH): that takes a fifth
// of the guest's boot. The kernel as it is where there is no lz4.
func plainKernel(t *testing.T, packed []byte) []byte {
	t.Helper()
	const magic = "\x02\x21\x4c\x18" // of the old form of LZ4 (scripts/Makefile.lib of the kernel: lz4 -l)
	at := bytes.Index(packed, []byte(magic))
	if _, err := exec.LookPath("lz4"); err != nil || at < 0 {
		return packed
	}
	cmd := exec.Command("lz4", "-dc")
	cmd.Stdin = bytes.NewReader(packed[at:])
	plain, _ := cmd.Output() // it complains about what follows the kernel
	if !bytes.HasPrefix(plain, []byte("\x7fELF")) {
		return packed
	}
	return plain
}

// TestPlacementV2 runs sandbox-placement where there is only version 2 of control groups, with runc, and with virtual
// machines in the virtual machine: each takes minutes to boot, on a processor that is emulated by an emulated one. So
// it is asked for: TARE_NESTED is how many blocks to run; of TARE_NESTED_ARMS, the arms. TARE_NESTED_OUT is where the
// run directory is then kept.
func TestPlacementV2(t *testing.T) {
	blocks, err := strconv.Atoi(os.Getenv("TARE_NESTED"))
	if err != nil {
		t.Skip("takes minutes for each virtual machine in the virtual machine; TARE_NESTED=1 runs one block")
	}
	arms := strings.Fields(os.Getenv("TARE_NESTED_ARMS"))
	if len(arms) == 0 {
		arms = []string{"runc", "microvm", "microvm-split"}
	}
	files, err := Sandboxes(true)
	if err != nil {
		t.Skip(err)
	}
	files["/spec.yaml"] = placementSpec(t, arms...)
	for name, data := range files {
		if strings.HasPrefix(name, "/boot/vmlinuz-") {
			files[name] = plainKernel(t, data)
		}
	}
	r := Run(t, Options{Containers: true, Files: files, MemoryMiB: 3072, Timeout: 6 * time.Hour}, LoadModules+fmt.Sprintf(`
export TARE_MICROVM_MEMORY=128 TARE_MICROVM_KERNEL_PARAMS='%s'
(while sleep 60; do cat /proc/uptime >/dev/ttyS0; done) & # else a machine that only waits counts as hung
tare run /spec.yaml --blocks %d --seed 1 --out /run/out >&2
code=$?
kill $!
tar -c -C /run/out . | gzip | base64
exit $code`, slowGuest, blocks))
	dir := os.Getenv("TARE_NESTED_OUT")
	if dir == "" {
		dir = filepath.Join(t.TempDir(), "out")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	unpack := exec.Command("sh", "-c", "base64 -d | tar -xz -C "+dir)
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
	for _, tr := range run.Trials {
		checkPlacedV2(t, tr)
	}
	s, err := analysis.Summarize(run.Run, run.Trials)
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range s.Answers {
		t.Log(a.Answer)
	}
}

// checkPlacedV2 holds the evidence of a trial against what version 2 of control groups does.
func checkPlacedV2(t *testing.T, tr record.Trial) {
	t.Helper()
	if tr.Validity.Failed != "" {
		t.Errorf("%s failed: %s", tr.Arm, tr.Validity.Failed)
		return
	}
	var e sandbox.Evidence
	if err := json.Unmarshal(tr.Evidence["sandbox"], &e); err != nil {
		t.Fatal(err)
	}
	for _, s := range e.Sandboxes {
		for _, p := range s.Processes {
			if p.Component == sandbox.VMM && (p.MemoryCgroup != p.CPUCgroup || len(p.ThreadCgroups) > 0 ||
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
	if _, told := tr.Metrics["sandbox_apart_bytes"]; told {
		t.Errorf("%s: only threads were moved", tr.Arm)
	}
}
