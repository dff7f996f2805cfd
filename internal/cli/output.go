package cli

import (
	"encoding/json"
	"errors"
	"io"
	"os"

	"github.com/mattn/go-isatty"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/lib/terminal"
)

// stdout is standard output for the commands. A failed write is a fault with a hint. The first one is kept, because
// not every command checks the error of each line that it writes. It is not a fault if the reader has gone, as in
// 'tare run ... | head': the command then runs to its end and cleans up as usual, and only its output is lost.
type stdout struct {
	file *os.File
	w    io.Writer // writes to file, through terminal.Guard if that is a terminal
	gone bool
	err  error
}

func newStdout(file *os.File) *stdout {
	o := &stdout{file: file, w: file}
	if isatty.IsTerminal(file.Fd()) {
		o.w = terminal.Guard(file, terminal.Styles...)
	}
	return o
}

func (o *stdout) Write(p []byte) (int, error) {
	if o.gone {
		return len(p), nil
	}
	n, err := o.w.Write(p)
	switch {
	case err == nil:
		return n, nil
	case errors.Is(err, unix.EPIPE):
		o.gone = true
		return len(p), nil
	}
	err = fault.Wrap(err, fault.Machine, "standard output", "make room, or write somewhere else",
		"cannot write the result")
	if o.err == nil {
		o.err = err
	}
	return n, err
}

// printJSON prints one JSON document.
func printJSON(w io.Writer, indent string, document any) error {
	e := json.NewEncoder(w)
	e.SetIndent("", indent)
	return e.Encode(document)
}

// unheard reports whether the reader of w has gone. A command that only prints may then end.
func unheard(w io.Writer) bool {
	o, ok := w.(*stdout)
	return ok && o.gone
}

// fileOf returns the file to which w writes, or nil if there is none.
func fileOf(w io.Writer) *os.File {
	switch w := w.(type) {
	case *os.File:
		return w
	case *stdout:
		return w.file
	}
	return nil
}

// stderr is standard error. Text for people goes there.
var stderr = terminal.Guard(os.Stderr)
