// Command beside compares tare try with the kernel's own files and with systemd-cgtop, both read while it runs:
//
//	go run ./test/bench/beside [-tare bin/tare] [-blocks 6] -- [FLAGS OF TARE TRY --] COMMAND [ARGS]
//
// In each trial in which the command runs, it reads the resident set of the command's processes from
// /proc/PID/smaps_rollup every 0.1 s, and takes the CPU time and memory of their control group from systemd-cgtop,
// which prints them just as often. It needs root, and the Debian package systemd; systemd itself need not be running.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/proc"
)

func main() {
	tare := flag.String("tare", "bin/tare", "the binary to run")
	blocks := flag.Int("blocks", 6, "blocks of the run")
	flag.Parse()
	if err := compare(*tare, *blocks, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "beside:", err)
		os.Exit(1)
	}
}

// sample is one reading of one control group.
type sample struct {
	at    time.Time
	value float64
}

// watch holds the samples of each trial's control group, by the group's path.
type watch struct {
	groups                *regexp.Regexp // matches the paths of the run's control groups
	mu                    sync.Mutex
	resident, cpu, memory map[string][]sample
}

var kinds = []string{"resident set, B", "memory of the group, B", "CPUs"}

func compare(tare string, blocks int, argv []string) error {
	dir, err := os.MkdirTemp("", "tare-beside-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	out := filepath.Join(dir, "run")
	args := []string{"try", "--load", "connections", "--blocks", strconv.Itoa(blocks), "--out", out}
	if !slices.Contains(argv, "--") {
		args = append(args, "--")
	}
	cmd := exec.Command(tare, append(args, argv...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	w := watch{resident: map[string][]sample{}, cpu: map[string][]sample{}, memory: map[string][]sample{}}
	top := exec.CommandContext(ctx, "stdbuf", "-oL", "systemd-cgtop", "--batch", "--raw", "--cpu=time", "--depth=2",
		"--order=path", "--delay=100ms", "--iterations=1000000")
	lines, err := top.StdoutPipe()
	if err != nil {
		return err
	}
	if err := errors.Join(top.Start(), cmd.Start()); err != nil {
		return err
	}
	w.groups = regexp.MustCompile(fmt.Sprintf(`/tare-trial-[0-9a-z-]+-p%d-t[0-9]+/subject$`, cmd.Process.Pid))
	var watching sync.WaitGroup
	watching.Go(func() { w.follow(lines) })
	watching.Go(func() { w.read(ctx) })
	err = cmd.Wait()
	stop()
	watching.Wait()
	_ = top.Wait() // it was killed
	if err != nil {
		return fmt.Errorf("tare try: %w", err)
	}
	run, err := record.Read(out)
	if err != nil {
		return err
	}
	return w.table(run.Trials)
}

// follow reads what systemd-cgtop prints: path, tasks, microseconds of CPU time, bytes of memory.
func (w *watch) follow(lines io.Reader) {
	for s := bufio.NewScanner(lines); s.Scan(); {
		f := strings.Fields(s.Text())
		if len(f) < 4 {
			continue
		}
		name := w.groups.FindString(f[0])
		if name == "" {
			continue
		}
		for i, into := range map[int]map[string][]sample{2: w.cpu, 3: w.memory} {
			if v, err := strconv.ParseFloat(f[i], 64); err == nil {
				w.mu.Lock()
				into[name] = append(into[name], sample{time.Now(), v})
				w.mu.Unlock()
			}
		}
	}
}

// read adds up the resident sets of the processes in each group, until the context ends.
func (w *watch) read(ctx context.Context) {
	for ; ctx.Err() == nil; time.Sleep(100 * time.Millisecond) {
		dirs, _ := filepath.Glob("/sys/fs/cgroup/memory/tare-trial-*/subject") // v1, or else v2
		if more, _ := filepath.Glob("/sys/fs/cgroup/tare-trial-*/subject"); len(dirs) == 0 {
			dirs = more
		}
		for _, dir := range dirs {
			name, sum := w.groups.FindString(dir), 0.0
			if name == "" {
				continue
			}
			for _, pid := range cgroup.Members([]string{dir}) {
				if r, err := (proc.FS{}).Rollup(pid); err == nil {
					sum += float64(r.RSS)
				}
			}
			if sum > 0 {
				w.mu.Lock()
				w.resident[name] = append(w.resident[name], sample{time.Now(), sum})
				w.mu.Unlock()
			}
		}
	}
}

// table prints, for each kind, the median over trials of Tare's values and of those read beside it, and the largest
// difference between the two in one trial.
func (w *watch) table(trials []record.Trial) error {
	pairs := map[string][][2]float64{}
	for _, t := range trials {
		rss, has := t.Metrics["rss_bytes"]
		if t.Ledger == nil || !has {
			continue
		}
		from, to := t.Ledger.Window.Start, t.Ledger.Window.End
		add := func(kind string, tare, outside float64) {
			if !math.IsNaN(outside) {
				pairs[kind] = append(pairs[kind], [2]float64{tare, outside})
			}
		}
		for _, g := range t.Ledger.Cgroups {
			name := w.groups.FindString(g.Path)
			if name == "" {
				continue
			}
			add(kinds[0], rss, within(w.resident[name], from, to))
			if g.Memory != nil && g.Memory.Current != nil {
				add(kinds[1], float64(*g.Memory.Current), within(w.memory[name], from, to))
			}
			a, b := last(w.cpu[name], from), last(w.cpu[name], to)
			if g.CPUSeconds != nil && !a.at.IsZero() && b.at.After(a.at) {
				add(kinds[2], *g.CPUSeconds/t.Ledger.Window.Seconds, (b.value-a.value)/1e6/b.at.Sub(a.at).Seconds())
			}
		}
	}
	fmt.Printf("\n%-24s %14s %14s %8s  %s\n", "medians over trials", "Tare", "beside", "trials",
		"largest difference in one")
	for _, kind := range kinds {
		var tare, outside []float64
		largest := 0.0
		for _, p := range pairs[kind] {
			tare, outside = append(tare, p[0]), append(outside, p[1])
			largest = max(largest, math.Abs(p[0]-p[1]))
		}
		fmt.Printf("%-24s %14.8g %14.8g %8d  %.3g\n", kind, median(tare), median(outside), len(tare), largest)
	}
	return nil
}

// within returns the median of the samples between two times, or NaN if there are none.
func within(all []sample, from, to time.Time) float64 {
	var in []float64
	for _, s := range all {
		if s.at.After(from) && s.at.Before(to) {
			in = append(in, s.value)
		}
	}
	return median(in)
}

// last returns the last sample before a time, or a zero sample.
func last(all []sample, before time.Time) (found sample) {
	for _, s := range all {
		if s.at.Before(before) {
			found = s
		}
	}
	return found
}

func median(all []float64) float64 {
	if len(all) == 0 {
		return math.NaN()
	}
	all = slices.Sorted(slices.Values(all))
	return (all[(len(all)-1)/2] + all[len(all)/2]) / 2
}
