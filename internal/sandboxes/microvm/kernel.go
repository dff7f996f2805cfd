package microvm

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/text"
)

// Kernel is the guest's kernel, from Debian's package linux-image-cloud-amd64, either installed or only unpacked.
type Kernel struct {
	Image   string // path of vmlinuz-<version>
	Modules string // path of lib/modules/<version>
	Version string
}

const kernelHint = "apt-get install linux-image-cloud-amd64, or name one: --kernel /path/to/vmlinuz-<version>, " +
	"beside lib/modules/<version>"

// FindKernel returns the named kernel or, if named is empty, the newest cloud kernel in /boot that has its modules. The
// modules of /a/boot/vmlinuz-6.1 must be in /a/lib/modules/6.1, in /a/boot/lib/modules/6.1 or in /lib/modules/6.1. The
// error has the code fault.Machine.
func FindKernel(named string) (Kernel, error) {
	images := []string{named}
	if named == "" {
		images, _ = filepath.Glob("/boot/vmlinuz-*-cloud-amd64") // cannot fail: the pattern is well-formed
		NewestFirst(images)
		if len(images) == 0 {
			return Kernel{}, fault.New(fault.Machine, "/boot", kernelHint, "no kernel for a virtual machine")
		}
	}
	var errs []error
	for _, image := range images {
		k, err := kernelAt(image)
		if err == nil {
			return k, nil
		}
		errs = append(errs, err)
	}
	return Kernel{}, errors.Join(errs...)
}

var digits = text.LazyRegexp(`[0-9]+`)

// NewestFirst sorts names of kernels by the numbers in them, so that 6.1.0-10 comes before 6.1.0-9.
func NewestFirst(names []string) {
	sortable := func(name string) string {
		return digits().ReplaceAllStringFunc(name, func(n string) string { return fmt.Sprintf("%12s", n) })
	}
	slices.SortFunc(names, func(a, b string) int { return strings.Compare(sortable(b), sortable(a)) })
}

func kernelAt(image string) (Kernel, error) {
	version, ok := strings.CutPrefix(filepath.Base(image), "vmlinuz-")
	if !ok {
		return Kernel{}, fault.New(fault.Machine, image, kernelHint, "a kernel is called vmlinuz-<version>")
	}
	if _, err := os.Stat(image); err != nil {
		return Kernel{}, fault.Wrap(err, fault.Machine, image, kernelHint, "no kernel for a virtual machine")
	}
	dir := filepath.Dir(image)
	for _, root := range []string{filepath.Dir(dir), dir, "/"} {
		modules := filepath.Join(root, "lib/modules", version)
		if _, err := os.Stat(filepath.Join(modules, "kernel")); err == nil {
			return Kernel{Image: image, Modules: modules, Version: version}, nil
		}
	}
	return Kernel{}, fault.New(fault.Machine, image, kernelHint, "this kernel's modules are nowhere near it")
}

// guestModules are the names of the modules that the guest needs, without their dependencies.
var guestModules = []string{"virtio_mmio", "virtio_console", "virtiofs", "virtio_net"}

// GuestModules returns the modules that a guest with this kernel needs. Dependencies come first.
func (k Kernel) GuestModules() ([]Module, error) { return k.ReadModules(guestModules) }

// Module is the file of a kernel module.
type Module struct {
	Name string // the name of the file without .ko, with hyphens replaced by underscores
	Data []byte
}

// moduleMax is the maximum size of a module, in bytes. Debian's largest module is 5 MB.
const moduleMax = 16 << 20

// ReadModules reads modules and their dependencies; dependencies come first. It skips modules that are built into the
// kernel. Names are those of files, not aliases: virtiofs.ko, for example, has the alias virtio_fs.
func (k Kernel) ReadModules(names []string) ([]Module, error) {
	paths := map[string]string{}
	err := filepath.WalkDir(filepath.Join(k.Modules, "kernel"), func(path string, d fs.DirEntry, err error) error {
		if name, ok := strings.CutSuffix(filepath.Base(path), ".ko"); ok {
			paths[strings.ReplaceAll(name, "-", "_")] = path
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("looking for kernel modules: %w", err)
	}
	builtin, err := os.ReadFile(filepath.Join(k.Modules, "modules.builtin"))
	if err != nil {
		return nil, fmt.Errorf("reading which modules the kernel holds: %w", err)
	}
	var list []Module
	seen := map[string]bool{}
	var add func(name string) error
	add = func(name string) error {
		if seen[name] {
			return nil
		}
		seen[name] = true
		path := paths[name]
		if path == "" {
			if bytes.Contains(builtin, []byte("/"+name+".ko\n")) ||
				bytes.Contains(builtin, []byte("/"+strings.ReplaceAll(name, "_", "-")+".ko\n")) {
				return nil
			}
			return fault.New(fault.Machine, k.Modules, "use Debian's cloud kernel", "no kernel module %s, or it is compressed",
				name)
		}
		data, err := readBounded(path, moduleMax)
		if err != nil {
			return err
		}
		needs, err := depends(data)
		if err != nil {
			return fmt.Errorf("reading what the module %s depends on: %w", path, err)
		}
		for _, n := range needs {
			if err := add(strings.ReplaceAll(n, "-", "_")); err != nil {
				return err
			}
		}
		list = append(list, Module{name, data})
		return nil
	}
	for _, name := range names {
		if err := add(name); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// depends reads the names of a module's dependencies from its section .modinfo, which holds name=value strings that
// each end in a zero byte (include/linux/module.h). modules.dep is not used, because an unpacked package does not have
// it: depmod makes it when the package is installed.
func depends(data []byte) ([]string, error) {
	f, err := elf.NewFile(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	s := f.Section(".modinfo")
	if s == nil {
		return nil, errors.New("no section .modinfo")
	}
	info, err := s.Data()
	if err != nil {
		return nil, err
	}
	for entry := range bytes.SplitSeq(info, []byte{0}) {
		if list, ok := bytes.CutPrefix(entry, []byte("depends=")); ok {
			return strings.FieldsFunc(string(list), func(r rune) bool { return r == ',' }), nil
		}
	}
	return nil, nil
}

// readBounded reads a regular file. A file of more than max bytes is an error.
func readBounded(path string, max int64) ([]byte, error) {
	f, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, max+1))
	if int64(len(b)) > max {
		return nil, fault.New(fault.Usage, path, "", "not a regular file of at most %d bytes", max)
	}
	return b, err
}
