package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"tare/internal/lib/fault"
	"tare/internal/lib/files"

	"tare/internal/scale/ledger"
)

// Writer writes a run directory. It must be used by one goroutine at a time.
type Writer struct {
	dir    string
	run    string   // the ID of the run
	root   *os.Root // the directory that Create or Continue opened; another may be at its path by now
	trials *os.File
	size   int64 // size of the trials file in bytes, without a line that could not be written whole

	// What a reader would need for the trials, which must stay within the reader's limits.
	lines   int
	kept    int64 // bytes of memory
	names   names
	trimmed int // trials of which something was left out
}

// Create makes the run directory dir, which must be empty or not exist, and writes run.json. Its errors are faults:
// Usage if dir is in use or not private, Machine if it cannot be written.
//
// All files are created relative to the directory that Create opened, without following links, so that a user who can
// change the directories above it cannot make a run write elsewhere.
//
// A run that could not be read again is rejected with a fault of code Usage.
func Create(dir string, run Run) (_ *Writer, err error) {
	if err := run.Check(); err != nil {
		return nil, fault.Wrap(err, fault.Usage, dir, "split the experiment", "a run directory cannot hold the run")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, cannotWrite(err, dir)
	}
	w := &Writer{dir: dir, run: run.ID}
	if w.root, err = openRoot(dir); err != nil {
		return nil, cannotWrite(err, dir)
	}
	defer func() {
		if err != nil {
			w.root.Close()
		}
	}()
	if err := w.ours(); err != nil {
		return nil, err
	}
	// The file of trials comes first: only one of two runs that found the directory empty can create it.
	w.trials, err = w.root.OpenFile(TrialsFile, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil, inUse(dir)
	}
	if err != nil {
		return nil, cannotWrite(err, filepath.Join(dir, TrialsFile))
	}
	if err := w.writeJSON(RunFile, run); err != nil {
		return nil, errors.Join(err, w.trials.Close(), w.root.Remove(TrialsFile))
	}
	return w, nil
}

// Free returns an error, a fault, if Create would reject dir because it is not empty or cannot be read.
func Free(dir string) error {
	names, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return cannotWrite(err, dir)
	}
	if len(names) > 0 {
		return inUse(dir)
	}
	return nil
}

// Continue opens the run directory dir, which must be of the same run, to append to it. If dir does not exist or has no
// run.json, Continue makes the run directory as Create does. Size then returns how much of trials.jsonl exists.
func Continue(dir string, run Run) (*Writer, error) {
	root, err := openRoot(dir)
	if err != nil {
		return Create(dir, run)
	}
	w := &Writer{root: root, dir: dir, run: run.ID}
	if err := w.private(); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	f, err := root.OpenFile(RunFile, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		root.Close()
		return Create(dir, run) // it begins the run if the directory is empty, and else says why it cannot
	}
	if err := errors.Join(w.goOn(f), f.Close()); err != nil {
		return nil, errors.Join(err, root.Close())
	}
	return w, nil
}

// openRoot opens a directory. If there is a pipe instead, the trailing slash makes it fail; otherwise it would wait for
// the pipe's other end.
func openRoot(dir string) (*os.Root, error) { return os.OpenRoot(dir + "/") }

// goOn opens the file of trials, if f, the directory's run.json, belongs to the same run.
func (w *Writer) goOn(f io.Reader) error {
	var is struct{ ID string }
	if json.NewDecoder(io.LimitReader(f, maxRunBytes)).Decode(&is) != nil || is.ID != w.run {
		return inUse(w.dir)
	}
	var err error
	if w.trials, err = w.root.OpenFile(TrialsFile, os.O_CREATE|os.O_RDWR, 0o644); err != nil {
		return cannotWrite(err, filepath.Join(w.dir, TrialsFile))
	}
	if w.size, err = written(w.trials); err == nil {
		err = w.trials.Truncate(w.size)
	}
	if err != nil {
		return cannotWrite(errors.Join(err, w.trials.Close()), filepath.Join(w.dir, TrialsFile))
	}
	return nil
}

// written returns how much of a file of trials is on disk: the length up to its first zero byte, if any. A file that
// was being written when the power failed may end in zeros, which are no part of JSON.
func written(f *os.File) (size int64, err error) {
	block := make([]byte, 1<<20)
	for {
		n, err := f.ReadAt(block, size)
		if nul := bytes.IndexByte(block[:n], 0); nul >= 0 {
			return size + int64(nul), nil
		}
		size += int64(n)
		if errors.Is(err, io.EOF) {
			return size, nil
		}
		if err != nil {
			return 0, err
		}
	}
}

// Size returns the size of trials.jsonl in bytes.
func (w *Writer) Size() int64 { return w.size }

// Copy appends the next bytes of the trials.jsonl of another directory of the run, and waits until they are on disk.
// They need not be whole lines.
func (w *Writer) Copy(data []byte) error {
	if w.size+int64(len(data)) > maxTrialsBytes {
		return fault.New(fault.Invalid, filepath.Join(w.dir, TrialsFile), largeHint,
			"the trials of a run have at most %d bytes, not %d", maxTrialsBytes, w.size+int64(len(data)))
	}
	return w.add(data)
}

// add appends to the file of trials and waits until that is on disk, or leaves the file as it was.
func (w *Writer) add(data []byte) error {
	_, err := w.trials.WriteAt(data, w.size)
	if err == nil {
		err = w.trials.Sync()
	}
	if err != nil {
		return errors.Join(cannotWrite(err, w.trials.Name()), w.trials.Truncate(w.size))
	}
	w.size += int64(len(data))
	return nil
}

// ours rejects a directory that is not empty, or that another user can write to: a user who can place a link where a
// run is about to write a file, or change what its processes read, has the run's privileges.
func (w *Writer) ours() error {
	if err := w.private(); err != nil {
		return err
	}
	d, err := w.root.Open(".")
	if err != nil {
		return cannotWrite(err, w.dir)
	}
	defer d.Close()
	switch _, err := d.Readdirnames(1); {
	case err == nil:
		return inUse(w.dir)
	case !errors.Is(err, io.EOF):
		return cannotWrite(err, w.dir)
	}
	return nil
}

func (w *Writer) private() error {
	info, err := w.root.Stat(".")
	if err != nil {
		return cannotWrite(err, w.dir)
	}
	const hint = "name a directory that does not exist yet with --out: Tare creates it so that only you can write to it"
	return fault.Wrap(files.CheckPrivate(info, files.OthersWrite), fault.Usage, w.dir, hint,
		"the run directory is not yours alone")
}

func inUse(dir string) error {
	return fault.New(fault.Usage, dir, "name a directory that is empty or does not exist with --out",
		"the run directory is not empty, and a run never writes over another")
}

// UpdateRun replaces run.json, completely or not at all: the plan of a run without a fixed number of blocks grows.
func (w *Writer) UpdateRun(run Run) error { return w.writeJSON(RunFile, run) }

// Dir returns the path of the run directory.
func (w *Writer) Dir() string { return w.dir }

// Append adds one trial and waits until it is on disk. If it fails, it removes a partly written line, so earlier
// trials stay readable.
//
// Whatever is appended can be read again. If a trial is too large for that, details are left out of it (see trims and
// Trimmed). If the run has too many trials, Append fails with a fault of code Invalid, and earlier trials are kept.
func (w *Writer) Append(t Trial) error {
	if err := t.checkPlace(); err != nil {
		return fault.Wrap(err, fault.Invalid, filepath.Join(w.dir, TrialsFile), "split the experiment",
			"a run directory cannot hold trial %d", t.Index)
	}
	t.Run = w.run
	if t.Profile != nil && w.kept > maxKept/2 { // the other half is reserved for trials
		t.Profile, t.Ledger = nil, trimmed(t.Ledger, "its profile, which is in the run directory")
		w.trimmed++
	}
	line, kept, err := w.fit(t)
	if err != nil {
		return err
	}
	size := int64(len(line))
	if w.lines == MaxAttempts || w.size+size > maxTrialsBytes || w.kept+kept > maxKept {
		return fault.New(fault.Invalid, filepath.Join(w.dir, TrialsFile),
			"split the experiment: fewer blocks, levels or arms to a run",
			"a run directory cannot hold more; it keeps the %d trials until here", w.lines)
	}
	if err := w.add(line); err != nil {
		return err
	}
	w.lines, w.kept = w.lines+1, w.kept+kept
	return nil
}

// Trimmed returns the number of trials from which details were left out because they were too large for the record.
func (w *Writer) Trimmed() int { return w.trimmed }

// fit encodes a trial as a line that can be read again. kept is the memory that a reader needs for it, in bytes.
func (w *Writer) fit(t Trial) (line []byte, kept int64, err error) {
	for step := 0; ; step++ {
		if line, err = json.Marshal(t); err != nil {
			return nil, 0, fmt.Errorf("encoding trial %d: %w", t.Index, err)
		}
		if len(line) < maxTrialBytes {
			read, err := lean(line, &w.names)
			if kept = SizeOf(read); err == nil && kept <= maxKept/16 {
				if step > 0 {
					w.trimmed++
				}
				return append(line, '\n'), kept, nil
			}
		}
		if step == len(trims) {
			return nil, 0, fmt.Errorf("trial %d has %d bytes, too many for a line of a record", t.Index, len(line))
		}
		t = trims[step](t)
	}
}

// Trimmed is the code of a ledger's warning that details were left out of a trial because it was too large.
const Trimmed = "trimmed"

// trims holds functions that are applied in turn until a trial fits. The first ones leave out details that no report
// shows, and the last keeps only the fact that the trial was run. They do not change values to which their argument
// points.
var trims = []func(Trial) Trial{
	func(t Trial) Trial {
		t.Ledger = trimmed(t.Ledger, "single stalls of nodes")
		return atNodes(t, func(of Trial) Trial {
			of.Ledger = withoutStalls(of.Ledger)
			return of
		})
	},
	func(t Trial) Trial {
		t.Ledger = withoutStalls(trimmed(t.Ledger, "single stalls, sandboxes and further readings"))
		if t.Ledger != nil {
			t.Ledger.Sandboxes = nil
		}
		t.Further = nil
		return t
	},
	func(t Trial) Trial {
		t.Ledger = trimmed(t.Ledger, "the records of nodes but for their metrics")
		return atNodes(t, func(of Trial) Trial {
			return Trial{Schema: of.Schema, PlannedTrial: of.PlannedTrial, Metrics: of.Metrics}
		})
	},
	func(t Trial) Trial {
		t.Ledger = trimmed(t.Ledger, "what only guests know")
		t.Evidence, t.Subject = nil, nil
		t.Loads = maps.Clone(t.Loads)
		for name, r := range t.Loads {
			r.Own = nil
			t.Loads[name] = r
		}
		return t
	},
	func(t Trial) Trial {
		t.Validity = Validity{Failed: "its record was too large to be kept"}
		return Trial{
			Schema: t.Schema, Run: t.Run, PlannedTrial: t.PlannedTrial, Attempt: t.Attempt, Started: t.Started, Ended: t.Ended,
			Validity: t.Validity,
		}
	},
}

// atNodes returns a copy of a trial with the records of its nodes changed.
func atNodes(t Trial, change func(Trial) Trial) Trial {
	t.Nodes = slices.Clone(t.Nodes)
	for i, n := range t.Nodes {
		if n.Trial != nil {
			t.Nodes[i].Trial = new(change(*n.Trial))
		}
	}
	return t
}

// trimmed returns a copy of a ledger with a warning about what was left out of its trial; nil if l is nil.
func trimmed(l *ledger.Ledger, what string) *ledger.Ledger {
	if l == nil {
		return nil
	}
	to := *l
	to.Warnings = append(slices.Clone(l.Warnings), ledger.Warning{
		Code: Trimmed, Message: "the trial was too large for its record, which is without " + what,
	})
	return &to
}

// withoutStalls returns a copy of a ledger in which stalls are only counted; l itself if it has no noise.
func withoutStalls(l *ledger.Ledger) *ledger.Ledger {
	if l == nil || l.Noise == nil {
		return l
	}
	to, n := *l, *l.Noise
	n.StallsOmitted, n.Stalls = n.StallsOmitted+len(n.Stalls), nil
	n.OccupiedMissed, n.Occupied = n.OccupiedMissed+len(n.Occupied), nil
	to.Noise = &n
	return &to
}

// WriteSummary writes summary.json; v is an *analysis.Summary, a type that this package need not import.
func (w *Writer) WriteSummary(v any) error { return w.writeJSON(SummaryFile, v) }

// WriteFile writes a further file of the run directory, completely or not at all.
func (w *Writer) WriteFile(name string, data []byte) error {
	return cannotWrite(files.ReplaceIn(w.root, name, data, 0o644), filepath.Join(w.dir, name))
}

// WriteProfile writes a file of ProfileDir, completely or not at all.
func (w *Writer) WriteProfile(name string, data []byte) error {
	err := w.root.Mkdir(ProfileDir, 0o755)
	if errors.Is(err, fs.ErrExist) {
		err = nil
	}
	var dir *os.Root
	if err == nil {
		dir, err = w.root.OpenRoot(ProfileDir)
	}
	if err == nil {
		err = errors.Join(files.ReplaceIn(dir, name, data, 0o644), dir.Close())
	}
	return cannotWrite(err, filepath.Join(w.dir, ProfileDir, name))
}

// ReadProfile reads a file of ProfileDir.
func (w *Writer) ReadProfile(name string) ([]byte, error) {
	data, err := w.root.ReadFile(filepath.Join(ProfileDir, name))
	if err != nil {
		return nil, fmt.Errorf("reading a profile of the run: %w", err)
	}
	return data, nil
}

// Close closes the trials file and the directory.
func (w *Writer) Close() error {
	return cannotWrite(errors.Join(w.trials.Close(), w.root.Close()), filepath.Join(w.dir, TrialsFile))
}

// writeJSON writes v to a file as JSON, completely or not at all.
func (w *Writer) writeJSON(name string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("encoding %s: %w", name, err)
	}
	if name == RunFile && (len(data) >= maxRunBytes || checkShape(data) != nil) {
		return fault.New(fault.Usage, filepath.Join(w.dir, name), "split the experiment",
			"a run directory cannot hold the run: its plan and its spec are too large")
	}
	return w.WriteFile(name, append(data, '\n'))
}

// cannotWrite returns err as a fault with a hint about what to do; nil if err is nil.
func cannotWrite(err error, path string) error {
	if err == nil {
		return nil
	}
	hint := "name a directory that can be written with --out"
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) || errors.Is(err, io.ErrShortWrite) {
		hint = "make room, or name a directory on another disk with --out; trials that had ended are kept"
	}
	return fault.Wrap(err, fault.Machine, path, hint, "the run directory cannot be written")
}
