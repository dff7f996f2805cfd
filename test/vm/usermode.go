package vm

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"tare/internal/sandboxes/microvm"
	"tare/test/binary"
)

// A kernel in user mode (Debian's package user-mode-linux) is a process of this machine: a separate Linux with its own
// memory, control groups and network, whose programs run directly on the processor and pass it their system calls
// (Documentation/virt/uml/user_mode_linux_howto_v2.rst). In it QEMU emulates a machine as fast as here, whereas QEMU in
// QEMU takes minutes for each second. It has one processor, and neither BTF nor tracepoints nor pressure (PSI).

//go:embed c/xstate.c
var xstateSource []byte

// userKernel finds the kernel in user mode, installed or in the cache. An error matches ErrMissing.
func userKernel() (program string, modules microvm.Kernel, err error) {
	cache, err := binary.Cache()
	if err != nil {
		return "", microvm.Kernel{}, err
	}
	for _, dir := range []string{filepath.Join(cache, "usermode/usr"), "/usr"} {
		program := filepath.Join(dir, "bin/linux.uml")
		found, _ := filepath.Glob(filepath.Join(dir, "lib/uml/modules/*")) // the pattern is well-formed
		if _, err := os.Stat(program); err == nil && len(found) > 0 {
			return program, microvm.Kernel{Modules: found[0], Version: filepath.Base(found[0])}, nil
		}
	}
	return "", microvm.Kernel{}, noUserMode{}
}

// noUserMode is an error that matches ErrMissing, with a separate message because 'make test' does not fetch this
// kernel.
type noUserMode struct{}

func (noUserMode) Error() string {
	return "needs a kernel in user mode (Debian package user-mode-linux): 'test/setup usermode' fetches it"
}

func (noUserMode) Is(target error) bool { return target == ErrMissing }

// userMode returns the command that runs the kernel in user mode. Its processes are in a PID namespace, so that none of
// them outlives it.
func userMode(ctx context.Context, o Options, dir, initramfs string) (*exec.Cmd, error) {
	program, _, err := userKernel()
	if err != nil {
		return nil, err
	}
	library := filepath.Join(dir, "xstate.so")
	if err := compile(xstateSource, library); err != nil {
		return nil, err
	}
	console, err1 := os.Create(filepath.Join(dir, "console"))
	port, err2 := os.Create(filepath.Join(dir, "port"))
	if err := errors.Join(err1, err2); err != nil {
		return nil, fmt.Errorf("making the machine's files: %w", err)
	}
	context.AfterFunc(ctx, func() { _ = errors.Join(console.Close(), port.Close()) }) // the kernel ends by then
	cmd := exec.CommandContext(ctx, program, "mem="+strconv.Itoa(o.MemoryMiB)+"M", "initrd="+initramfs, "uml_dir="+dir,
		"con=null", "con0=null,fd:2", "ssl=null", "ssl1=null,fd:1",
		"panic=-1", "loglevel=4", o.params())
	// The kernel polls what it writes to, which does not work with a file. For writers of these types, package exec makes
	// pipes.
	cmd.Stdout, cmd.Stderr = struct{ io.Writer }{port}, struct{ io.Writer }{console}
	cmd.Env = append(os.Environ(), "LD_PRELOAD="+library, "TMPDIR=/dev/shm") // the kernel's memory is a file in TMPDIR
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	return cmd, nil
}

// compile compiles a C file that includes no header into a shared library.
func compile(source []byte, to string) error {
	from := to + ".c"
	if err := os.WriteFile(from, source, 0o600); err != nil {
		return fmt.Errorf("writing the library's source: %w", err)
	}
	said, err := exec.Command("clang", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-nostdlib",
		"-shared", "-fPIC", "-mgeneral-regs-only", "-fno-stack-protector", "-o", to, from).CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) {
		return missing("clang")
	}
	if err != nil {
		return fmt.Errorf("compiling a library: %w\n%s", err, said)
	}
	return nil
}
