package oci

import (
	"bytes"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/child"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
)

// Paths in every container's root file system. On this machine the tare binary may be anywhere, even below /tmp.
const (
	Busybox = "/bin/busybox"
	Tare    = "/bin/tare"
)

// Root is the root file system of a container. It contains the tare binary, busybox, and programs that were added,
// which have the same paths as on this machine. Its files are hard links to this machine's files where that is
// possible, and copies otherwise. Its methods may be called concurrently.
type Root struct {
	Dir string // absolute

	mu   sync.Mutex
	have map[string]bool // files by path
}

// NewRoot builds a root file system in a new directory. self is the path of the tare binary.
func NewRoot(dir, self string) (*Root, error) {
	r := &Root{Dir: dir, have: map[string]bool{}}
	for _, d := range []string{"bin", "dev", "dev/shm", "etc", "proc", "sys", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, cannotBuild(err, dir)
		}
	}
	if err := r.file(Busybox, Busybox); err != nil {
		return nil, fault.Wrap(err, fault.Machine, Busybox, "apt-get install busybox-static",
			"no root file system for containers can be built")
	}
	for _, name := range []string{"sh", "true", "sleep", "cat", "dd"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, cannotBuild(err, dir)
		}
	}
	if err := r.file(Tare, self); err != nil {
		return nil, cannotBuild(err, dir)
	}
	return r, r.addLibraries(self)
}

func cannotBuild(err error, dir string) error {
	return fault.Wrap(err, fault.Machine, dir, "make room, or name another directory with --out",
		"no root file system for containers can be built")
}

// Add adds a program, and the libraries to which it is linked.
func (r *Root) Add(program string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.have[program] {
		return nil
	}
	if err := r.addLibraries(program); err != nil {
		return err
	}
	if err := r.file(program, program); err != nil {
		return cannotBuild(err, r.Dir)
	}
	return nil
}

// addLibraries adds the libraries of a program.
func (r *Root) addLibraries(program string) error {
	files, err := closure(program)
	if err != nil {
		return fmt.Errorf("adding %s to a root file system: %w", program, err)
	}
	for _, f := range files[1:] {
		if r.have[f] {
			continue
		}
		if err := r.file(f, f); err != nil {
			return cannotBuild(err, r.Dir)
		}
	}
	return nil
}

// Mountpoint creates a directory at which something can be mounted.
func (r *Root) Mountpoint(dir string) error {
	if err := os.MkdirAll(filepath.Join(r.Dir, dir), 0o755); err != nil {
		return cannotBuild(err, r.Dir)
	}
	return nil
}

// file adds a file of this machine at a path in the root, as a hard link, or as a copy if that is impossible.
func (r *Root) file(at, from string) error {
	real, err := filepath.EvalSymlinks(from)
	if err != nil || !same(real, from) { // the path now leads to a different file
		real = ""
	}
	to := filepath.Join(r.Dir, at)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err = unix.EXDEV; real != "" {
		err = os.Link(real, to)
	}
	switch {
	case errors.Is(err, fs.ErrExist):
		err = nil
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EPERM), errors.Is(err, unix.EMLINK):
		err = copyFile(to, from)
	}
	if err == nil {
		r.have[at] = true
	}
	return err
}

// same reports whether two paths lead to the same file.
func same(a, b string) bool {
	x, err1 := os.Stat(a)
	y, err2 := os.Stat(b)
	return err1 == nil && err2 == nil && os.SameFile(x, y)
}

func copyFile(to, from string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

// closure returns a program, its interpreter, and all libraries to which the two are linked. The interpreter, which is
// the dynamic linker, reports the paths of the libraries (--list, see ld.so(8); musl's also supports it). For a static
// program or a script, closure returns only the program, without the script's interpreter.
func closure(program string) ([]string, error) {
	interpreter, err := interpreterOf(program)
	if err != nil || interpreter == "" {
		return []string{program}, err
	}
	var out bytes.Buffer
	list := child.Command{Argv: []string{interpreter, "--list", program}, Stdout: &out, Stderr: &out,
		OnlyEnv: true} // the container does not have this process's LD_LIBRARY_PATH
	if err := child.Run(context.Background(), list, child.Options{Name: interpreter}); err != nil {
		return nil, fmt.Errorf("its libraries: %w: %s", err, bytes.TrimSpace(out.Bytes()))
	}
	files := []string{program, interpreter}
	for line := range strings.Lines(out.String()) {
		// libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f...)
		name, found, linked := strings.Cut(strings.TrimSpace(line), " => ")
		path, _, _ := strings.Cut(found, " (0x")
		switch {
		case !linked: // the kernel's vDSO, or the interpreter
		case !filepath.IsAbs(path):
			return nil, fmt.Errorf("its library %s is nowhere: %s", name, found)
		default:
			files = lists.Include(files, path)
		}
	}
	return files, nil
}

// interpreterOf returns the dynamic linker of a program. It returns "" for a static program and for a script.
func interpreterOf(program string) (string, error) {
	f, err := elf.Open(program)
	if _, script := errors.AsType[*elf.FormatError](err); script {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	i := slices.IndexFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP && p.Filesz <= 4096 })
	if i < 0 {
		return "", nil
	}
	name, err := io.ReadAll(f.Progs[i].Open())
	return strings.TrimRight(string(name), "\x00"), err
}
