package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
	"tare/internal/scale/meter"
	"tare/internal/scale/profile"
)

// profiler takes a profile during a window, and writes it to a file. If the name of the file is empty, its methods do
// nothing. begin, end and write also accept a nil profiler.
type profiler struct {
	file string
	say  io.Writer // receives a summary of the profile

	stacks *meter.Stacks
	window *profile.Window
}

// check returns an error if the file cannot be written. It is called first, so that no window is measured for nothing.
func (p *profiler) check() error {
	if p.file == "" {
		return nil
	}
	probe, err := os.CreateTemp(filepath.Dir(p.file), ".tare-")
	if err == nil {
		err = errors.Join(probe.Close(), os.Remove(probe.Name()))
	}
	return p.cannotWrite(err)
}

func (p *profiler) cannotWrite(err error) error {
	return fault.Wrap(err, fault.Machine, "--pprof "+p.file, "name a file in a directory that can be written",
		"the profile cannot be written")
}

func (p *profiler) begin() (err error) {
	if p != nil && p.file != "" {
		if p.stacks, err = meter.OpenStacks(profile.Hz); err == nil {
			err = p.stacks.Begin(0, math.MaxInt64)
		}
	}
	return err
}

func (p *profiler) end() (err error) {
	if p != nil && p.stacks != nil {
		p.window, err = p.stacks.End()
	}
	return err
}

// write writes the profile. The CPU time and the charges of groups come from a ledger of the same window.
func (p *profiler) write(l *ledger.Ledger) error {
	if p == nil || p.window == nil {
		return nil
	}
	built, err := profile.OfLedger(p.window, l)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := errors.Join(built.Write(&b), files.Replace(p.file, b.Bytes(), 0o644)); err != nil {
		return p.cannotWrite(err)
	}
	samples, ns := 0, int64(0)
	for _, s := range built.Sample {
		samples, ns = samples+int(s.Value[0]), ns+s.Value[1]
	}
	fmt.Fprintf(p.say, "%s: %s, for %s of CPU time: go tool pprof -http=: %[1]s\n", p.file,
		quantity.Counted(samples, "sample"), quantity.Value(float64(ns)/1e9, quantity.Seconds))
	for _, c := range built.Comments {
		fmt.Fprintln(p.say, c)
	}
	return nil
}
