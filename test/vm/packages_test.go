package vm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/test/binary"
	"tare/test/long"
	"tare/test/speed"
	"tare/test/vm/guest"
)

// kernelPackages are packages that read or change the kernel, in parts. Each part has one machine.
//
// Two emulated processors are worth no more than one, because one thread runs both (see emulator). Packages get two all
// the same if they count by processor, place something on one, or have programs stand still on one while another works.
type kernelPackages struct {
	name     string
	cpus     int
	cmdline  string
	patterns []string
}

// hostPackages read the kernel, or place processes: all other packages build on them.
var hostPackages = kernelPackages{"host", 2, "", []string{
	"./internal/scale/host/...", "./internal/experiment/placement/...",
}}

// furtherPackages begin with those that take longest.
var furtherPackages = []kernelPackages{
	{"subjects", 1, "", []string{
		"./internal/tracing/exectrace/...", "./internal/tracing/tracer/...", "./internal/mesh/kernelmesh/...",
		"./internal/mesh/storebench/...",
	}},
	{"execs", 2, "", []string{"./internal/tracing/exec", "./internal/tracing/execs"}},
	{"meter", 2, "", []string{"./internal/scale/meter/..."}},
	{"stores", 2, "", []string{
		"./internal/mesh/store/mapinmap", "./internal/mesh/store/sized", "./internal/mesh/store/snapshot",
		"./internal/mesh/store/value",
	}},
	// On one processor whose kernel preempts eBPF programs, only an explicit wait (a grace period) waits for a program.
	{"grace", 1, "preempt=full", []string{"./internal/lib/bpf"}},
}

// TestPackages runs the tests of furtherPackages again in virtual machines, where the kernel is older and control
// groups are v2. They run as `go test -short`, which skips what only a real processor can show and what depends on
// nothing of the kernel (guest.KernelFree), and repeats less often what takes an emulated processor long. The packages
// of a part share a machine, one after the other, because compiling each by itself and booting takes longer than most
// tests. TARE_VM_PACKAGES chooses packages by a part of their paths, such as store/value.
func TestPackages(t *testing.T) {
	long.Test(t, "9 min: windows, the data plane, tracers and stores on an emulated machine")
	t.Parallel() // beside the other machines
	for _, part := range furtherPackages {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel()
			part.test(t, true)
		})
	}
}

// TestHostPackages takes longest of all tests here, so it begins first. As a subtest of a parallel test it would have
// to wait for the others.
func TestHostPackages(t *testing.T) {
	t.Parallel()
	hostPackages.test(t, long.Enabled())
}

// test runs the tests of the packages in a machine; if slow is set, also those that take an emulated machine long.
func (p kernelPackages) test(t *testing.T, slow bool) {
	root, err := binary.Root()
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string
	for pkg := range strings.FieldsSeq(goCommand(t, append([]string{"list", "-e", "-f",
		"{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}}{{end}}"}, p.patterns...)...)) {
		if strings.Contains(pkg, os.Getenv("TARE_VM_PACKAGES")) {
			dirs = append(dirs, strings.TrimPrefix(pkg, "tare/"))
		}
	}
	if len(dirs) == 0 {
		t.Skip("TARE_VM_PACKAGES chooses none of these")
	}
	files := Program(t, "bpftool")
	maps.Copy(files, testFiles(t, root, dirs))
	var script strings.Builder
	fmt.Fprintf(&script, "export %s=%d\n", speed.Variable, slowdown)
	if slow {
		fmt.Fprintf(&script, "export %s=1\n", guest.SlowVariable)
	}
	for _, dir := range dirs {
		fmt.Fprintf(&script, "echo '%s%s'\ncd /src/%s && ./test -test.short -test.v=test2json -test.paniconexit0 2>&1\n"+
			"code=$?; printf '%s%%d at %%s\\n' $code $(cut -d' ' -f1 /proc/uptime)\n",
			packageBegins, dir, dir, strings.ReplaceAll(packageEnds, "\n", "\\n"))
	}
	o := Options{CPUs: p.cpus, Cmdline: p.cmdline, Files: files, MemoryMiB: 2560, Timeout: 25 * time.Minute}
	r := Run(t, o, script.String())
	for _, dir := range dirs {
		t.Run(dir, func(t *testing.T) {
			_, output, ran := strings.Cut(r.Output, packageBegins+dir+"\n")
			output, rest, ended := strings.Cut(output, packageEnds)
			if !ran || !ended {
				t.Fatalf("its tests did not come to their end:\n%s", tail(r.Output))
			}
			repeat(t, output)
			exit, _, _ := strings.Cut(rest, "\n")
			t.Logf("exit code %s s after the machine's start", exit)
			if code, _, _ := strings.Cut(exit, " "); code != "0" && !t.Failed() {
				t.Errorf("exit code %s:\n%s", code, tail(output))
			}
		})
	}
}

// slowdown is the factor by which deadlines under test are longer in an emulated machine, which stands still for
// seconds.
const slowdown = 20

// The line before the output of a package's tests, and the beginning of the line after it.
const (
	packageBegins = "tare-vm: package "
	packageEnds   = "\ntare-vm: exit code "
)

// testFiles returns the compiled tests of packages, and their test data, under /src at the same paths as in the tree.
func testFiles(t *testing.T, root string, dirs []string) map[string][]byte {
	t.Helper()
	compiled := t.TempDir()
	args := []string{"test", "-c", "-ldflags=-s -w", "-o", compiled + "/"}
	for _, dir := range dirs {
		args = append(args, "./"+dir)
	}
	goCommand(t, args...)
	from := map[string]string{}
	for _, dir := range dirs {
		from[path.Join("/src", dir, "test")] = filepath.Join(compiled, path.Base(dir)+".test")
		err := filepath.WalkDir(filepath.Join(root, dir, "testdata"), func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				from[path.Join("/src", strings.TrimPrefix(p, root))] = p
			}
			return nil // there may be no test data
		})
		if err != nil {
			t.Fatalf("looking for the test data of %s: %v", dir, err)
		}
	}
	files, err := readFiles(from)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// repeat makes a subtest of each test that ran in the machine, with its verdict and output.
func repeat(t *testing.T, output string) {
	t.Helper()
	convert := exec.Command("go", "tool", "test2json", "-t") // with times
	convert.Stdin = strings.NewReader(output)
	converted, err := convert.Output()
	if err != nil {
		t.Fatalf("go tool test2json: %v", err)
	}
	type test struct {
		verdict string
		seconds float64         // in the machine
		output  strings.Builder // with that of its subtests
	}
	tests := map[string]*test{}
	for events := json.NewDecoder(bytes.NewReader(converted)); ; {
		var e struct {
			Action, Test, Output string
			Elapsed              float64
		}
		if err := events.Decode(&e); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("reading what go tool test2json printed: %v", err)
		}
		name, _, isSub := strings.Cut(e.Test, "/")
		if name == "" {
			continue
		}
		if tests[name] == nil {
			tests[name] = &test{}
		}
		tests[name].output.WriteString(e.Output)
		if !isSub && slices.Contains([]string{"pass", "fail", "skip"}, e.Action) {
			tests[name].verdict, tests[name].seconds = e.Action, e.Elapsed
		}
	}
	kernelFree := 0
	for _, name := range slices.Sorted(maps.Keys(tests)) {
		if tests[name].verdict == "skip" && strings.Contains(tests[name].output.String(), ": "+guest.Reason+"\n") {
			kernelFree++ // it ran on the host with the unit tests
			continue
		}
		t.Run(name, func(t *testing.T) {
			said := tests[name].output.String()
			if _, why, is := strings.Cut(said, ": "+long.Reason); is && tests[name].verdict == "skip" {
				why, _, _ = strings.Cut(why, "\n")
				t.Skip(long.Reason + why) // unchanged, because test/closing counts tests by this text
			}
			t.Logf("%.1f s in the machine", tests[name].seconds)
			switch tests[name].verdict {
			case "pass":
			case "skip":
				t.Skip(skipReason(said))
			default: // a test without a verdict was running when its process died
				t.Error(said)
			}
		})
	}
	t.Logf("%d tests depend on nothing of the kernel, and did not run in the machine", kernelFree)
}

// skipReason returns what a skipped test printed, without the lines of the testing package.
func skipReason(output string) string {
	var said []string
	for line := range strings.Lines(output) {
		if line = strings.TrimSpace(line); !strings.HasPrefix(line, "=== ") && !strings.HasPrefix(line, "--- ") {
			said = append(said, line)
		}
	}
	return strings.Join(said, "; ")
}

// goCommand runs the go command in the tree, and returns what it prints.
func goCommand(t *testing.T, args ...string) string {
	t.Helper()
	cmd, err := binary.Go(args...)
	if err != nil {
		t.Fatal(err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return string(out)
}
