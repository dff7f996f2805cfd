package fio

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/scale/ledger"
	"tare/internal/workloads/load/command"
	"tare/internal/workloads/load/command/tool"
	"tare/test/metrictest"
)

// These are the interfaces that the engine looks for.
var _ interface {
	kind.Joiner
	kind.Installed
	measured.Teller
	measured.Judge
} = guest{}

// defaults returns the values of the settings in a spec that sets none.
func defaults() param.Values {
	v := param.Values{}
	for _, s := range settings {
		v[s.Name] = s.Default
	}
	return v
}

// result returns the result of a load whose program printed a text.
func result(t *testing.T, text string, size float64) load.Result {
	t.Helper()
	reading, err := tool.Parse("fio", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	own, err := json.Marshal(command.Own{Said: &reading})
	if err != nil {
		t.Fatal(err)
	}
	return load.Result{Generator: command.Generator, Own: own, Counts: map[string]float64{sizeCount: size}}
}

func fixture(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../command/tool/testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func values(loads map[string]load.Result) map[string]float64 {
	m := &measured.Measured{
		Setup: &kind.Setup{Gates: param.Values{"errors": "0.01"}}, Trial: record.Trial{
			Loads:  loads,
			Ledger: &ledger.Ledger{Window: ledger.Window{Seconds: 1}},
		},
	}
	return m.Values()
}

// TestMetrics: the bytes per second are those that fio prints, in both directions, added up over loads of this kind
// only.
func TestMetrics(t *testing.T) {
	const rate = "fio_bytes_per_second"
	one, mixed := result(t, fixture(t, "fio-group.json"), 1<<20), result(t, fixture(t, "fio-mixed.json"), 2<<20)
	of := func(r load.Result) float64 {
		t.Helper()
		v, known := values(map[string]load.Result{"a": r})[rate]
		if !known || v <= 0 {
			t.Fatalf("%v, %v", v, known)
		}
		return v
	}
	// Computed by hand from the files: io_bytes of all directions by the longest runtime of a job, in ms.
	for name, want := range map[string]float64{"fio-group.json": 774144 / 1.053, "fio-mixed.json": 1495040 / 1.040} {
		if got := of(result(t, fixture(t, name), 1)); got < 0.999*want || got > 1.001*want {
			t.Errorf("%s: %g bytes a second, want %g", name, got, want)
		}
	}
	other := one
	other.Counts = nil // of a load of kind command
	got := values(map[string]load.Result{"a": one, "b": mixed, "c": other})
	if want := of(one) + of(mixed); got[rate] != want {
		t.Errorf("two together move %g bytes a second, want %g", got[rate], want)
	}
	if _, known := got[sizeCount]; !known {
		t.Error("the size of the file is not told")
	}
	unread := one
	unread.Own = json.RawMessage(`{"said":null}`)
	for name, loads := range map[string]map[string]load.Result{
		"nothing": {}, "another kind": {"c": other}, "one is unread": {"a": one, "b": unread},
	} {
		if v, known := values(loads)[rate]; known {
			t.Errorf("%s: %g", name, v)
		}
	}
	for _, m := range (guest{}).Metrics() {
		if err := metrictest.Check(m.Definition); err != nil {
			t.Error(err)
		}
	}
}

// TestBounded: a file is never larger than the disk and the memory allow, and a full disk is an error.
func TestBounded(t *testing.T) {
	dir := t.TempDir()
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		t.Fatal(err)
	}
	if n, err := bounded(3<<20+5, dir); err != nil || n != 3<<20 {
		t.Errorf("%d, %v", n, err)
	}
	if n, err := bounded(1<<62, dir); err != nil || n > int64(disk.Blocks)*disk.Bsize/partOfDisk || n%(1<<20) != 0 {
		t.Errorf("%d on a disk of %d blocks, %v", n, disk.Blocks, err)
	}
	if _, err := bounded(1<<20, filepath.Join(dir, "none")); err == nil {
		t.Error("no directory, and no error")
	}
	if os.Geteuid() != 0 {
		t.Skip("the rest needs root: it mounts a file system")
	}
	if err := unix.Mount("tare test", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("cannot mount: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	if _, err := bounded(1<<20, dir); fault.CodeOf(err) != fault.Machine || !strings.Contains(err.Error(), dir) {
		t.Errorf("on a disk of 4 MiB: %v", err)
	}
}

// TestCommandLine: Debian's fio does what the settings say on a small file, and its output can be parsed.
func TestCommandLine(t *testing.T) {
	program, err := exec.LookPath(name)
	if err != nil {
		t.Skip("needs fio (Debian package fio)")
	}
	for _, c := range []struct{ rw, direct, file string }{{"randwrite", "false", "4194304"},
		{"randrw", "true", "2097152"}} {
		o, dir := defaults(), t.TempDir()
		o[settingKind], o[settingDirect], o[settingJobs], o[settingSize] = c.rw, c.direct, "2", c.file
		size, err := bounded(int64(o.Float(settingSize)), dir)
		if err != nil {
			t.Fatal(err)
		}
		line := strings.ReplaceAll(commandLine(o, size, 300*time.Millisecond), "{dir}", dir)
		cmd := exec.CommandContext(t.Context(), program, strings.Fields(line)[1:]...)
		late := time.AfterFunc(2*time.Minute, func() { _ = cmd.Cancel() })
		out, err := cmd.Output()
		late.Stop()
		if err != nil && c.direct == "true" && strings.Contains(string(out), "Invalid argument") {
			t.Logf("%s: the file system of %s has no direct writes", line, dir)
			continue
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		if info, err := os.Stat(filepath.Join(dir, "file")); err != nil || info.Size() != size {
			t.Errorf("%s: the file: %v, %v", line, info, err)
		}
		got := values(map[string]load.Result{"a": result(t, string(out), float64(size))})
		if got["fio_bytes_per_second"] <= 0 || got[sizeCount] != float64(size) {
			t.Errorf("%s: %v", line, got)
		}
		var said struct {
			Jobs []struct {
				Options map[string]string `json:"job options"`
				Read    struct {
					Bytes int64 `json:"io_bytes"`
				} `json:"read"`
			} `json:"jobs"`
		}
		if err := json.Unmarshal(out, &said); err != nil || len(said.Jobs) != 1 {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
		if j := said.Jobs[0]; (j.Read.Bytes > 0) != (c.rw == "randrw") || j.Options["bs"] != "524288" ||
			j.Options["numjobs"] != "2" {
			t.Errorf("%s: it read %d bytes with the options %v", line, j.Read.Bytes, j.Options)
		}
	}
}
