package bpf

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/btf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tare/internal/scale/host/feature"
)

// Features returns the probes of what this package can read on this machine. Each runs once, on first use.
func Features() []*feature.Probe {
	own := sync.OnceValue(loadOwn)
	return []*feature.Probe{
		syscallFeature(),
		statsFeature(),
		btfFeature(),
		holdersFeature(own),
		chargesFeature(own),
		mapBytesFeature(),
		addressesFeature(),
		trampolinesFeature(),
	}
}

func syscallFeature() *feature.Probe {
	return feature.New(feature.Status{
		Name:  "bpf-syscall",
		Needs: "CAP_SYS_ADMIN in the initial user namespace, CONFIG_BPF_SYSCALL",
		Lost:  "everything about eBPF: programs, maps, their run time and memory; and with it experiments and calibration",
		Hint: "run on the host or in a privileged container, as root or with CAP_SYS_ADMIN; no setting, such as " +
			"kernel.unprivileged_bpf_disabled, replaces it",
	}, func() (string, error) {
		if _, _, err := nextID(cmdProgGetNextID, 0); err != nil {
			return "", fmt.Errorf("listing BPF programs: %w", err)
		}
		return "programs can be listed", nil
	})
}

var statsStatus = feature.Status{
	Name:  "bpf-stats",
	Needs: "Linux 5.8, CAP_SYS_ADMIN",
	Lost:  "run counts and run time of eBPF programs",
	Hint:  "run as root, or with CAP_SYS_ADMIN, on Linux 5.8 or newer",
}

func statsMissing(cause error) error { return &feature.MissingError{Status: statsStatus, Cause: cause} }

func statsFeature() *feature.Probe {
	return feature.New(statsStatus, func() (string, error) {
		stats, err := EnableStats()
		if err != nil {
			var missing *feature.MissingError
			if errors.As(err, &missing) {
				return "", missing.Cause
			}
			return "", err
		}
		if err := stats.Close(); err != nil {
			return "", err
		}
		if on, err := StatsAlwaysOn(); err == nil && on {
			return "BPF_ENABLE_STATS; the sysctl kernel.bpf_stats_enabled has them on at all times", nil
		}
		return "BPF_ENABLE_STATS, by descriptor; off otherwise", nil
	})
}

func btfFeature() *feature.Probe {
	return feature.New(feature.Status{
		Name:  "bpf-btf",
		Needs: "CONFIG_DEBUG_INFO_BTF",
		Lost:  "BPF iterators, and with them which control group pays for a map",
		Hint:  "boot a kernel with CONFIG_DEBUG_INFO_BTF=y",
	}, func() (string, error) {
		types, err := btf.LoadKernelSpec()
		if err != nil {
			return "", fmt.Errorf("reading the kernel's types: %w", err)
		}
		var iterators []string
		for _, name := range []string{"bpf_map", "bpf_prog", "bpf_link", "task_file"} {
			if _, err := types.AnyTypeByName("bpf_iter_" + name); err == nil {
				iterators = append(iterators, name)
			}
		}
		return "iterators over " + strings.Join(iterators, ", "), nil
	})
}

// loadOwn tries to load the package's iterators, and unloads them again. Only the errors in the result are of use.
func loadOwn() *Iterators {
	var it Iterators
	it.load(nil)
	tried := &Iterators{mapsErr: it.mapsErr, filesErr: it.filesErr}
	it.Close()
	return tried
}

func holdersFeature(own func() *Iterators) *feature.Probe {
	return feature.New(feature.Status{
		Name:  "bpf-holders",
		Needs: "Linux 5.8 with BTF, CAP_BPF and CAP_PERFMON, the initial PID namespace, no lockdown for confidentiality",
		Lost:  "speed: who holds programs and maps is read from /proc, with a system call for every open file",
		Hint:  "boot a kernel with BTF; share the host's PID namespace",
	}, func() (string, error) { return "iterator over the files of all tasks", own().filesErr })
}

func chargesFeature(own func() *Iterators) *feature.Probe {
	return feature.New(feature.Status{
		Name:  "bpf-charges",
		Needs: "Linux 5.11 with BTF, the memory controller with kernel memory",
		Lost:  "which control group pays for a map",
		Hint:  "boot a kernel with BTF, without cgroup.memory=nokmem or nobpf",
	}, func() (string, error) {
		if !chargesBPF("/proc") {
			return "", errors.New("the kernel was started with control groups not paying for BPF memory")
		}
		return "iterator over maps", own().mapsErr
	})
}

func mapBytesFeature() *feature.Probe {
	return feature.New(feature.Status{
		Name:  "bpf-map-bytes",
		Needs: "CAP_BPF, Linux 6.4 for exact bytes",
		Lost:  "the true size of maps: older kernels estimate it from the number of entries, and report 0 for ring buffers",
		Hint:  "boot Linux 6.4 or newer",
	}, func() (string, error) {
		method, err := new(Inventory).probeBytesMethod()
		if err != nil {
			return "", err
		}
		if method != BytesExact {
			return string(method), fmt.Errorf("this kernel reports %s", method)
		}
		return string(method), nil
	})
}

func addressesFeature() *feature.Probe {
	return feature.New(feature.Status{
		Name: "bpf-addresses",
		Needs: "CAP_BPF, CAP_SYSLOG, the JIT compiler (net.core.bpf_jit_enable), kernel.kptr_restrict below 2, no lockdown " +
			"for confidentiality",
		Lost: "which program a sample saw, so run time is not split by control group",
		Hint: "run as root, or with CAP_SYSLOG; sysctl -w kernel.kptr_restrict=1 net.core.bpf_jit_enable=1",
	}, func() (string, error) {
		p, err := ebpf.NewProgram(nothing("tare_probe", nil))
		if err != nil {
			return "", fmt.Errorf("loading a program to probe with: %w", err)
		}
		defer p.Close()
		read, hidden, err := new(programScratch).readProgram(p.FD(), time.Time{})
		switch {
		case err != nil:
			return "", err
		case hidden:
			return "", errors.New("the kernel hides the addresses of machine code")
		case len(read.JITed) == 0:
			return "", errors.New("programs are interpreted")
		}
		return "addresses of machine code are readable", nil
	})
}

func trampolinesFeature() *feature.Probe {
	return feature.New(feature.Status{
		Name:  "bpf-trampolines",
		Needs: "Linux 5.7, no lockdown, BPF trampolines for this architecture",
		Lost:  "exact attribution; shares are sampled",
		Hint:  "boot without lockdown",
	}, func() (string, error) {
		target := &btf.Func{
			Name: "tare_target", Linkage: btf.GlobalFunc,
			Type: &btf.FuncProto{
				Return: &btf.Int{Name: "int", Size: 4, Encoding: btf.Signed},
				Params: []btf.FuncParam{{Name: "skb", Type: &btf.Pointer{Target: &btf.Struct{Name: "__sk_buff"}}}},
			},
		}
		p, err := ebpf.NewProgram(nothing("tare_target", target))
		if err != nil {
			return "", fmt.Errorf("loading a program to trace: %w", err)
		}
		defer p.Close()
		spec := nothing("tare_fentry", nil)
		spec.Type, spec.AttachType, spec.AttachTarget, spec.AttachTo = ebpf.Tracing, ebpf.AttachTraceFEntry, p, "tare_target"
		entry, err := ebpf.NewProgram(spec)
		if errors.Is(err, unix.EPERM) { // for a privileged process this means lockdown
			return "", fmt.Errorf("the kernel refuses to trace programs: %w", unix.EPERM)
		}
		if err != nil {
			return "", fmt.Errorf("loading a trampoline: %w", err)
		}
		defer entry.Close()
		l, err := link.AttachTracing(link.TracingOptions{Program: entry})
		if err != nil {
			return "", fmt.Errorf("attaching a trampoline: %w", err)
		}
		return "fentry on a program works", l.Close()
	})
}

// nothing returns a program that returns 0, with type information if fn is given.
func nothing(name string, fn *btf.Func) *ebpf.ProgramSpec {
	first := asm.Mov.Imm(asm.R0, 0)
	if fn != nil {
		first = btf.WithFuncMetadata(first.WithSymbol(name), fn)
	}
	return &ebpf.ProgramSpec{Name: name, Type: ebpf.SocketFilter, License: "GPL",
		Instructions: asm.Instructions{first, asm.Return()}}
}
