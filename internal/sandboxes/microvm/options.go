package microvm

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/internal/lib/fault"
)

// Options are a sandbox's settings, in addition to its bundle. An annotation of the bundle overrides a flag, and a flag
// overrides an environment variable.
type Options struct {
	Kernel            string // path of vmlinuz-<version>; empty: the newest cloud kernel in /boot
	Accel             string // AccelAuto, AccelKVM or AccelTCG
	Rootfs            string // RootfsAuto, RootfsShared or RootfsPacked
	MemoryMiB         int    // memory of the guest, in addition to the container's limit
	CPUs              int    // virtual CPUs; 0: the container's CPU quota, rounded up, or 1 if it has none
	SandboxCgroupOnly bool
	CgroupRoot        string        // the control group below which all groups of the sandbox are
	OverheadParent    string        // the group, below CgroupRoot, that contains the overhead groups
	BootTimeout       time.Duration // of each attempt to boot
	KernelParams      string        // added to the guest kernel's command line
}

// Values of Options.Rootfs: how the guest gets the container's root.
const (
	RootfsAuto   = "auto"   // RootfsShared if virtiofsd is installed and privileged enough, else RootfsPacked
	RootfsShared = "shared" // by virtio-fs
	RootfsPacked = "packed" // in the guest's memory
)

// Annotation is the prefix of annotations, such as io.tare.microvm.memory.
const Annotation = "io.tare.microvm."

// Option describes one of the Options as a flag, an environment variable and an annotation.
type Option struct {
	Name string // with underscores; the flag has hyphens instead, and the environment variable is TARE_MICROVM_<NAME>
	Doc  string
	set  func(*Options, string) error
}

// OptionList returns all options.
func OptionList() []Option {
	return []Option{
		{"kernel", "the guest's kernel, a vmlinuz-<version> (default: the newest cloud kernel in /boot)",
			func(o *Options, v string) error { o.Kernel = v; return nil }},
		{"accel", "auto, kvm or tcg: auto is KVM if it boots this kernel, else TCG (default auto)",
			func(o *Options, v string) error { o.Accel = v; return oneOf(v, AccelAuto, AccelKVM, AccelTCG) }},
		{"rootfs", "auto, shared (by virtio-fs) or packed (into the guest's memory): auto is shared where " +
			"virtiofsd is there and has the rights that it needs (default auto)",
			func(o *Options, v string) error {
				o.Rootfs = v
				return oneOf(v, RootfsAuto, RootfsShared, RootfsPacked)
			}},
		{"memory", "the guest's memory in MiB, beside the container's own limit (default 256)",
			func(o *Options, v string) error { return whole(&o.MemoryMiB, v, 96, 1<<20) }},
		{"cpus", "virtual CPUs (default: the container's CPU quota, rounded up, at least 1)",
			func(o *Options, v string) error { return whole(&o.CPUs, v, 1, 64) }},
		{"sandbox_cgroup_only", "true: all processes of the sandbox in its own control group; false: as Kata does, " +
			"the virtual machine starts in an overhead group (default true)",
			func(o *Options, v string) (err error) {
				if o.SandboxCgroupOnly, err = strconv.ParseBool(v); err != nil {
					return fmt.Errorf("must be true or false, not %q", v)
				}
				return nil
			}},
		{"cgroup_root", "the control group below which all groups of the sandbox are (default /)",
			func(o *Options, v string) error { o.CgroupRoot = v; return groupPath(v) }},
		{"overhead_parent", "the control group for overhead groups, below the root (default /kata_overhead)",
			func(o *Options, v string) error { o.OverheadParent = v; return groupPath(v) }},
		{"kernel_params", "what to add to the guest kernel's command line, as in Kata's configuration (default nothing)",
			func(o *Options, v string) error {
				o.KernelParams = v
				if strings.ContainsAny(v, "\n\x00") || slices.Contains(strings.Fields(v), "--") {
					return fmt.Errorf("must be one line without --, not %q", v)
				}
				return nil
			}},
		{"boot_timeout", "how long a guest may take to boot before it is started again, twice at most (default 60s)",
			func(o *Options, v string) (err error) {
				if o.BootTimeout, err = time.ParseDuration(v); err != nil || o.BootTimeout < time.Second ||
					o.BootTimeout > time.Hour {
					return fmt.Errorf("must be a duration from 1s to 1h, not %q", v)
				}
				return nil
			}},
	}
}

func oneOf(v string, values ...string) error {
	if !slices.Contains(values, v) {
		return fmt.Errorf("must be one of %s, not %q", strings.Join(values, ", "), v)
	}
	return nil
}

func whole(to *int, v string, low, high int) error {
	n, err := strconv.Atoi(v)
	if err != nil || n < low || n > high {
		return fmt.Errorf("must be a whole number from %d to %d, not %q", low, high, v)
	}
	*to = n
	return nil
}

func groupPath(v string) error {
	if !strings.HasPrefix(v, "/") || slices.Contains(strings.Split(v, "/"), "..") || strings.ContainsAny(v, "\n\x00") {
		return fmt.Errorf("must be a path from / without .., not %q", v)
	}
	return nil
}

// NewOptions returns the default options, changed first by environment variables and then by flags. The keys of flags
// are the names of options.
func NewOptions(flags map[string]string) (Options, error) {
	o := Options{
		Accel: AccelAuto, Rootfs: RootfsAuto, MemoryMiB: 256, SandboxCgroupOnly: true,
		CgroupRoot: "/", OverheadParent: "/kata_overhead", BootTimeout: BootTimeout,
	}
	for _, option := range OptionList() {
		env := "TARE_MICROVM_" + strings.ToUpper(option.Name)
		if v := os.Getenv(env); v != "" {
			if err := option.set(&o, v); err != nil {
				return o, fault.New(fault.Usage, env, option.Doc, "%s", err)
			}
		}
		if v, ok := flags[option.Name]; ok {
			if err := option.set(&o, v); err != nil {
				return o, fault.New(fault.Usage, "--"+strings.ReplaceAll(option.Name, "_", "-"), option.Doc, "%s", err)
			}
		}
	}
	return o, nil
}

// annotated returns the options, overridden by a bundle's annotations. An unknown annotation with this package's prefix
// is an error.
func (o Options) annotated(annotations map[string]string) (Options, error) {
	list := OptionList()
	for key, v := range annotations {
		name, ours := strings.CutPrefix(key, Annotation)
		if !ours {
			continue
		}
		i := slices.IndexFunc(list, func(option Option) bool { return option.Name == name })
		if i < 0 {
			return o, fault.New(fault.Usage, "annotation "+key, "see 'tare microvm --help' for the names", "no such option")
		}
		if err := list[i].set(&o, v); err != nil {
			return o, fault.New(fault.Usage, "annotation "+key, list[i].Doc, "%s", err)
		}
	}
	return o, nil
}
