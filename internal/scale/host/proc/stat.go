package proc

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Stat is the CPU time of the whole machine since it was started, in seconds, from the first line of /proc/stat. Each
// mode is summed over the CPUs; the grain is one tick of USER_HZ (10 ms) per CPU. User contains Guest, Nice contains
// GuestNice.
type Stat struct {
	User, Nice, System, Idle, IOWait, IRQ, Softirq, Steal, Guest, GuestNice float64

	CPUs int // online
}

// Stat reads /proc/stat.
func (f FS) Stat() (Stat, error) {
	b, err := os.ReadFile(f.path("proc/stat"))
	if err != nil {
		return Stat{}, fmt.Errorf("reading the CPU time of the machine: %w", err)
	}
	s, err := parseStat(b, f.ticksPerSecond())
	if err != nil {
		return Stat{}, fmt.Errorf("reading the CPU time of the machine: %s: %w", f.path("proc/stat"), err)
	}
	return s, nil
}

func parseStat(b []byte, hz float64) (Stat, error) {
	var s Stat
	total := false
	for line := range bytes.Lines(b) {
		if !bytes.HasPrefix(line, []byte("cpu")) {
			break // the CPU lines come first
		}
		fields := strings.Fields(string(line))
		if fields[0] != "cpu" {
			s.CPUs++
			continue
		}
		modes := []*float64{&s.User, &s.Nice, &s.System, &s.Idle, &s.IOWait, &s.IRQ, &s.Softirq, &s.Steal, &s.Guest,
			&s.GuestNice}
		if len(fields)-1 < len(modes) {
			return Stat{}, fmt.Errorf("%d modes in the line cpu, not %d", len(fields)-1, len(modes))
		}
		for i, m := range modes {
			ticks, err := strconv.ParseUint(fields[1+i], 10, 64)
			if err != nil {
				return Stat{}, err
			}
			*m = float64(ticks) / hz
		}
		total = true
	}
	if !total || s.CPUs == 0 {
		return Stat{}, errors.New("no lines for the CPUs")
	}
	return s, nil
}
