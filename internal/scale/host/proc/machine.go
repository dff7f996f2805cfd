package proc

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Machine holds the properties of the machine that could affect a measurement. A field that could not be read is empty
// or 0.
type Machine struct {
	Hostname    string
	Kernel      string // release
	BootID      string
	Distro      string
	CPUModel    string
	CPUs        int    // online
	Possible    int    // CPUs that may ever come online: per-CPU memory is allocated for each of them
	NoHzFull    string // the CPUs that run without ticks, such as "2-7"; empty if there are none
	MemoryBytes uint64 // usable by the kernel
	SwapBytes   uint64
	Governor    string // of CPU frequency; separated by commas if CPUs differ; empty if there is none
	Clocksource string
	// none, integrity or confidentiality; "integrity (configured)" if only the configuration could be read
	Lockdown string
	Virtual  string // none, container, the machine's product name, or vm
	IRQTime  *bool  // whether the kernel keeps interrupts out of tasks' CPU time; nil if unknown
}

// Machine reads the properties of the machine.
func (f FS) Machine() Machine {
	m := Machine{
		Hostname:    f.text("proc/sys/kernel/hostname"),
		Kernel:      f.text("proc/sys/kernel/osrelease"),
		BootID:      f.text("proc/sys/kernel/random/boot_id"),
		Distro:      f.distro(),
		Governor:    f.governor(),
		Clocksource: f.text("sys/devices/system/clocksource/clocksource0/current_clocksource"),
	}
	possible, _ := CPUs(f.text("sys/devices/system/cpu/possible"))
	m.Possible = len(possible)
	list := strings.TrimSpace(f.text("sys/devices/system/cpu/nohz_full"))
	if _, err := CPUs(list); err == nil { // without the boot parameter, the kernel prints no list
		m.NoHzFull = list
	}
	meminfo := []byte(f.text("proc/meminfo"))
	m.MemoryBytes, _ = parseKB(meminfo, "MemTotal")
	m.SwapBytes, _ = parseKB(meminfo, "SwapTotal")
	if s, err := f.Stat(); err == nil {
		m.CPUs = len(s.Online)
	}
	cpuinfo := f.text("proc/cpuinfo")
	m.CPUModel = cpuField(cpuinfo, "model name", "Model", "cpu model", "Processor")
	m.Virtual = f.virtual(cpuinfo)
	config := f.kernelConfig()
	cmdline := strings.Fields(f.text("proc/cmdline"))
	m.Lockdown = f.lockdown(config, cmdline)
	m.IRQTime = f.irqTime(config, cmdline)
	return m
}

const maxCPUs = 8192 // NR_CPUS of the largest kernels

// CPUs returns the CPUs in a list such as "0-3,8", the kernel's form of a set of CPUs, with or without
// white space around it. Any other text is an error.
func CPUs(list string) ([]int, error) {
	var cpus []int
	for part := range strings.SplitSeq(strings.TrimSpace(list), ",") {
		from, to, isRange := strings.Cut(part, "-")
		lo, err := strconv.Atoi(from)
		if err != nil {
			return nil, fmt.Errorf("%q is not a list of CPUs", list)
		}
		hi := lo
		if isRange {
			if hi, err = strconv.Atoi(to); err != nil {
				return nil, fmt.Errorf("%q is not a list of CPUs", list)
			}
		}
		if lo < 0 || hi < lo || hi >= maxCPUs {
			return nil, fmt.Errorf("%q is not a list of CPUs", list)
		}
		for c := lo; c <= hi; c++ {
			cpus = append(cpus, c)
		}
	}
	return cpus, nil
}

func (f FS) distro() string {
	for _, file := range []string{"etc/os-release", "usr/lib/os-release"} {
		for line := range strings.Lines(f.text(file)) {
			if name, ok := strings.CutPrefix(line, "PRETTY_NAME="); ok {
				return strings.Trim(strings.TrimSpace(name), `"'`)
			}
		}
	}
	return ""
}

func (f FS) governor() string {
	var all []string
	files, _ := filepath.Glob(f.path("sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"))
	for _, file := range files {
		if b, err := os.ReadFile(file); err == nil {
			all = append(all, strings.TrimSpace(string(b)))
		}
	}
	slices.Sort(all)
	return strings.Join(slices.Compact(all), ",")
}

// cpuField returns the first of the named fields that exists in /proc/cpuinfo; names differ by architecture.
func cpuField(cpuinfo string, names ...string) string {
	for _, name := range names {
		for line := range strings.Lines(cpuinfo) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
				return strings.TrimSpace(value)
			}
		}
	}
	return ""
}

func (f FS) virtual(cpuinfo string) string {
	product := strings.TrimSpace(f.text("sys/class/dmi/id/sys_vendor") + " " + f.text("sys/class/dmi/id/product_name"))
	flags := cpuField(cpuinfo, "flags")
	marked := f.text("run/systemd/container") != "" || f.has(".dockerenv") || f.has("run/.containerenv")
	// A machine may be booted from a container image that contains these marks. Process 2 is then kthreadd.
	p, _ := f.Process(2)
	switch {
	case marked && !p.Kernel:
		return "container"
	case slices.Contains(strings.Fields(flags), "hypervisor") && product != "":
		return product
	case slices.Contains(strings.Fields(flags), "hypervisor"):
		return "vm"
	case flags != "":
		return "none" // x86 sets the hypervisor flag in every guest
	}
	return product
}

// kernelConfig returns the options that the kernel was built with, such as "CONFIG_X", with their values; nil if
// unreadable.
func (f FS) kernelConfig() map[string]string {
	file, err := os.Open(f.path("proc/config.gz"))
	if err == nil {
		defer file.Close()
		z, err := gzip.NewReader(bufio.NewReader(file))
		if err != nil {
			return nil
		}
		return parseConfig(io.LimitReader(z, 4<<20))
	}
	file, err = os.Open(f.path("boot/config-" + f.text("proc/sys/kernel/osrelease")))
	if err != nil {
		return nil
	}
	defer file.Close()
	return parseConfig(file)
}

func parseConfig(r io.Reader) map[string]string {
	options := map[string]string{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		if name, value, ok := bytes.Cut(lines.Bytes(), []byte("=")); ok && bytes.HasPrefix(name, []byte("CONFIG_")) {
			options[string(name)] = string(value)
		}
	}
	if lines.Err() != nil || len(options) == 0 {
		return nil
	}
	return options
}

// irqTime reports whether the kernel takes the time of interrupts out of tasks' CPU time; nil if that is unknown. A
// kernel with CONFIG_IRQ_TIME_ACCOUNTING does not do so if its command line disables it, or if it finds the clock
// unstable (disable_sched_clock_irqtime in kernel/sched/cputime.c). The column irq of /proc/stat then no longer grows,
// because no tick occurs during another interrupt, and is 0 if that was so from the beginning. StableClock shows if it
// may have happened later.
func (f FS) irqTime(config map[string]string, cmdline []string) *bool {
	const enough = 60 // seconds; in this much busy time, interrupts take more than one tick
	off := slices.Contains(cmdline, "tsc=noirqtime") || slices.Contains(cmdline, "irqtime=0")
	stat, err := f.Stat()
	switch {
	case config == nil:
		return nil
	case config["CONFIG_IRQ_TIME_ACCOUNTING"] != "y" || off:
		return new(false)
	case err != nil || stat.IRQ > 0:
		return new(true)
	case stat.Busy() > enough:
		return new(false)
	}
	return nil
}

// StableClock reports whether the kernel trusts the CPUs' own clock. It no longer lists a TSC that it has found
// unstable, which may be days after the start (clocksource_mark_unstable and available_clocksource_show in
// kernel/time/clocksource.c). A TSC may also be missing from the beginning, as in some virtual machines.
func (f FS) StableClock() bool {
	clocks := strings.Fields(f.text("sys/devices/system/clocksource/clocksource0/available_clocksource"))
	return slices.Contains(clocks, "tsc") || slices.Contains(clocks, "arch_sys_counter")
}

var bracketed = regexp.MustCompile(`\[([a-z]+)\]`)

func (f FS) lockdown(config map[string]string, cmdline []string) string {
	if m := bracketed.FindStringSubmatch(f.text("sys/kernel/security/lockdown")); m != nil {
		return m[1]
	}
	// Without securityfs only the requested mode is known.
	for _, arg := range cmdline {
		if mode, ok := strings.CutPrefix(arg, "lockdown="); ok {
			return mode + " (configured)"
		}
	}
	switch {
	case config["CONFIG_LOCK_DOWN_KERNEL_FORCE_CONFIDENTIALITY"] == "y":
		return "confidentiality (configured)"
	case config["CONFIG_LOCK_DOWN_KERNEL_FORCE_INTEGRITY"] == "y":
		return "integrity (configured)"
	}
	return ""
}
