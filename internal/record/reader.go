package record

import (
	"bufio"
	"bytes"
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

// A record can come from anybody, so it is bounded: beyond these it is none of Tare's.
const (
	maxRunBytes   = 256 << 20
	maxTrialBytes = 64 << 20
)

// open opens a file of a record, but no pipe or device in its place, which could keep a reader for ever.
func open(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = errors.New("it is not a file")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// Contents is a run directory as read.
type Contents struct {
	Dir      string
	Run      Run
	Trials   []Trial
	Partial  bool     // fewer trials than planned
	Warnings []string // what the reader of a report must know about the record itself
}

// Read reads a run directory. A last line that was cut off, as a crash or a full disk leaves it, is left out and said
// in Warnings; anything else that is wrong is a fault with the file and line.
func Read(dir string) (*Contents, error) {
	c := &Contents{Dir: dir}
	if err := c.readRun(filepath.Join(dir, RunFile)); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, TrialsFile)
	f, err := open(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c.Warnings = append(c.Warnings, TrialsFile+" is missing: the run ended before its first trial")
	case err != nil:
		return nil, fault.Wrap(err, fault.Usage, path, "", "the trials cannot be read")
	default:
		defer f.Close()
		if err := c.readTrials(f, path); err != nil {
			return nil, err
		}
	}
	c.Partial = c.Run.Partial(c.Trials)
	return c, nil
}

func (c *Contents) readRun(path string) error {
	data, err := readAll(path, maxRunBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Usage, c.Dir, "a run directory is what 'tare run' writes", "there is no %s: this is not a run directory", RunFile)
	}
	if err != nil {
		return fault.Wrap(err, fault.Usage, path, "", "the run cannot be read")
	}
	if err := json.Unmarshal(data, &c.Run); err != nil {
		return fault.Wrap(err, fault.Usage, fmt.Sprintf("%s:%d", path, lineOf(data, err)), "", "this is not the record of a run")
	}
	return checkSchema(c.Run.Schema, RunSchema, path)
}

func readAll(path string, most int64) ([]byte, error) {
	f, err := open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > most {
		return nil, fmt.Errorf("it has more than %d MiB", most>>20)
	}
	return io.ReadAll(f)
}

// readLine reads a line with its end; what comes with io.EOF is the last.
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

// readTrials reads one trial from each line. A line is looked at only when the next one is known to exist or not, for
// only the last may be torn.
func (c *Contents) readTrials(r io.Reader, path string) error {
	br := bufio.NewReaderSize(r, 64<<10)
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
			var t Trial
			where := fmt.Sprintf("%s:%d", path, n)
			if err := json.Unmarshal(line, &t); err != nil {
				if !atEnd {
					return fault.Wrap(err, fault.Usage, where, "the lines before it are whole: move the rest away to report on those", "this line is not the record of a trial")
				}
				c.Warnings = append(c.Warnings, fmt.Sprintf("%s: the last line was cut off and is left out", where))
				return nil
			}
			if err := checkSchema(t.Schema, TrialSchema, where); err != nil {
				return err
			}
			c.Trials = append(c.Trials, t)
		}
		if atEnd {
			return nil
		}
	}
}

func checkSchema(got, want, where string) error {
	if got == want {
		return nil
	}
	return fault.New(fault.Usage, where, "read it with the version of tare that wrote it", "the schema is %q; this tare reads %q", got, want)
}

// lineOf is the line, from 1, where decoding data failed.
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
