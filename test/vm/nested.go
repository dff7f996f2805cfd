package vm

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"

	"tare/internal/sandboxes/microvm"
)

// hostModules are the kernel modules that the networks of sandboxes need on the machine that runs the sandboxes.
var hostModules = []string{"veth", "tun", "sch_ingress", "cls_u32", "act_mirred"}

// modulesDir is the directory of the machine with the modules that LoadModules loads.
const modulesDir = "/modules"

// LoadModules is shell code that loads the kernel modules among the files of Sandboxes. Scripts begin with it.
const LoadModules = "for m in " + modulesDir + "/*.ko; do insmod $m || exit; done\n"

// firmware is what QEMU loads to boot a machine of type microvm.
var firmware = []string{"bios-microvm.bin", "linuxboot_dma.bin", "pvh.bin", "kvmvapic.bin"}

// Sandboxes returns the files that a machine needs to make containers and virtual machines: runc, QEMU and virtiofsd, a
// kernel for these virtual machines where tare microvm looks for it, and modules. An error matches ErrMissing if
// something is not installed here. userMode must be the machine's Options.UserMode.
func Sandboxes(userMode bool) (map[string][]byte, error) {
	kit, err := prepare()
	if err != nil {
		return nil, err
	}
	from := map[string]string{}
	for _, name := range []string{"runc", "qemu-system-x86_64", "/usr/lib/qemu/virtiofsd"} {
		program, err := exec.LookPath(name)
		if err != nil {
			return nil, missing(name)
		}
		libraries, err := linked(program)
		if err != nil {
			return nil, err
		}
		maps.Copy(from, libraries)
		from[program] = program
	}
	for _, name := range firmware {
		at := "/usr/share/qemu/" + name
		if from[at], err = firstOf(at, "/usr/share/seabios/"+name); err != nil {
			return nil, err
		}
	}
	const module = "/usr/lib/x86_64-linux-gnu/qemu/accel-tcg-x86_64.so" // the emulator, a separate file in Debian's QEMU
	if _, err := os.Stat(module); err == nil {
		from[module] = module
	}
	kernel, err := microvm.FindKernel(kit.kernel)
	if err != nil {
		return nil, err
	}
	from["/boot/vmlinuz-"+kernel.Version] = kernel.Image
	files, err := readFiles(from)
	if err != nil {
		return nil, err
	}
	host := kernel
	if userMode {
		if _, host, err = userKernel(); err != nil {
			return nil, err
		}
	}
	return files, addModules(files, host, kernel)
}

// addModules adds the modules of the machine, in the order in which they must be loaded, and those of its guests.
func addModules(files map[string][]byte, host, k microvm.Kernel) error {
	ours, err1 := host.ReadModules(hostModules)
	theirs, err2 := k.GuestModules()
	builtin, err3 := os.ReadFile(filepath.Join(k.Modules, "modules.builtin"))
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	for i, m := range ours {
		files[fmt.Sprintf("%s/%02d-%s.ko", modulesDir, i, m.Name)] = m.Data
	}
	dir := path.Join("/lib/modules", k.Version)
	files[dir+"/modules.builtin"] = builtin
	for _, m := range theirs {
		files[path.Join(dir, "kernel", m.Name+".ko")] = m.Data
	}
	return nil
}

// firstOf returns the first of some files that exists.
func firstOf(files ...string) (string, error) {
	for _, f := range files {
		if _, err := os.Stat(f); err == nil {
			return f, nil
		}
	}
	return "", missing(files[0])
}
