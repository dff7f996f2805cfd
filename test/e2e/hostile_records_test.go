package e2e

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/results/report"
	"tare/internal/scale/ledger"
	"tare/test/analysistest"
	"tare/test/long"
)

// mostRecordCPU is the most CPU time that one command may take for a record, whatever the record holds.
const mostRecordCPU = 30 * time.Second

// forged is a run directory that an attacker made.
type forged struct {
	t      *testing.T
	dir    string
	run    record.Run
	trials []record.Trial
}

// put writes a file of the directory.
func (f *forged) put(name string, text []byte) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, name), text, 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// encode returns a value as JSON.
func (f *forged) encode(v any) []byte {
	f.t.Helper()
	text, err := json.Marshal(v)
	if err != nil {
		f.t.Fatal(err)
	}
	return text
}

// write writes the run and its trials as they are now.
func (f *forged) write() {
	f.t.Helper()
	f.put(record.RunFile, f.encode(f.run))
	var lines bytes.Buffer
	for _, t := range f.trials {
		lines.Write(append(f.encode(t), '\n'))
	}
	f.put(record.TrialsFile, lines.Bytes())
}

// instead writes the run and its trials, with one text in a file replaced by another.
func (f *forged) instead(file, old, new string) {
	f.t.Helper()
	f.write()
	text, err := os.ReadFile(filepath.Join(f.dir, file))
	if err != nil {
		f.t.Fatal(err)
	}
	if !bytes.Contains(text, []byte(old)) {
		f.t.Fatalf("%s has no %q: %.300s", file, old, text)
	}
	f.put(file, bytes.ReplaceAll(text, []byte(old), []byte(new)))
}

// make writes the run and its trials, with something else in the place of a file.
func (f *forged) make(file string, make func(path string) error) {
	f.t.Helper()
	f.write()
	path := filepath.Join(f.dir, file)
	if err := errors.Join(os.Remove(path), make(path)); err != nil {
		f.t.Fatal(err)
	}
}

// everyTrial changes every trial, and writes the run.
func (f *forged) everyTrial(change func(t *record.Trial)) {
	f.t.Helper()
	for i := range f.trials {
		change(&f.trials[i])
	}
	f.write()
}

// factors gives all trials n factors, whose levels have the given length, and further metrics, and writes the run.
func (f *forged) factors(n, length, metrics int) {
	f.t.Helper()
	level := map[string]string{}
	for i := range n {
		level[fmt.Sprintf("f%05d", i)] = "1" + strings.Repeat("\x01", length)
	}
	for i := range metrics {
		name := fmt.Sprintf("m%d_seconds", i)
		f.run.Metrics = append(f.run.Metrics, metric.Definition{Name: name, Unit: "seconds", Pool: metric.Mean,
			Rank: metric.RankCPU, Needs: []metric.Need{}, Cost: true})
	}
	for i := range f.run.Plan {
		f.run.Plan[i].Factors = level
	}
	f.everyTrial(func(t *record.Trial) {
		t.Factors = level
		for i := range metrics {
			t.Metrics[fmt.Sprintf("m%d_seconds", i)] = float64(1 + t.Index)
		}
	})
}

// histograms puts a text in the place of every histogram, and writes the run.
func (f *forged) histograms(text string) {
	f.t.Helper()
	f.everyTrial(func(t *record.Trial) {
		for name, r := range t.Loads {
			r.Histograms = map[string]string{load.Latency: text, load.OwnLag: text}
			t.Loads[name] = r
		}
	})
}

// histogram encodes a histogram as HdrHistogram does (V2, compressed), even if its parts make no sense.
func histogram(digits int32, highest int64, counts []byte) string {
	var plain, packed bytes.Buffer
	for _, v := range []any{int32(0x1c849303), int32(len(counts)), int32(0), digits, int64(1), highest, 1.0} {
		_ = binary.Write(&plain, binary.BigEndian, v)
	}
	plain.Write(counts)
	z := zlib.NewWriter(&packed)
	_, _ = z.Write(plain.Bytes())
	z.Close()
	head := binary.BigEndian.AppendUint32(nil, 0x1c849304)
	head = binary.BigEndian.AppendUint32(head, uint32(packed.Len()))
	return base64.StdEncoding.EncodeToString(append(head, packed.Bytes()...))
}

// forging is text that tries to control a terminal, to forge lines of output, and to put scripts into a page.
const forging = "\x1b[2J\x1b]0;owned\a\r\nwarning: " +
	"forged\n::error::forged\n\u009b31m\u202e</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'`$(id)|x|"

// recordAttacks are what a record can hold that was not made by tare.
var recordAttacks = []struct {
	name string
	do   func(f *forged)
}{
	{"a run of brackets", func(f *forged) {
		f.write()
		f.put(record.RunFile, bytes.Repeat([]byte("["), 8<<20))
	}},
	{"a trial of brackets", func(f *forged) {
		f.write()
		f.put(record.TrialsFile, bytes.Repeat([]byte(`{"loads":`), 1<<20))
	}},
	{"a plan of millions of trials", func(f *forged) {
		f.write()
		f.put(record.RunFile, append(append([]byte(`{"schema":"`+record.RunSchema+`","plan":[{}`),
			bytes.Repeat([]byte(",{}"), 5<<20)...), ']', '}'))
	}},
	{"millions of metrics of a trial", func(f *forged) {
		var b bytes.Buffer
		fmt.Fprintf(&b, `{"schema":%q,"metrics":{"x":0`, record.TrialSchema)
		for i := range 1_000_000 {
			fmt.Fprintf(&b, `,"m%d":1`, i)
		}
		b.WriteString("}}\n")
		f.write()
		f.put(record.TrialsFile, b.Bytes())
	}},
	{"as many definitions of metrics as there can be", func(f *forged) {
		for i := range record.MaxMetrics - len(f.run.Metrics) {
			name := fmt.Sprintf("m%d_seconds", i)
			f.run.Metrics = append(f.run.Metrics, metric.Definition{Name: name, Unit: "seconds", Pool: metric.Mean,
				Rank: metric.RankCPU, Needs: []metric.Need{}, Headline: true, Cost: true, Clause: "holds {} " +
					strings.Repeat("x", 100),
				What: "time", Per: "thing"})
			for j := range f.trials {
				f.trials[j].Metrics[name] = float64(i * j)
			}
		}
		f.write()
	}},
	{"definitions that go in circles", func(f *forged) {
		for i := range f.run.Metrics {
			d := &f.run.Metrics[i]
			next := f.run.Metrics[(i+1)%len(f.run.Metrics)].Name
			d.PartOf, d.Of, d.Instead, d.Sum, d.Ladder, d.Rung = next, next, next, "{} {} {}", "a ladder", d.Name
		}
		f.write()
	}},
	{"definitions that say nothing and too much", func(f *forged) {
		for i := range f.run.Metrics {
			f.run.Metrics[i] = metric.Definition{Name: strings.Repeat(forging, i), Unit: "furlongs", Rank: math.MinInt64 + i,
				Pool: "none", Quantile: math.MaxFloat64, Histogram: "none"}
		}
		f.write()
	}},
	{"one definition many times", func(f *forged) {
		f.run.Metrics = slices.Repeat(f.run.Metrics, record.MaxMetrics/len(f.run.Metrics))
		f.write()
	}},
	{"more places than there can be", func(f *forged) {
		f.trials = slices.Repeat(f.trials[:1], 2*record.MaxPlaces)
		for i := range f.trials {
			f.trials[i].Factors = map[string]string{"rate": fmt.Sprint(i)}
		}
		f.write()
	}},
	{"as many places as there can be", func(f *forged) {
		f.run.Plan, f.run.Blocks = nil, 2
		some := f.trials
		f.trials = nil
		for i := range 2 * record.MaxPlaces {
			t := some[i%3]
			t.Index, t.Block, t.Arm = i, i/record.MaxPlaces, []string{record.Direct, record.AA, "candidate"}[i%3]
			t.Factors = map[string]string{"rate": fmt.Sprint(i % record.MaxPlaces / 3)}
			f.run.Plan, f.trials = append(f.run.Plan, t.PlannedTrial), append(f.trials, t)
		}
		f.write()
	}},
	{"thousands of factors", func(f *forged) { f.factors(4000, 0, 500) }},
	{"as many factors as there can be", func(f *forged) { f.factors(record.MaxFactors, 50, record.MaxMetrics/2) }},
	{"an arm of megabytes", func(f *forged) {
		f.instead(record.TrialsFile, `"arm":"candidate"`, `"arm":"`+strings.Repeat("x", 2<<20)+`"`)
	}},
	{"factors of megabytes", func(f *forged) { f.factors(2, 1<<20, 500) }},
	{"levels that are no numbers and no text", func(f *forged) {
		levels := []string{"", "1e999", "-0", "NaN", "Infinity", strings.Repeat("9", 1000), forging, "0x1p-1074"}
		for i := range f.run.Plan {
			f.run.Plan[i].Factors = map[string]string{"rate": levels[i%len(levels)], forging: levels[i%3]}
			f.trials[i].Factors = f.run.Plan[i].Factors
		}
		f.run.Phrases = []record.Phrase{{Factor: "rate", Words: map[string]string{"": strings.Repeat("{}", 10_000)}}}
		f.write()
	}},
	{"one trial again and again", func(f *forged) {
		f.trials = slices.Repeat(f.trials[:1], record.MaxAttempts+1)
		for i := range f.trials {
			f.trials[i].Loads, f.trials[i].Ledger = nil, nil
		}
		f.write()
	}},
	{"hundreds of blocks", func(f *forged) {
		f.trials = slices.Repeat(f.trials[:3], 200)
		f.run.Plan, f.run.Blocks = nil, 200
		for i := range f.trials {
			t := &f.trials[i]
			t.Index, t.Block, t.Arm = i, i/3, []string{record.Direct, record.AA, "candidate"}[i%3]
			f.run.Plan = append(f.run.Plan, t.PlannedTrial)
		}
		f.write()
	}},
	{"indices at the ends of numbers", func(f *forged) {
		f.run.Blocks = math.MaxInt64
		for i := range f.trials {
			p := &f.trials[i].PlannedTrial
			p.Index, p.Block, p.Position = []int{math.MinInt64, -1, math.MaxInt64}[i%3], []int{math.MaxInt64,
				math.MinInt64}[i%2], math.MinInt64
			f.trials[i].Attempt = math.MinInt64 + i
		}
		f.write()
	}},
	{"numbers whose sums are infinite", func(f *forged) {
		f.everyTrial(func(t *record.Trial) {
			for name := range t.Metrics {
				t.Metrics[name] = []float64{math.MaxFloat64, -math.MaxFloat64, math.SmallestNonzeroFloat64}[t.Index%3]
			}
			for name := range t.Counts {
				t.Counts[name] = record.Count{In: math.MaxInt64, Of: []int{0, -1, math.MaxInt64}[t.Index%3]}
			}
		})
	}},
	{"numbers that are none", func(f *forged) {
		f.instead(record.TrialsFile, `"cpu_seconds":0.`, `"cpu_seconds":1e999,"x":-0.`)
	}},
	{"a huge geometry of a histogram", func(f *forged) { f.histograms(histogram(5, math.MaxInt64, []byte{2})) }},
	{"histograms that unpack to much", func(f *forged) {
		f.histograms(histogram(3, 60_000_000_000, make([]byte, 64<<20)))
	}},
	{"histograms with counts beyond all numbers", func(f *forged) {
		count := append(bytes.Repeat([]byte{0xff}, 8), 0x7f) // the largest one, encoded by ZigZag LEB128
		f.histograms(histogram(3, 60_000_000_000, bytes.Repeat(count, 1000)))
	}},
	{"histograms of negative geometry", func(f *forged) {
		f.histograms(histogram(-5, math.MinInt64, []byte{2, 3, 1}))
	}},
	{"histograms that are garbage", func(f *forged) { f.histograms(strings.Repeat("AAAA", 100_000)) }},
	{"a line without an end", func(f *forged) {
		f.make(record.TrialsFile, func(path string) error {
			return os.WriteFile(path, bytes.Repeat([]byte(" "), 64<<20), 0o644)
		})
	}},
	{"trials of a tebibyte", func(f *forged) {
		f.make(record.TrialsFile, func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 1<<40))
		})
	}},
	{"a run of a tebibyte", func(f *forged) {
		f.make(record.RunFile, func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o644), os.Truncate(path, 1<<40))
		})
	}},
	{"a pipe for trials", func(f *forged) {
		f.make(record.TrialsFile, func(path string) error { return unix.Mkfifo(path, 0o644) })
	}},
	{"a device for a run", func(f *forged) {
		f.make(record.RunFile, func(path string) error { return os.Symlink("/dev/zero", path) })
	}},
	{"a directory for trials", func(f *forged) {
		f.make(record.TrialsFile, func(path string) error { return os.Mkdir(path, 0o755) })
	}},
	{"links in circles", func(f *forged) {
		f.make(record.RunFile, func(path string) error { return os.Symlink(record.RunFile, path) })
	}},
	{"text that steers", func(f *forged) {
		f.run.Experiment, f.run.Question, f.run.ID, f.run.Version, f.run.Build = forging, forging, forging, forging, forging
		f.run.Environment.Kernel, f.run.Environment.CPUModel, f.run.Environment.Hostname = forging, forging, forging
		f.run.Baseline, f.run.Stopped, f.run.NotRepeated = forging, forging, forging
		f.run.Command = []string{"tare", "run", forging}
		f.run.Absent = map[string]string{forging: forging}
		f.run.Traits, f.run.Lacks = map[string]string{"candidate" + forging: forging}, map[string]string{"candidate" +
			forging: forging}
		for i := range f.run.Plan {
			if f.run.Plan[i].Arm == "candidate" {
				f.run.Plan[i].Arm += forging
			}
		}
		f.everyTrial(func(t *record.Trial) {
			if t.Arm == "candidate" {
				t.Arm += forging
				t.Components = map[string]map[string]float64{forging: {"map_bytes": 1}}
			}
			t.Ledger.Warnings = append(t.Ledger.Warnings, ledger.Warning{Code: forging, Message: forging})
			if t.Index%4 == 0 {
				t.Validity = record.Validity{Failed: forging}
				if t.Index%8 == 0 {
					t.Validity = record.Validity{Reasons: []record.Reason{{Gate: forging, Message: forging,
						Culprits: []string{forging}}}}
				}
			}
		})
	}},
	{"what is no UTF-8", func(f *forged) {
		f.instead(record.TrialsFile, `"arm":"candidate"`, "\"arm\":\"\xff\xfe\xc0\x80\xed\xa0\x80\"")
	}},
	{"schemas of other times", func(f *forged) { f.instead(record.TrialsFile, record.TrialSchema, "tare.trial/v999") }},
	{"nothing where something is needed", func(f *forged) {
		f.write()
		f.put(record.RunFile, []byte(`{"schema":"`+record.RunSchema+
			`","plan":null,"metrics":[{}],"phrases":[{}],"precision":{},"nodes":{}}`))
		f.put(record.TrialsFile, bytes.Repeat([]byte(`{"schema":"`+record.TrialSchema+
			`","loads":{"":{}},"events":{},"ledger":{},"nodes":[{},{"record":{}}],"validity":{"valid":true,"reasons":[{}]},"components":{"":null}}`+"\n"), 30))
	}},
	{"types that are others", func(f *forged) {
		f.instead(record.TrialsFile, `"validity":{"valid":true}`, `"validity":[{"valid":"yes"}]`)
	}},
	{"times at both ends", func(f *forged) {
		f.run.Started = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
		f.run.Until = math.MaxFloat64
		f.everyTrial(func(t *record.Trial) {
			t.Started, t.Ended = time.Date(9999, 12, 31, 0, 0, 0, 0, time.UTC), time.Time{}
			t.Clocks = map[string]time.Duration{"measured": math.MinInt64, "drain": math.MaxInt64, forging: 1}
		})
	}},
	{"a ledger that adds up to nothing", func(f *forged) {
		f.everyTrial(func(t *record.Trial) {
			t.Ledger.CPU = ledger.CPU{Capacity: -math.MaxFloat64, Idle: math.MaxFloat64, Attributed: math.MaxFloat64}
			t.Ledger.Cgroups = slices.Repeat([]ledger.Cgroup{{Path: forging}}, 2000)
			t.Ledger.Programs = slices.Repeat([]ledger.Program{{Name: forging}}, 100)
		})
	}},
	{"assertions without number", func(f *forged) {
		for i := range 2000 {
			f.run.Assert = append(f.run.Assert, fmt.Sprintf("cpu_seconds <= %ds", i))
		}
		f.run.Assert = append(f.run.Assert, forging, strings.Repeat("(", 100_000), "cpu_seconds{arm="+forging+"} <= +1e308%")
		f.write()
	}},
	{"a spec of megabytes", func(f *forged) {
		f.run.Spec = f.encode(map[string]string{"name": strings.Repeat(forging, 20_000)})
		f.write()
	}},
	{"trials that grow while they are read", func(f *forged) {
		f.write()
		path := filepath.Join(f.dir, record.TrialsFile)
		text, err := os.ReadFile(path)
		if err != nil {
			f.t.Fatal(err)
		}
		over, done := make(chan struct{}), make(chan struct{})
		f.t.Cleanup(func() { close(over); <-done })
		go func() {
			defer close(done)
			for range 100 {
				select {
				case <-over:
					return
				case <-time.After(time.Millisecond):
				}
				if out, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0); err == nil {
					_, _ = out.Write(text) // a failure only means that the command reads less
					out.Close()
				}
			}
		}()
	}},
}

// largestRecords are attacks that keep commands busy for seconds, within the bounds of what they may take.
var largestRecords = []string{
	"as many factors as there can be", "as many definitions of metrics as there can be", "hundreds of blocks",
}

// TestHostileRecords: a record is made to take memory and time, to steer the terminal, to put scripts into pages, or to
// bring down what reads it. Whatever it says, each command reports on it or says what is wrong with it.
func TestHostileRecords(t *testing.T) {
	t.Parallel()
	good := &forged{t: t, dir: t.TempDir()}
	good.run, good.trials = analysistest.Quickstart(analysistest.Truth{Blocks: 6, BPF: 3e-6, Latency: 9e-6, Noise: 1e-6,
		MapBytes: 1e6})
	good.write()
	others := slices.DeleteFunc(report.Runs.Names(), func(name string) bool {
		return slices.Contains([]string{"text", "html", "json", "otlp"}, name) // other commands below write these
	})
	for i, a := range recordAttacks {
		t.Run(a.name, func(t *testing.T) {
			t.Parallel()
			if slices.Contains(largestRecords, a.name) {
				long.Test(t, "3 min of CPU time: all commands, and the largest records")
			}
			f := &forged{t: t, dir: t.TempDir()}
			f.run, f.trials = analysistest.Quickstart(analysistest.Truth{Blocks: 6, BPF: 3e-6, Latency: 9e-6, Noise: 1e-6,
				MapBytes: 1e6})
			a.do(f)
			names := namesIn(t, f.dir)
			page := filepath.Join(t.TempDir(), "page.html")
			commands := [][]string{
				{"report", f.dir, "--format", strings.Join(others, ",")},
				{"report", f.dir, "--format", "json,otlp"},
				{"compare", good.dir, f.dir, "--anyway", "--all"},
				{"power", f.dir, "--see", "5%"}, {"plan", f.dir, "--for", "rate=600"},
			}
			if !long.Enabled() { // one command for each record, in turn
				commands = commands[i%len(commands):][:1]
			}
			for _, args := range append(commands, []string{"report", f.dir, "--all", "--assert", "cpu_seconds <= +10%"},
				[]string{"report", f.dir, "--format", "html", "-o", page}) {
				bearsRecord(t, args)
			}
			text, err := os.ReadFile(page)
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
			if at := bytes.Index(text, []byte("<script>alert")); at >= 0 {
				t.Errorf("the page has a script of the record's: %.200s", text[max(0, at-100):])
			}
			if bytes.Contains(text, []byte("<img src=x")) {
				t.Error("the page has an element of the record's")
			}
			if after := namesIn(t, f.dir); !slices.Equal(names, after) {
				t.Errorf("the record's directory had %v, and has %v", names, after)
			}
		})
	}
}

// namesIn returns the names of a directory's files.
func namesIn(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// peak waits for the end of a process, and returns the most memory that it had, in bytes, as its status said up to 5 ms
// before the end. (The peak that wait4 reports is never less than what this test had when it started the process.)
func peak(p *process) (bytes int64) {
	for {
		status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.pid)) // it may have gone
		bytes = max(bytes, peakIn(status))
		select {
		case <-p.done:
			return bytes
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// bearsRecord runs a command that reads a hostile record.
func bearsRecord(t *testing.T, args []string) {
	t.Helper()
	p := command{args: args, timeout: 3 * time.Minute}.start(t)
	most := peak(p)
	what := "tare " + args[0]
	if len(args) > 3 {
		what += " " + args[3]
	}
	code, stderr := p.cmd.ProcessState.ExitCode(), p.stderr.String()
	// 1 is an internal error. 3 and the codes above 5 say nothing about a record.
	if !slices.Contains([]int{0, 2, 4, 5}, code) || strings.Contains(stderr, "goroutine ") {
		t.Errorf("%s: exit code %d: %.2000s", what, code, stderr)
	}
	if code == 2 && (!strings.Contains(stderr, "tare: ") || len(stderr) > 8<<10) {
		t.Errorf("%s: it says in %d bytes: %.500s", what, len(stderr), stderr)
	}
	noEscapes(t, what+": standard error", stderr)
	if !strings.Contains(what, "json") {
		noEscapes(t, what+": standard output", p.stdout.String())
	}
	texts := []string{stderr}
	if slices.Contains(args, "--format") { // other output is wrapped, so that any word of a record may begin a line
		texts = append(texts, p.stdout.String())
	}
	for _, text := range texts {
		if strings.Contains(text, "\n::error::forged") || strings.Contains(text, "\nwarning: forged") {
			t.Errorf("%s: a line is the record's: %.2000s", what, text)
		}
	}
	if most > mostMemory {
		t.Errorf("%s took %d MiB", what, most>>20)
	}
	if took := p.cmd.ProcessState.UserTime() + p.cmd.ProcessState.SystemTime(); took > mostRecordCPU {
		t.Errorf("%s took %v of CPU time", what, took)
	}
	t.Logf("%s: exit code %d, %d MiB, %v", what, code, most>>20, p.cmd.ProcessState.UserTime())
}
