package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"tare/internal/fault"
)

// maxSpecFile bounds the file of a spec before anything looks into it; experiment.Parse has bounds of its own.
const maxSpecFile = 1 << 20

// openFile opens a file that a person named, but no pipe or device, which could keep its reader for ever. Its error is
// a fault with code Usage.
func openFile(path, what string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		mend := "see that you may read it"
		if errors.Is(err, fs.ErrNotExist) {
			mend = "see that its name is right; it is looked for from the directory that you are in"
		}
		return nil, fault.Wrap(err, fault.Usage, path, mend, "%s cannot be read", what)
	}
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, fault.Wrap(errors.Join(err, errors.New("it is not a file")), fault.Usage, path, "name a file, not a directory, pipe or device", "%s cannot be read", what)
	}
	return f, nil
}

// readSpecFile reads the file of a spec.
func readSpecFile(path string) ([]byte, error) {
	return readFile(path, "the spec", "'tare list quickstart' prints a spec to start from")
}

// readFile reads a short file that a person wrote.
func readFile(path, what, mend string) ([]byte, error) {
	f, err := openFile(path, what)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSpecFile+1))
	if err == nil && len(data) > maxSpecFile {
		err = fmt.Errorf("it has more than %d MiB", maxSpecFile>>20)
	}
	return data, fault.Wrap(err, fault.Usage, path, mend, "%s cannot be read", what)
}
