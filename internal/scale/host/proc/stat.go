package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// Stat is the CPU time of the whole machine since boot, in seconds, from /proc/stat. Each mode is the sum over all
// CPUs, including those that are offline (the line "cpu"), with a resolution of one tick of USER_HZ (10 ms). User
// contains Guest, and Nice contains GuestNice. Use Since for the difference between two readings.
type Stat struct {
	User, Nice, System, Idle, IOWait, IRQ, Softirq, Steal, Guest, GuestNice float64

	Online []CPUTime // the CPUs that are online
}

// CPUTime is the time of one CPU since boot, in seconds.
type CPUTime struct {
	CPU           int // its number
	Waiting, Busy float64
}

// Busy returns the time during which the CPUs ran something or were stolen.
func (s Stat) Busy() float64 { return s.User + s.Nice + s.System + s.IRQ + s.Softirq + s.Steal }

// Waiting returns the time during which the CPUs were idle or waited for a disk.
func (s Stat) Waiting() float64 { return s.Idle + s.IOWait }

// Elapsed holds what the CPUs did between two readings, in seconds.
type Elapsed struct {
	User, System, IRQ, Softirq, Steal float64 // of all CPUs; User contains nice
	Idle                              float64 // of the CPUs that were online at both readings, including iowait
	// Capacity is the CPU time that was available. A CPU that was online at both readings contributes all the time between
	// them. A CPU in Moved contributes only the time that it used, because how long it was online is unknown.
	Capacity float64
	Moved    []int // the CPUs that went offline or came online, by number
}

// Since returns what the CPUs did between an earlier reading and this one, which are the given number of seconds apart.
//
// The kernel's totals of busy time stay valid when a CPU goes offline or comes back. Its total of idle time does not:
// for a CPU that is online it comes from one clock, and for one that is offline from another (get_idle_time in
// fs/proc/stat.c), and these differ by minutes or hours. If CPUs moved, idle time is therefore added up over those that
// stayed. A CPU that went and came back between the readings, as when the machine is suspended, goes unnoticed on
// kernels on which its idle time goes on. On others it begins anew (before 71fee48fb772 "tick-sched: Fix idle and
// iowait sleeptime accounting vs CPU hotplug", Linux 6.8), and the CPU counts as one that moved.
func (s Stat) Since(first Stat, seconds float64) Elapsed {
	e := Elapsed{
		User: s.User + s.Nice - first.User - first.Nice, System: s.System - first.System, IRQ: s.IRQ - first.IRQ,
		Softirq: s.Softirq - first.Softirq, Steal: s.Steal - first.Steal,
	}
	before := make(map[int]CPUTime, len(first.Online))
	for _, c := range first.Online {
		before[c.CPU] = c
	}
	var stayed, waiting, busy float64
	for _, c := range s.Online {
		b, there := before[c.CPU]
		if !there || c.Waiting < b.Waiting-anew {
			delete(before, c.CPU)
			e.Moved = append(e.Moved, c.CPU)
			continue
		}
		delete(before, c.CPU)
		stayed++
		waiting += c.Waiting - b.Waiting
		busy += c.Busy - b.Busy
	}
	for gone := range before {
		e.Moved = append(e.Moved, gone)
	}
	slices.Sort(e.Moved)
	e.Capacity = seconds * stayed
	if len(e.Moved) == 0 {
		e.Idle = s.Waiting() - first.Waiting() // rounded once instead of once per CPU
		return e
	}
	e.Idle = waiting
	e.Capacity += max(s.Busy()-first.Busy()-busy, 0)
	return e
}

// anew is the fall of a CPU's idle time, in seconds, from which on it counts as begun anew. The kernel's count of the
// time spent waiting for disks may fall a little (Documentation/filesystems/proc.rst, "iowait").
const anew = 1

// Stat reads /proc/stat.
func (f FS) Stat() (Stat, error) {
	b, err := os.ReadFile(f.path("proc/stat"))
	if err != nil {
		return Stat{}, fmt.Errorf("reading the CPU time of the machine: %w", err)
	}
	s, err := parseStat(b, ticksPerSecond())
	if err != nil {
		return Stat{}, fmt.Errorf("reading the CPU time of the machine: %s: %w", f.path("proc/stat"), err)
	}
	return s, nil
}

func parseStat(b []byte, hz float64) (Stat, error) {
	var s Stat
	total := false
	for line := range bytes.Lines(b) {
		rest, ok := bytes.CutPrefix(line, []byte("cpu"))
		if !ok {
			break // the CPU lines come first
		}
		name := string(rest)
		of, err := parseModes(name, hz)
		if err != nil {
			return Stat{}, err
		}
		number, _, _ := strings.Cut(name, " ")
		if number == "" {
			of.Online, s, total = s.Online, of, true
			continue
		}
		n, err := strconv.Atoi(number)
		if err != nil || n < 0 {
			return Stat{}, fmt.Errorf("no number of a CPU in %q", "cpu"+number)
		}
		s.Online = append(s.Online, CPUTime{n, of.Waiting(), of.Busy()})
	}
	if !total || len(s.Online) == 0 {
		return Stat{}, errors.New("no lines for the CPUs")
	}
	return s, nil
}

// parseModes parses the times of one line, given without the prefix "cpu".
func parseModes(line string, hz float64) (Stat, error) {
	var s Stat
	name, _, _ := strings.Cut(line, " ")
	fields := strings.Fields(line[len(name):])
	modes := []*float64{&s.User, &s.Nice, &s.System, &s.Idle, &s.IOWait, &s.IRQ, &s.Softirq, &s.Steal, &s.Guest,
		&s.GuestNice}
	if len(fields) < len(modes) {
		return Stat{}, fmt.Errorf("%d modes in the line cpu%s, not %d", len(fields), name, len(modes))
	}
	for i, m := range modes {
		ticks, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return Stat{}, err
		}
		*m = float64(ticks) / hz
	}
	return s, nil
}
