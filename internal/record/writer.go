package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"tare/internal/fault"
)

// Writer writes a run directory. It is for one goroutine.
type Writer struct {
	dir    string
	trials *os.File
	size   int64 // of the whole lines in trials
}

// Create makes the run directory dir, which must not exist or be empty, and writes run.json. Its errors are faults:
// Usage when dir is in use, Machine when it cannot be written.
func Create(dir string, run Run) (*Writer, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, cannotWrite(err, dir)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, cannotWrite(err, dir)
	}
	if len(entries) > 0 {
		return nil, inUse(dir)
	}
	w := &Writer{dir: dir}
	// The trials come first, for only one of two runs that found the directory empty can make them.
	path := filepath.Join(dir, TrialsFile)
	w.trials, err = os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil, inUse(dir)
	}
	if err != nil {
		return nil, cannotWrite(err, path)
	}
	if err := w.writeJSON(RunFile, run); err != nil {
		return nil, errors.Join(err, w.trials.Close(), os.Remove(path))
	}
	return w, nil
}

func inUse(dir string) error {
	return fault.New(fault.Usage, dir, "name a directory that is empty or does not exist with --out",
		"the run directory is not empty, and a run never writes over another")
}

// UpdateRun writes run.json again, whole or not at all: the plan of a run that has no number of blocks grows.
func (w *Writer) UpdateRun(run Run) error { return w.writeJSON(RunFile, run) }

// Dir is the run directory.
func (w *Writer) Dir() string { return w.dir }

// Append adds one trial and waits until the disk has it. When it fails, what was half written is taken back, so the
// trials before it stay readable.
func (w *Writer) Append(t Trial) error {
	line, err := json.Marshal(t)
	if err != nil {
		return fmt.Errorf("encoding trial %d: %w", t.Index, err)
	}
	line = append(line, '\n')
	_, err = w.trials.WriteAt(line, w.size)
	if err == nil {
		err = w.trials.Sync()
	}
	if err != nil {
		return errors.Join(cannotWrite(err, w.trials.Name()), w.trials.Truncate(w.size))
	}
	w.size += int64(len(line))
	return nil
}

// WriteSummary writes summary.json; v is an *analysis.Summary, which this package need not know.
func (w *Writer) WriteSummary(v any) error { return w.writeJSON(SummaryFile, v) }

// Close closes the trials file.
func (w *Writer) Close() error {
	if err := w.trials.Close(); err != nil {
		return cannotWrite(err, w.trials.Name())
	}
	return nil
}

// writeJSON writes a file whole or not at all.
func (w *Writer) writeJSON(name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", name, err)
	}
	path := filepath.Join(w.dir, name)
	if err := ReplaceFile(path, append(data, '\n')); err != nil {
		return cannotWrite(err, path)
	}
	return nil
}

// ReplaceFile writes a file whole or not at all, through a new file beside it: a link that somebody else left at its
// place is replaced and not followed.
func ReplaceFile(path string, data []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	_, err = f.Write(data)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), path)
}

// cannotWrite says why the run directory could not be written and what to do about it.
func cannotWrite(err error, path string) error {
	mend := "name a directory that can be written with --out"
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, io.ErrShortWrite) {
		mend = "make room, or name a directory on another disk with --out; trials that had ended are kept"
	}
	return fault.Wrap(err, fault.Machine, path, mend, "the run directory cannot be written")
}
