// Package fault gives errors the three things that a user needs to act on them: what was wrong, where, and a hint. It
// also carries the exit code, so that a failure anywhere ends the process with the right code, while only the command
// line exits.
package fault

import (
	"errors"
	"fmt"
	"slices"
	"syscall"
)

// Code is a process exit code of the tare command.
type Code int

// The exit codes of the tare command; they are part of its interface.
const (
	OK       Code = 0
	Internal Code = 1 // a defect in Tare, or an unexpected failure of the operating system
	Usage    Code = 2 // wrong use or configuration
	Machine  Code = 3 // this machine cannot do it
	Invalid  Code = 4 // the result is invalid or incomplete, or cannot decide an assertion
	Exceeded Code = 5 // an assertion fails, all operations of a load failed, or calibration is out of tolerance
)

// Error is a failure with a hint. Only the fields Code and What are required.
type Error struct {
	Code  Code
	What  string // what was wrong, in one sentence without a full stop
	Where string // file:line, path, flag or process
	Hint  string // what the user can do about it
	Err   error  // the cause, if there is one
}

func (e *Error) Error() string {
	s := e.What
	if e.Where != "" {
		s = e.Where + ": " + s
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

func (e *Error) Unwrap() error { return e.Err }

// New returns an Error without a cause. Use Wrap if there is one.
func New(code Code, where, hint, format string, args ...any) *Error {
	return &Error{Code: code, What: fmt.Sprintf(format, args...), Where: where, Hint: hint}
}

// Wrap adds a code, a place and a hint to err. It returns nil if err is nil.
func Wrap(err error, code Code, where, hint, format string, args ...any) error {
	if err == nil {
		return nil
	}
	return &Error{Code: code, What: fmt.Sprintf(format, args...), Where: where, Hint: hint, Err: err}
}

// CodeOf returns the exit code for err: OK for nil, or else that of the outermost Error in the chain. Without such an
// Error it returns Machine if the kernel refused something for lack of permissions or resources, or because a device
// failed, and otherwise Internal.
func CodeOf(err error) Code {
	if err == nil {
		return OK
	}
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	if slices.ContainsFunc(refusals, func(refusal syscall.Errno) bool { return errors.Is(err, refusal) }) {
		return Machine
	}
	return Internal
}

// refusals are error numbers that are caused by the state of the machine and not by a wrong call.
var refusals = []syscall.Errno{
	syscall.EPERM, syscall.EACCES, syscall.EROFS, syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.ENOMEM,
	syscall.EMFILE, syscall.ENFILE, syscall.EAGAIN, syscall.EBUSY, syscall.ENODEV,
}

// HintOf returns the hint of the outermost Error in the chain that has one. For too many open files it always returns
// the remedy for that, because any operation can fail this way and no other hint would help.
func HintOf(err error) string {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return "raise the limit of open files: ulimit -n 65536"
	case errors.Is(err, syscall.ENFILE):
		return "raise the machine's limit of open files: sysctl fs.file-max"
	}
	for err != nil {
		var e *Error
		if !errors.As(err, &e) {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}
