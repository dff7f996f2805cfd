package engine

import (
	"errors"
	"testing"
	"testing/synctest"

	"tare/internal/experiment/record"
	"tare/internal/scale/host/bpf"
)

// TestWarnOfPrograms: a trial warns of programs that were loaded while it ran and stay, and not of those that existed
// before, are Tare's, or go within a second.
func TestWarnOfPrograms(t *testing.T) {
	old := bpf.Program{ID: 1, Type: "kprobe", LoadTime: 10}
	reused := bpf.Program{ID: 1, Type: "kprobe", LoadTime: 20}
	added := bpf.Program{ID: 7, Name: "from_client", Type: "sched_cls", LoadTime: 30}
	own := bpf.Program{ID: 8, Type: "tracing", LoadTime: 40, Own: true}
	for name, c := range map[string]struct {
		after [][]bpf.Program // of each reading after the trial; the last repeats
		err   error
		want  string
	}{
		"none":           {after: [][]bpf.Program{{old}}},
		"one stays":      {after: [][]bpf.Program{{old, added}}, want: "7 from_client (sched_cls)"},
		"a reused id":    {after: [][]bpf.Program{{reused, added}}, want: "1 (kprobe), 7 from_client (sched_cls)"},
		"Tare's own":     {after: [][]bpf.Program{{old, own}}},
		"one goes later": {after: [][]bpf.Program{{old, added}, {old, added}, {old}}},
		"unknown":        {err: errors.New("not permitted")},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reading := -1 // the one before the trial
				x := &trial{record: &record.Trial{}, machine: Machine{Programs: func() ([]bpf.Program, error) {
					defer func() { reading++ }()
					if reading < 0 || c.err != nil {
						return []bpf.Program{old}, c.err
					}
					return c.after[min(reading, len(c.after)-1)], nil
				}}}
				x.warnOfPrograms(x.programs())
				got := ""
				for _, w := range x.record.Warnings {
					got += w.Code + ": " + w.Message
				}
				if want := c.want; want != "" && got != record.ProgramsLeft+": "+want || want == "" && got != "" {
					t.Errorf("got %q, want %q", got, want)
				}
			})
		})
	}
	shared := &trial{machine: Machine{Shared: true, Programs: func() ([]bpf.Program, error) { return nil, nil }}}
	if shared.programs() != nil {
		t.Error("on a machine that other nodes share, the programs of others would count")
	}
}
