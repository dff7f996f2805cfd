package record

import (
	"bufio"
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
	"strconv"

	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/text"
)

// Contents is the contents of a run directory.
type Contents struct {
	Dir      string
	Run      Run
	Trials   []Trial
	Partial  bool     // the run is incomplete (Run.Partial)
	Warnings []string // problems of the record itself that the reader of a report must know
}

// Read reads a run directory. A last line that was cut off by a crash or a full disk is left out, with an entry in
// Warnings; any other error is a fault with the file and line.
func Read(dir string) (*Contents, error) {
	return read(dir, func(line []byte) (t Trial, err error) {
		err = unmarshal(line, &t)
		return t, err
	})
}

// ReadLean reads the parts of a run directory that a report, a comparison or a plan needs. It accepts untrusted
// records: the memory that it uses is bounded. Records that a Writer wrote are within the bounds.
func ReadLean(dir string) (*Contents, error) {
	var names names
	kept := int64(0)
	return read(dir, func(line []byte) (Trial, error) {
		t, err := lean(line, &names)
		if err != nil {
			return t, err
		}
		if kept += SizeOf(t); kept > maxKept {
			return t, &tooLarge{fmt.Errorf("the trials up to here take more than %d MiB of memory", maxKept>>20)}
		}
		return t, nil
	})
}

// largeHint is the hint for a record that exceeds the bounds.
const largeHint = "tare does not write such records: docs/formats.md has the limits"

func read(dir string, decode func(line []byte) (Trial, error)) (*Contents, error) {
	c := &Contents{Dir: dir}
	if err := c.readRun(filepath.Join(dir, RunFile)); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, TrialsFile)
	f, err := files.Open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.Warnings = append(c.Warnings, TrialsFile+" is missing: the run ended before its first trial")
	case err != nil:
		return nil, fault.Wrap(err, fault.Usage, path, "", "the trials cannot be read")
	default:
		defer f.Close()
		if err := c.readTrials(f, path, decode); err != nil {
			return nil, err
		}
	}
	nameless := 0
	for i := range c.Trials {
		if c.Trials[i].Run == "" {
			nameless++
		}
	}
	if nameless > 0 && nameless < len(c.Trials) { // records before 0.4 have no names
		c.Warnings = append(c.Warnings, fmt.Sprintf("%d of %d trials do not name their run: that they are of this one is "+
			"not known", nameless, len(c.Trials)))
	}
	c.Partial = c.Run.Partial(c.Trials)
	return c, nil
}

func (c *Contents) readRun(path string) error {
	data, err := files.Read(path, maxRunBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Usage, c.Dir, "a run directory is what 'tare run' writes",
			"there is no %s: this is not a run directory", RunFile)
	}
	if err != nil {
		return fault.Wrap(err, fault.Usage, path, "", "the run cannot be read")
	}
	c.Run, err = DecodeRun(data)
	if large := (*tooLarge)(nil); errors.As(err, &large) {
		return fault.Wrap(err, fault.Usage, path, largeHint, "this is not the record of a run")
	}
	if err != nil {
		return fault.Wrap(err, fault.Usage, fmt.Sprintf("%s:%d", path, lineOf(data, err)), "",
			"this is not the record of a run")
	}
	if err := checkSchema(c.Run.Schema, RunSchema, path); err != nil {
		return err
	}
	return fault.Wrap(c.Run.Check(), fault.Usage, path, largeHint, "this is not the record of a run")
}

// DecodeRun decodes the contents of a RunFile, which may be untrusted. It refuses contents that would take too much
// memory before it decodes them. Call Run.Check for the other bounds.
func DecodeRun(data []byte) (run Run, err error) {
	err = unmarshal(data, &run)
	return run, err
}

// Check refuses a run that exceeds the bounds for reading.
func (r *Run) Check() error {
	arms := map[string]bool{} // arms at levels (placeOf)
	for _, p := range r.Plan[:min(len(r.Plan), MaxTrials)] {
		if err := p.checkPlace(); err != nil {
			return fmt.Errorf("trial %d of its plan is invalid: %w", p.Index, err)
		}
		if arms[placeOf(p)] = true; len(arms) > MaxPlaces {
			break
		}
	}
	switch {
	case len(r.Plan) > MaxTrials:
		return fmt.Errorf("its plan has %d trials, and %d are allowed", len(r.Plan), MaxTrials)
	case len(arms) > MaxPlaces:
		return fmt.Errorf("its arms stand at more than %d levels in all", MaxPlaces)
	case len(r.Metrics) > MaxMetrics:
		return fmt.Errorf("it defines %d metrics, and %d are allowed", len(r.Metrics), MaxMetrics)
	}
	return nil
}

// checkPlace refuses a trial whose arm and factors exceed the bounds.
func (p PlannedTrial) checkPlace() error {
	bytes := len(p.Arm)
	for name, level := range p.Factors {
		bytes += len(name) + len(level)
	}
	switch {
	case len(p.Factors) > MaxFactors:
		return fmt.Errorf("it has %d factors, and %d are allowed", len(p.Factors), MaxFactors)
	case bytes > maxPlaceBytes:
		return fmt.Errorf("its arm and its factors have %d bytes of text, and %d are allowed", bytes, maxPlaceBytes)
	}
	return nil
}

// placeOf identifies a place in a plan: an arm at a level.
func placeOf(p PlannedTrial) string { return fmt.Sprintf("%q %s", p.Arm, LevelKey(p.Factors)) }

// LevelKey returns a key that is unique to a level. It is computed many times for each metric, from untrusted text, so
// it marks the ends of names and values by their lengths instead of quoting them.
func LevelKey(level map[string]string) string {
	var b []byte
	for _, name := range slices.Sorted(maps.Keys(level)) {
		for _, text := range []string{name, level[name]} {
			b = strconv.AppendInt(b, int64(len(text)), 10)
			b = append(append(b, ' '), text...)
		}
	}
	return string(b)
}

// readLine reads a line with its newline. It returns the last line together with io.EOF.
func readLine(br *bufio.Reader, most int) ([]byte, error) {
	var line []byte
	for {
		part, err := br.ReadSlice('\n')
		line = append(line, part...)
		if !errors.Is(err, bufio.ErrBufferFull) {
			return line, err
		}
		if len(line) > most {
			return nil, fmt.Errorf("a line has more than %d MiB", most>>20)
		}
	}
}

// readTrials reads one trial from each line. It decodes a line after it has checked whether another follows, because
// only the last may be torn.
func (c *Contents) readTrials(f *os.File, path string, decode func(line []byte) (Trial, error)) error {
	if info, err := f.Stat(); err == nil && info.Size() > maxTrialsBytes {
		return fault.New(fault.Usage, path, largeHint, "the trials cannot be read: it has more than %d MiB",
			int64(maxTrialsBytes)>>20)
	}
	places := map[string]bool{}
	attempts := map[int]int{}                                            // read so far, by the index of the trial
	br := bufio.NewReaderSize(io.LimitReader(f, maxTrialsBytes), 64<<10) // limited, should the file grow meanwhile
	for n := 1; ; n++ {
		line, err := readLine(br, maxTrialBytes)
		if err != nil && !errors.Is(err, io.EOF) {
			return fault.Wrap(err, fault.Usage, path, "", "the trials cannot be read")
		}
		atEnd := err != nil
		if !atEnd {
			_, err = br.Peek(1)
			atEnd = err != nil
		}
		if len(bytes.TrimSpace(line)) > 0 {
			where := fmt.Sprintf("%s:%d", path, n)
			t, err := decode(line)
			if large, is := errors.AsType[*tooLarge](err); is {
				return fault.Wrap(large, fault.Usage, where, largeHint, "the trials cannot be read")
			}
			if err != nil {
				if !atEnd {
					return fault.Wrap(err, fault.Usage, where, "the lines before it are whole: move the rest away to report on those",
						"this line is not the record of a trial")
				}
				c.Warnings = append(c.Warnings, fmt.Sprintf("%s: the last line was cut off and is left out", where))
				return nil
			}
			if err := checkSchema(t.Schema, TrialSchema, where); err != nil {
				return err
			}
			if err := t.checkPlace(); err != nil {
				return fault.Wrap(err, fault.Usage, where, largeHint, "the trials cannot be read")
			}
			if err := c.Run.owns(&t, attempts[t.Index]); err != nil {
				return fault.Wrap(err, fault.Usage, where, "tare does not write such a line: move it away to report on the others",
					"the trials are not those that the run made")
			}
			attempts[t.Index]++
			if len(c.Trials) == MaxAttempts {
				return fault.New(fault.Usage, where, largeHint, "the trials cannot be read: there are more than %d", MaxAttempts)
			}
			if places[placeOf(t.PlannedTrial)] = true; len(places) > MaxPlaces {
				return fault.New(fault.Usage, where, largeHint,
					"the trials cannot be read: their arms stand at more than %d levels in all", MaxPlaces)
			}
			c.Trials = append(c.Trials, t)
		}
		if atEnd {
			return nil
		}
	}
}

// owns refuses a trial that the run did not make: one of another run, one that is not in the plan, a duplicate, or one
// whose previous attempt is missing. The argument before is the number of attempts at the trial that have been read.
func (r *Run) owns(t *Trial, before int) error {
	planned := len(r.Plan) == 0 // as in records that tests make
	if !planned && t.Index >= 0 && t.Index < len(r.Plan) {
		p := r.Plan[t.Index]
		planned = p.Index == t.Index && p.Block == t.Block && p.Position == t.Position &&
			placeOf(p) == placeOf(t.PlannedTrial)
	}
	switch {
	case t.Run != "" && t.Run != r.ID:
		return fmt.Errorf("it is of the run %q, and %s of %q", text.ClipTo(t.Run, 60), RunFile, text.ClipTo(r.ID, 60))
	case !planned:
		return fmt.Errorf("the plan in %s has no trial %d of arm %q in block %d at this position and level: "+
			"it is of another run", RunFile, t.Index, text.ClipTo(t.Arm, 60), t.Block)
	case t.Attempt < before:
		return fmt.Errorf("attempt %d of trial %d is there twice", t.Attempt, t.Index)
	case t.Attempt > before:
		return fmt.Errorf("it is attempt %d of trial %d, and attempt %d is not there", t.Attempt, t.Index, before)
	}
	return nil
}

func checkSchema(got, want, where string) error {
	if got == want {
		return nil
	}
	return fault.New(fault.Usage, where, "read it with the version of tare that wrote it",
		"the schema is %q; this tare reads %q", got, want)
}

// lineOf returns the line, from 1, in which decoding data failed.
func lineOf(data []byte, err error) int {
	var syntax *json.SyntaxError
	var typ *json.UnmarshalTypeError
	offset := int64(0)
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &typ):
		offset = typ.Offset
	}
	offset = min(max(offset, 0), int64(len(data)))
	return 1 + bytes.Count(data[:offset], []byte("\n"))
}
