// Package fio is a load that writes to a disk with fio, from the Debian package. By default eight jobs write blocks of
// 512 KiB at random offsets of one file, bypassing the page cache. With a sandbox as the subject, the load runs inside
// the sandbox. The size of the file is limited to what the machine can hold, and results report it.
package fio

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/lib/quantity"
	"tare/internal/workloads/load/command"
)

// name is the load's name in specs. In results the generator is "command".
const name = "fio"

func init() { kind.Register(kind.Load, guest{}) }

// guest implements kind.Guest.
type guest struct{}

// The settings.
const (
	settingSize   = "size"
	settingJobs   = "jobs"
	settingBlock  = "block"
	settingDirect = "direct"
	settingKind   = "rw"
	settingDrain  = "drain"
)

var settings = []param.Setting{
	{Name: settingSize, Type: param.TypeBytes, Default: "1073741824", Min: 1 << 20, Max: 1 << 40,
		Phrase: map[string]string{"10485760": "in a file of 10 MiB", "33554432": "in a file of 32 MiB",
			"268435456": "in a file of 256 MiB", "1073741824": "in a file of 1 GiB",
			"10737418240": "in a file of 10 GiB", "": "in a file of {} bytes"},
		Doc: "size of the file; at most an eighth of the disk's free space and a quarter of memory"},
	{Name: settingJobs, Type: param.TypeCount, Default: "8", Min: 1, Max: 64, Doc: "jobs that run concurrently (numjobs)"},
	{Name: settingBlock, Type: param.TypeBytes, Default: "524288", Min: 512, Max: 16 << 20, Doc: "bytes of each write"},
	{Name: settingDirect, Type: param.TypeSwitch, Default: "true",
		Doc: "whether writes go past the page cache (O_DIRECT)"},
	{Name: settingKind, Type: param.TypeWord, Default: "randwrite",
		Words: []string{"randwrite", "write", "randread", "read", "randrw"}, Doc: "what the jobs do (rw)"},
	{Name: settingDrain, Type: param.TypeDuration, Default: "30s", Max: 3600,
		Doc: "time for its output after it should have ended"},
}

func (guest) About() kind.About {
	return kind.About{
		Name: name, Summary: "writes to a disk, by Debian's fio", Settings: settings,
		TakesLonger: starting,
		RunsInside:  kind.Always, // the cost of a write depends on where it is made
		Saturates:   kind.Always, // it writes as fast as the disk allows
	}
}

// starting is the time that fio takes to start and to lay out its file.
func starting(o param.Values) time.Duration {
	const perByte = 2 // ns
	return 300*time.Millisecond + time.Duration(perByte*o.Float(settingSize))
}

// Installed returns an error if fio is not installed.
func (guest) Installed(context.Context, param.Values) error { return command.Installed(name) }

// Optional returns false: without the load, a trial would measure something else.
func (guest) Optional(param.Values) bool { return false }

// joined is the load's part of a trial.
type joined struct {
	*command.Joined
	trial       kind.Trial
	asked, size int64 // size of the file in bytes, as set and as limited
}

func (guest) Join(t kind.Trial, as string, part *kind.Part) (any, error) {
	o := part.Options
	j := &joined{trial: t, asked: int64(o.Float(settingSize))}
	var err error
	if j.size, err = bounded(j.asked, t.Dir()); err != nil {
		return nil, err
	}
	program := *part
	program.Options = param.Values{"command": commandLine(o, j.size, t.Setup().Warmup+t.Setup().Duration), "tool": "fio",
		"drain": o[settingDrain]}
	j.Joined, err = command.JoinEarly(t, as, &program)
	return j, err
}

// commandLine returns fio's command line, in the notation of package command, for a run of duration d on a file of the
// given size in bytes. fio uses the kernel's clock: by default it would calibrate the CPU's clock, which takes long on
// an emulated CPU.
func commandLine(o param.Values, size int64, d time.Duration) string {
	direct := "0"
	if o.On(settingDirect) {
		direct = "1"
	}
	return fmt.Sprintf("fio --name=load --filename={dir}/file --size=%d --rw=%s --bs=%d --numjobs=%d --direct=%s "+
		"--ioengine=psync --iodepth=1 --thread --time_based --runtime=%dms --clocksource=clock_gettime --group_reporting "+
		"--output-format=json", size, o[settingKind], o.Int(settingBlock), o.Int(settingJobs), direct, d.Milliseconds())
}

// A file may take at most 1/partOfDisk of the free space on its disk, and 1/partOfMemory of the machine's memory.
const (
	partOfDisk   = 8
	partOfMemory = 4
)

// bounded limits a size to what the disk of a directory and the memory of the machine can hold: if a sandbox has a
// separate kernel, its page cache may hold the whole file, without any limit. If the disk is full, the error has the
// code fault.Machine.
func bounded(size int64, dir string) (int64, error) {
	var disk unix.Statfs_t
	if err := unix.Statfs(dir, &disk); err != nil {
		return 0, fmt.Errorf("looking how much room %s has: %w", dir, err)
	}
	var memory unix.Sysinfo_t
	if err := unix.Sysinfo(&memory); err != nil {
		return 0, fmt.Errorf("looking how much memory the machine has: %w", err)
	}
	const least = 1 << 20
	size = min(size, int64(disk.Bavail)*disk.Bsize/partOfDisk, int64(memory.Totalram)*int64(memory.Unit)/partOfMemory)
	if size < least {
		return 0, fault.New(fault.Machine, dir, "make room, or set TMPDIR to a directory on another disk",
			"the disk has no room for a file of 1 MiB in an eighth of what is free")
	}
	return size &^ (1<<20 - 1), nil
}

// Result returns the program's result, with the size of the file.
func (j *joined) Result(ctx context.Context) (load.Result, error) {
	r, err := j.Joined.Result(ctx)
	if err != nil {
		return r, err
	}
	if j.size < j.asked&^(1<<20-1) {
		j.trial.Warn("scaled", "fio used a file of %s instead of %s: the disk and the memory of this machine allow no "+
			"more",
			quantity.Value(float64(j.size), quantity.Bytes), quantity.Value(float64(j.asked), quantity.Bytes))
	}
	r.Counts = map[string]float64{sizeCount: float64(j.size)}
	return r, nil
}

const sizeCount = "fio_file_bytes"

// Judge judges the load as one of kind command.
func (guest) Judge(m *measured.Measured, name string) []measured.Trip { return command.Judge(m, name) }

// Metrics returns the metrics that only fio has.
func (guest) Metrics() []measured.Metric {
	return []measured.Metric{{
		Definition: metric.Definition{
			Name: "fio_bytes_per_second", Unit: quantity.UnitOf("fio_bytes_per_second"), Rank: metric.RankThroughput,
			Pool: metric.Sum, Better: metric.Higher, Headline: true, Outcome: true, Clause: "lets fio move {} a second",
			Needs: []measured.Need{measured.Whole, measured.Worked, measured.Complete, measured.Unthrottled, measured.Alone,
				measured.Read, measured.Untouched},
			How: "Bytes that loads of kind `fio` wrote and read per second, by fio's clock over its whole run, warm-up " +
				"included.",
		},
		Value: rate,
	}, {
		Definition: metric.Definition{
			Name: sizeCount, Unit: quantity.Bytes, Rank: metric.RankOther, Pool: metric.Mean, Needs: measured.NeedNothing,
			How: "Size of the file of loads of kind `fio`, as limited by the machine's disk and memory.",
		},
		Value: func(m *measured.Measured) (float64, bool) {
			for _, r := range m.Loads {
				if v, has := r.Counts[sizeCount]; has {
					return v, true
				}
			}
			return 0, false
		},
	}}
}

func rate(m *measured.Measured) (total float64, ok bool) {
	for _, r := range m.Loads {
		if _, is := r.Counts[sizeCount]; !is {
			continue
		}
		var own command.Own
		if json.Unmarshal(r.Own, &own) != nil || own.Said == nil || own.Said.Bytes == nil || own.Said.Seconds == nil ||
			*own.Said.Seconds <= 0 {
			return 0, false
		}
		total, ok = total + float64(*own.Said.Bytes) / *own.Said.Seconds, true
	}
	return total, ok
}
