// Package kernels holds the results of the tests on each kind of machine that they run on, and writes docs/kernels.md
// from them. The record is kernels.json: which features `tare doctor` found, by kernel and by layout of the control
// groups. The tests that boot virtual machines compare it with what they find; with TARE_KERNELS=update they rewrite
// it.
package kernels

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"tare/internal/scale/host/feature"
	"tare/test/binary"
	"tare/test/lines"
)

// UpdateVariable is the environment variable with which tests record what they find, if its value is "update".
const UpdateVariable = "TARE_KERNELS"

// Machine is a kind of machine that tests ran on.
type Machine struct {
	Kernel   string          `json:"kernel"`   // its first two numbers, such as "6.1"
	Mode     string          `json:"mode"`     // layout of the control groups: v1, v2, hybrid or none
	Lockdown string          `json:"lockdown"` // as doctor prints it
	Features map[string]bool `json:"features"` // by name, whether doctor found the feature
}

func (m *Machine) name() string { return m.Kernel + " " + m.Mode }

// diagnosis is the part of tare.doctor/v1 that is recorded.
type diagnosis struct {
	Machine struct {
		Kernel   string
		Lockdown string
	}
	Features []feature.Status
}

// Parse reads a machine from the output of `tare doctor --json` on it.
func Parse(doctor []byte, mode string) (*Machine, error) {
	var d diagnosis
	if err := json.Unmarshal(doctor, &d); err != nil {
		return nil, fmt.Errorf("reading what doctor says: %w", err)
	}
	if len(d.Features) == 0 {
		return nil, fmt.Errorf("doctor names no features")
	}
	numbers := strings.SplitN(d.Machine.Kernel, ".", 3)
	if len(numbers) < 3 {
		return nil, fmt.Errorf("%q is not the release of a kernel", d.Machine.Kernel)
	}
	m := &Machine{
		Kernel: numbers[0] + "." + numbers[1], Mode: mode,
		Lockdown: d.Machine.Lockdown, Features: map[string]bool{},
	}
	for _, s := range d.Features {
		m.Features[s.Name] = s.Available
	}
	return m, nil
}

var mu sync.Mutex // tests run side by side, and all write the same file

// Check compares the features found on a machine with the record, and lists the differences. The error wraps ErrUnknown
// if the record has no machine of this kind. With TARE_KERNELS=update it updates the record instead.
func Check(found *Machine) (differs []string, err error) {
	mu.Lock()
	defer mu.Unlock()
	all, err := Read()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(all, func(m *Machine) bool { return m.name() == found.name() })
	if os.Getenv(UpdateVariable) == "update" {
		if i < 0 {
			all = append(all, found)
		} else {
			all[i] = found
		}
		return nil, write(all)
	}
	if i < 0 {
		return nil, fmt.Errorf("%w: %s", ErrUnknown, found.name())
	}
	known := all[i]
	names := slices.Sorted(maps.Keys(found.Features))
	for name := range known.Features {
		if _, there := found.Features[name]; !there {
			names = append(names, name)
		}
	}
	for _, name := range names {
		was, recorded := known.Features[name]
		is, there := found.Features[name]
		if was != is || recorded != there {
			differs = append(differs, fmt.Sprintf("%s on %s: recorded %s, found %s",
				name, found.name(), said(was, recorded), said(is, there)))
		}
	}
	return differs, nil
}

// ErrUnknown is wrapped by the error of Check for a machine of a kind that is not in the record.
var ErrUnknown = fmt.Errorf("no such machine is in test/kernels/kernels.json")

func said(available, there bool) string {
	switch {
	case !there:
		return "nothing"
	case available:
		return "yes"
	}
	return "no"
}

func path(name string) (string, error) {
	root, err := binary.Root()
	return filepath.Join(root, "test", "kernels", name), err
}

// Read reads the record. If the file does not exist, there are no machines.
func Read() ([]*Machine, error) {
	file, err := path("kernels.json")
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the record of kernels: %w", err)
	}
	var all []*Machine
	if err := json.Unmarshal(data, &all); err != nil {
		return nil, fmt.Errorf("reading %s: %w", file, err)
	}
	return all, nil
}

func write(all []*Machine) error {
	slices.SortFunc(all, compare)
	file, err := path("kernels.json")
	if err != nil {
		return err
	}
	data, err := json.MarshalIndent(all, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o644)
}

// compare orders machines by kernel, then by layout of the control groups, with the most common layout first.
func compare(a, b *Machine) int {
	if d := slices.Compare(numbers(a.Kernel), numbers(b.Kernel)); d != 0 {
		return d
	}
	order := []string{"v2", "hybrid", "v1", "none"}
	return slices.Index(order, a.Mode) - slices.Index(order, b.Mode)
}

func numbers(kernel string) []int {
	var major, minor int
	_, _ = fmt.Sscanf(kernel, "%d.%d", &major, &minor) // a kernel that is not a release number sorts first
	return []int{major, minor}
}

// Method is something that Tare does, and the tests that show that it works, by machine.
type Method struct {
	Name  string
	Shown map[string][]string // names of tests by machine; those that show a clear refusal end in the constant refused
}

// The machines, by kernel and layout of the control groups, as in Machine.name.
const (
	old2, oldHybrid, old1, oldNone = "6.1 v2", "6.1 hybrid", "6.1 v1", "6.1 none"
	newHybrid                      = "6.18 hybrid"
)

// refused marks a test that shows a clear error instead of the method.
const refused = " (refused)"

// Methods lists what Tare does and the tests that show it: on 6.1 those in test/vm, on 6.18 those in test/e2e.
var Methods = []Method{
	{"a ledger whose CPU budget adds up (`tare weigh`)", map[string][]string{
		old2: {"TestMachine"}, oldHybrid: {"TestCgroupModes"}, old1: {"TestCgroupModes"},
		oldNone: {"TestMachine" + refused}, newHybrid: {"TestBudgetClosesUnderLoad"},
	}},
	{"eBPF time split by control group", map[string][]string{
		old2: {"TestMachine"}, newHybrid: {"TestPlantedWeight"},
	}},
	{"the reference data plane (`tare subject kernelmesh`), from Linux 5.18", map[string][]string{
		old2: {"TestMachine"}, newHybrid: {"TestBuiltIns"},
	}},
	{"an experiment (`tare run`)", map[string][]string{
		old2: {"TestQuickstart"}, newHybrid: {"TestRun", "TestBuiltIns"},
	}},
	{"weighing a tracer (load `exec`), from Linux 5.12", map[string][]string{
		old2: {"TestTrace"}, newHybrid: {"TestBpftrace", "TestBuiltIns"},
	}},
	{"the reference tracer (`tare subject exectrace`), from Linux 5.12 with BTF", map[string][]string{
		old2: {"TestTrace"}, newHybrid: {"TestBuiltIns", "TestTraceExec"},
	}},
	{"nodes that join over the network (`tare node`)", map[string][]string{
		old2: {"TestNodes"}, newHybrid: {"TestNode"},
	}},
	{"nodes on one machine (`--local-nodes`)", map[string][]string{
		old2: {"TestNodes" + refused}, newHybrid: {"TestLocalNodes"},
	}},
	{"without root, a ledger; for experiments, an error that says what is needed", map[string][]string{
		old2: {"TestMachine"}, newHybrid: {"TestWhichCommandNeedsWhat", "TestRunNotRoot"},
	}},
}

// directory returns the directory of a machine's tests, relative to the top of the source.
func directory(machine string) string {
	if machine == newHybrid {
		return "test/e2e"
	}
	return "test/vm"
}

// Write writes docs/kernels.md.
func Write(w io.Writer, all []*Machine, features []feature.Status) error {
	slices.SortFunc(all, compare)
	var b bytes.Buffer
	b.WriteString(`# Kernels

Where Tare was tested, and what each part of it needs. What is not listed here is untested; ` + "`tare doctor`" + ` tries
each feature on the machine at hand.

Tare needs Linux 5.8 or newer and control groups, v1, v2 or both, and most of it root ([what does
not](weigh.md#without-root)). Newer kernels add, apart from the [features](#features) that a configuration may lack:

- 5.11: which control group pays for a map (bpf-charges), and who disturbed the machine (witness)
- 5.12: the load ` + "`exec` and the subject `exectrace`" + `
- 5.18: ` + "`kernelmesh`, so `tare run quickstart`" + ` too
- 5.19: peak memory of groups on v2 (cgroup-memory-peak)
- 6.0: samples that were lost at a window's end (sample-losses)
- 6.4: the exact size of maps (bpf-map-bytes)

eBPF time by control group needs the features bpf-stats, bpf-addresses and sampling; without the last two there is no
split, and the totals stay exact.

Linux 6.1 is Debian 12's cloud kernel in a virtual machine that QEMU emulates (` + "`test/vm`" + `), and Linux 6.18 that of the
Firecracker virtual machine, without a performance counter, on which Tare is developed. "6.1 v2" is a kernel and the
version of its control groups.

## What tests showed

On which machines tests showed it ("refused": a clear error that says what to do); test/kernels/kernels.go names the
tests.

`)
	for _, method := range Methods {
		var by []string
		for _, m := range all {
			if tests := method.Shown[m.name()]; len(tests) > 0 {
				by = append(by, m.name()+refusal(tests))
			}
		}
		b.WriteString(lines.Wrap(fmt.Sprintf("- %s: %s", method.Name, strings.Join(by, ", ")), "  "))
	}
	b.WriteString(`
## Features

A feature that was missing may exist on another machine with the same kernel: hardware counters belong to the machine,
lockdown is a choice, and the emulated machines have no modules loaded.

`)
	for _, s := range features {
		name := "`" + s.Name + "`"
		if s.Required {
			name += " (required)"
		}
		if on := missing(s.Name, all); on != "" {
			name += ", missing on " + on
		}
		b.WriteString(lines.Wrap(fmt.Sprintf("- %s: needs %s; lost without it: %s", name, s.Needs, s.Lost), "  "))
	}
	for _, m := range all {
		if m.Lockdown != "" {
			fmt.Fprintf(&b, "\nLockdown on %s, as the kernel reports it: %s.\n", m.name(), m.Lockdown)
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// missing lists the machines without a feature: the kernel alone where no machine with this kernel has it.
func missing(feature string, all []*Machine) string {
	with := map[string]bool{} // the kernels of machines that have the feature
	for _, m := range all {
		with[m.Kernel] = with[m.Kernel] || m.Features[feature]
	}
	var names []string
	for _, m := range all {
		name := m.name()
		if !with[m.Kernel] {
			name = m.Kernel
		}
		if !m.Features[feature] && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

// refusal returns the constant refused if the tests show a refusal, and otherwise nothing.
func refusal(tests []string) string {
	if strings.HasSuffix(tests[0], refused) {
		return refused
	}
	return ""
}

// Tests returns the names of the tests that Methods relies on, by directory.
func Tests() map[string][]string {
	names := map[string][]string{}
	for _, m := range Methods {
		for machine, tests := range m.Shown {
			for _, t := range tests {
				dir := directory(machine)
				names[dir] = append(names[dir], strings.TrimSuffix(t, refused))
			}
		}
	}
	return names
}
