package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
)

// maxSpecFile limits the size of a spec's file, in bytes, before it is parsed; the parser has further limits.
const maxSpecFile = 1 << 20

// openFile opens a file that the user named. It refuses pipes and devices, from which a read could block forever. Its
// error is a fault with code Usage.
func openFile(path, what string) (*os.File, error) {
	f, err := files.Open(path)
	if err == nil {
		return f, nil
	}
	hint := "check its permissions"
	switch {
	case errors.Is(err, files.ErrNotRegular):
		err, hint = files.ErrNotRegular, "name a file, not a directory, pipe or device"
	case errors.Is(err, fs.ErrNotExist):
		hint = "check its name; relative paths start at the current directory"
	}
	return nil, fault.Wrap(err, fault.Usage, path, hint, "%s cannot be read", what)
}

// readSpecFile reads the file of a spec.
func readSpecFile(path string) ([]byte, error) {
	return readFile(path, "the spec", "'tare list quickstart' prints a spec to start from")
}

// readFile reads a short file that the user wrote.
func readFile(path, what, hint string) ([]byte, error) {
	f, err := openFile(path, what)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSpecFile+1))
	if err == nil && len(data) > maxSpecFile {
		err = fmt.Errorf("it has more than %d MiB", maxSpecFile>>20)
	}
	return data, fault.Wrap(err, fault.Usage, path, hint, "%s cannot be read", what)
}

// writeFile writes what make writes to a file that the user named, completely or not at all. A link at its path is
// replaced, not followed, unless it leads to a file that this process has open, as /dev/stdout does. A write to a pipe
// or a device is abandoned when the context ends, because it may have no reader. A pipe must belong to this user or
// root, because any user can create one in /tmp.
func writeFile(ctx context.Context, path, what, hint string, make func(io.Writer) error) error {
	var b bytes.Buffer
	if err := make(&b); err != nil {
		return err
	}
	write := func(path string, data []byte) error { return files.Replace(path, data, 0o644) }
	if info, err := os.Lstat(path); err == nil && !info.Mode().IsRegular() {
		open := isOpenFile(path)
		if open || info.Mode().Type() != fs.ModeSymlink {
			write = func(path string, data []byte) error {
				return promptly(ctx, func() error { return writeThrough(path, data, open) })
			}
		}
	}
	err := write(path, b.Bytes())
	if ctx.Err() != nil {
		return err
	}
	return fault.Wrap(err, fault.Machine, path, hint, "%s cannot be written", what)
}

// isOpenFile reports whether a path is one by which a process can reach its own open files.
func isOpenFile(path string) bool {
	switch path = filepath.Clean(path); path {
	case "/dev/stdin", "/dev/stdout", "/dev/stderr":
		return true
	}
	dir := filepath.Dir(path)
	return dir == "/dev/fd" || dir == "/proc/self/fd" || dir == "/proc/thread-self/fd" ||
		dir == fmt.Sprintf("/proc/%d/fd", os.Getpid())
}

// writeThrough writes to the file, pipe or device at a path. It follows links only if open is set: the path then leads
// to a file that this process has open.
func writeThrough(path string, data []byte, open bool) error {
	flags := os.O_WRONLY
	if !open {
		flags |= unix.O_NOFOLLOW
	}
	f, err := os.OpenFile(path, flags, 0)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err == nil && !open && info.Mode().Type() == fs.ModeNamedPipe {
		if err = files.CheckPrivate(info, 0); err != nil {
			err = fmt.Errorf("there is a pipe: %w", err)
		}
	}
	if err == nil {
		_, err = f.Write(data)
	}
	return errors.Join(err, f.Close())
}

// oneRun checks the arguments of commands that read one run directory.
func oneRun(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return fault.New(fault.Usage, cmd.CommandPath(), "name the directory that 'tare run' wrote",
			"want one run directory, got %d", len(args))
	}
	return nil
}

// readRun reads a run directory. Properties of metrics that an earlier version did not record get their current
// values.
func readRun(dir string) (*record.Contents, error) {
	if info, err := os.Stat(dir); err == nil && !info.IsDir() {
		return nil, fault.New(fault.Usage, dir, "name the directory that it is in: "+filepath.Dir(dir),
			"this is a file, not a run directory")
	}
	c, err := record.ReadLean(dir)
	if err != nil {
		return nil, err
	}
	c.Run.Metrics = metric.Complete(c.Run.Metrics, measured.Definitions())
	return c, nil
}
