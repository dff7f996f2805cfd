package oci

import (
	"bufio"
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

	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
)

// Where a root file system has what every one has. The tare binary may be anywhere on this machine, below /tmp too.
const (
	Busybox = "/bin/busybox"
	Tare    = "/bin/tare"
)

// Root is a root file system of a container: the tare binary, busybox, and whatever is added at the path that it has on
// this machine. Its files are those of this machine, by hard links where they are on the same file system.
// Its methods may be used concurrently.
type Root struct {
	Dir string // absolute

	mu   sync.Mutex
	have map[string]bool // files by path
}

// NewRoot makes a root file system in a directory, which is made, with the tare binary that self names.
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

// Add adds a program, with the libraries that it is linked with.
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

// addLibraries adds those of a program.
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

// Mountpoint makes a directory, for something to be mounted there.
func (r *Root) Mountpoint(dir string) error {
	if err := os.MkdirAll(filepath.Join(r.Dir, dir), 0o755); err != nil {
		return cannotBuild(err, r.Dir)
	}
	return nil
}

// file has a file of this machine at a path, in place of what was there.
func (r *Root) file(at, from string) error {
	real, err := filepath.EvalSymlinks(from)
	if err != nil || !same(real, from) { // another file is at its path by now
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

// same says whether two paths lead to one file.
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

// most bounds the libraries of a program.
const most = 1000

// closure is a program with its interpreter and all libraries that it and they are linked with (DT_NEEDED), at the
// paths where the dynamic linker finds them (ld.so(8)). A script has none of these, and its interpreter is not among
// them.
func closure(program string) ([]string, error) {
	files := []string{program}
	for i := 0; i < len(files); i++ {
		f, err := elf.Open(files[i])
		if _, script := errors.AsType[*elf.FormatError](err); script && i == 0 {
			return files, nil
		}
		if err != nil {
			return nil, err
		}
		needed, err := linked(f, files[i])
		if err = errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", files[i], err)
		}
		files = lists.Include(files, needed...)
		if len(files) > most {
			return nil, fmt.Errorf("%s needs more than %d libraries", program, most)
		}
	}
	return files, nil
}

// linked is the interpreter and the libraries of one file.
func linked(f *elf.File, path string) (found []string, err error) {
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP || p.Filesz > 4096 {
			continue
		}
		name, err := io.ReadAll(p.Open())
		if err != nil {
			return nil, err
		}
		found = append(found, strings.TrimRight(string(name), "\x00"))
	}
	libraries, err := f.ImportedLibraries()
	if err != nil {
		return found, nil // a static program has no dynamic section
	}
	var dirs []string
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		values, _ := f.DynString(tag) // most have neither
		for _, v := range values {
			v = strings.ReplaceAll(strings.ReplaceAll(v, "${ORIGIN}", "$ORIGIN"), "$ORIGIN", filepath.Dir(path))
			dirs = append(dirs, filepath.SplitList(v)...)
		}
	}
	dirs = append(dirs, searched()...)
	for _, l := range libraries {
		i := slices.IndexFunc(dirs, func(dir string) bool { _, err := os.Stat(filepath.Join(dir, l)); return err == nil })
		if i < 0 {
			return nil, fmt.Errorf("its library %s is in none of %s", l, strings.Join(dirs, ", "))
		}
		found = append(found, filepath.Join(dirs[i], l))
	}
	return found, nil
}

// searched is where the dynamic linker looks: what /etc/ld.so.conf and the files that it includes name, then the usual
// directories.
var searched = sync.OnceValue(func() []string {
	var dirs []string
	files, _ := filepath.Glob("/etc/ld.so.conf.d/*.conf")
	for _, name := range append([]string{"/etc/ld.so.conf"}, files...) {
		f, err := os.Open(name)
		if err != nil {
			continue // there need not be any
		}
		for scan := bufio.NewScanner(f); scan.Scan(); {
			if line := strings.TrimSpace(scan.Text()); strings.HasPrefix(line, "/") {
				dirs = append(dirs, line)
			}
		}
		_ = f.Close() // nothing was written
	}
	return append(dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib")
})
