package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
)

func testRun(trials int) Run {
	r := Run{Schema: RunSchema, ID: "t", Experiment: "quickstart", Blocks: 1}
	for i := range trials {
		r.Plan = append(r.Plan, PlannedTrial{Index: i, Position: i, Arm: Direct})
	}
	return r
}

func testTrial(i int) Trial {
	return Trial{Schema: TrialSchema, PlannedTrial: PlannedTrial{Index: i, Position: i, Arm: Direct},
		Metrics: map[string]float64{"latency_p50_seconds": 1e-4}}
}

func write(t *testing.T, dir string, planned, trials int) {
	t.Helper()
	w, err := Create(dir, testRun(planned))
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for i := range trials {
		if err := w.Append(testTrial(i)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRoundTrip(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	write(t, dir, 3, 3)
	c, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Trials) != 3 || c.Partial || len(c.Warnings) != 0 || c.Trials[2].Index != 2 ||
		c.Run.Experiment != "quickstart" {
		t.Errorf("read back %+v", c)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 2 {
		t.Errorf("the run directory holds %v", entries)
	}
}

// TestTorn cuts the trials file at every byte, as a crash could: whole lines are read, and the rest is reported.
func TestTorn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	write(t, dir, 3, 3)
	path := filepath.Join(dir, TrialsFile)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for cut := range len(data) {
		if err := os.WriteFile(path, data[:cut], 0o644); err != nil {
			t.Fatal(err)
		}
		c, err := Read(dir)
		if err != nil {
			t.Fatalf("cut at byte %d: %v", cut, err)
		}
		whole := strings.Count(string(data[:cut]), "\n")
		if cut+1 < len(data) && data[cut] == '\n' {
			whole++ // the line is whole except for its line feed
		}
		if cut == len(data)-1 {
			whole = 3
		}
		if len(c.Trials) != whole || c.Partial != (whole < 3) {
			t.Fatalf("cut at byte %d: %d trials, want %d; partial %v", cut, len(c.Trials), whole, c.Partial)
		}
		torn := cut > 0 && data[cut-1] != '\n' && data[cut] != '\n'
		if said := len(c.Warnings) == 1; torn != said {
			t.Fatalf("cut at byte %d: warnings %q", cut, c.Warnings)
		}
	}
}

func TestReadFaults(t *testing.T) {
	good := `{"schema":"tare.run/v1","plan":[]}`
	line := `{"schema":"tare.trial/v1","index":0}` + "\n"
	for _, c := range []struct{ name, run, trials, want string }{
		{"no run", "", "", "DIR: there is no run.json: this is not a run directory"},
		{"not JSON", "{\n  \"schema\": oops\n}", "",
			"DIR/run.json:2: this is not the record of a run: invalid character 'o' looking for beginning of value"},
		{"wrong type", "{\n\"seed\": \"x\"}", "",
			"DIR/run.json:2: this is not the record of a run: json: cannot unmarshal string into Go struct field Run.seed of " +
				"type uint64"},
		{"newer run", `{"schema":"tare.run/v9"}`, "",
			`DIR/run.json: the schema is "tare.run/v9"; this tare reads "tare.run/v1"`},
		{"corrupt line", good, line + "\x00\x00\n" + line,
			`DIR/trials.jsonl:2: this line is not the record of a trial: invalid character '\x00' looking for beginning of value`},
		{"newer trial", good, line + `{"schema":"tare.trial/v2"}`,
			`DIR/trials.jsonl:2: the schema is "tare.trial/v2"; this tare reads "tare.trial/v1"`},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			for name, content := range map[string]string{RunFile: c.run, TrialsFile: c.trials} {
				if content == "" {
					continue
				}
				if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			_, err := Read(dir)
			if err == nil {
				t.Fatal("no error")
			}
			if got := strings.ReplaceAll(err.Error(), dir, "DIR"); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if code := fault.CodeOf(err); code != fault.Usage {
				t.Errorf("exit code %d", code)
			}
		})
	}
}

// TestStrangers: a trial of another run makes the record unreadable, with an error that names the line and the
// difference, instead of a report on two runs as if they were one.
func TestStrangers(t *testing.T) {
	other := func(change func(*Trial)) Trial {
		trial := testTrial(1)
		trial.Run = "t"
		change(&trial)
		return trial
	}
	for _, c := range []struct {
		name string
		line Trial
		want string
	}{
		{"its own", other(func(*Trial) {}), ""},
		{"of a version that did not name the run", other(func(t *Trial) { t.Run = "" }), ""},
		{"of another run", other(func(t *Trial) { t.Run = "u" }), `it is of the run "u", and run.json of "t"`},
		{"twice", other(func(t *Trial) { t.Index, t.Position = 0, 0 }), "attempt 0 of trial 0 is there twice"},
		{"an attempt that is missing", other(func(t *Trial) { t.Attempt = 1 }), "attempt 0 is not there"},
		{"another arm", other(func(t *Trial) { t.Arm = AA }), `no trial 1 of arm "aa" in block 0`},
		{"another block", other(func(t *Trial) { t.Block = 1 }), "in block 1 at this position"},
		{"another position", other(func(t *Trial) { t.Position = 2 }), "it is of another run"},
		{"another level", other(func(t *Trial) { t.Factors = map[string]string{"rate": "1"} }), "and level"},
		{"beyond the plan", other(func(t *Trial) { t.Index = 7 }), "no trial 7"},
		{"before the plan", other(func(t *Trial) { t.Index = -1 }), "no trial -1"},
	} {
		dir := filepath.Join(t.TempDir(), "run")
		write(t, dir, 3, 1)
		path := filepath.Join(dir, TrialsFile)
		own, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		line, err := json.Marshal(c.line)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, slices.Concat(own, line, []byte("\n")), 0o644); err != nil {
			t.Fatal(err)
		}
		for name, read := range map[string]func(string) (*Contents, error){"Read": Read, "ReadLean": ReadLean} {
			contents, err := read(dir)
			if err == nil {
				said := slices.ContainsFunc(contents.Warnings, func(w string) bool {
					return strings.HasPrefix(w, "1 of 2 trials do not name their run: ")
				})
				if said != (c.line.Run == "") {
					t.Errorf("%s: %s says %q", c.name, name, contents.Warnings)
				}
			}
			if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) ||
				!strings.Contains(err.Error(), path+":2") || fault.CodeOf(err) != fault.Usage) {
				t.Errorf("%s: %s: %v, want %q", c.name, name, err, c.want)
			}
		}
	}
}

// TestNull: a value that is null is not read as 0.
func TestNull(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{`"metrics":{"latency_p50_seconds":%s}`, `its metric "latency_p50_seconds" is null`},
		{`"components":{"proxy":{"subject_cpus":%s}}`, `its metric "subject_cpus" is null`},
		{`"nodes":[{"trial":{"metrics":{"subject_cpus":%s}}}]`, `its metric "subject_cpus" is null`},
		{`"counts":{"bpf_client_share":{"in":%s,"of":100}}`, `its count "bpf_client_share" has no "in" or "of"`},
	} {
		for value, want := range map[string]string{"null": c.want, "1": ""} {
			dir := t.TempDir()
			line := `{"schema":"tare.trial/v1","index":%d,` + c.text + "}\n"
			for name, text := range map[string]string{RunFile: `{"schema":"tare.run/v1"}`,
				TrialsFile: fmt.Sprintf(line, 0, value) + fmt.Sprintf(line, 1, "1")} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := ReadLean(dir); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", fmt.Sprintf(c.text, value), err, want)
			}
		}
	}
}

func TestCreateRefusesFullDirectory(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, 1, 1)
	_, err := Create(dir, testRun(1))
	if fault.CodeOf(err) != fault.Usage {
		t.Errorf("got %v", err)
	}
}

// TestCreateAtOnce lets several runs find one directory empty: exactly one gets it, and the files are those of that
// run.
func TestCreateAtOnce(t *testing.T) {
	for range 50 {
		dir := filepath.Join(t.TempDir(), "run")
		var wg sync.WaitGroup
		var mu sync.Mutex
		var winners []string
		for i := range 8 {
			wg.Go(func() {
				run := testRun(1)
				run.ID = fmt.Sprint(i)
				w, err := Create(dir, run)
				if err != nil {
					if fault.CodeOf(err) != fault.Usage {
						t.Error(err)
					}
					return
				}
				mu.Lock()
				winners = append(winners, run.ID)
				mu.Unlock()
				w.Close()
			})
		}
		wg.Wait()
		c, err := Read(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(winners) != 1 || c.Run.ID != winners[0] {
			t.Fatalf("the directory went to %v, and holds run %s", winners, c.Run.ID)
		}
	}
}

// TestReadNoFile replaces each file with something that is not a regular file, or has no end.
func TestReadNoFile(t *testing.T) {
	for _, name := range []string{RunFile, TrialsFile} {
		for _, c := range []struct {
			put  func(path string) error
			want string
		}{
			{func(p string) error { return unix.Mkfifo(p, 0o644) }, "it is not a file"},
			{func(p string) error { return os.Symlink("/dev/zero", p) }, "it is not a file"},
			{func(p string) error { return errors.Join(os.WriteFile(p, nil, 0o644), os.Truncate(p, 1<<40)) }, "more than"},
		} {
			dir := filepath.Join(t.TempDir(), "run")
			write(t, dir, 1, 1)
			path := filepath.Join(dir, name)
			if err := errors.Join(os.Remove(path), c.put(path)); err != nil {
				t.Fatal(err)
			}
			if _, err := Read(dir); fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), path) ||
				!strings.Contains(err.Error(), c.want) {
				t.Errorf("%s, %q: %v", name, c.want, err)
			}
		}
	}
}

// TestDiskFull fills a small disk: the error names the path, and the trials written before are kept.
func TestDiskFull(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root to mount a small disk")
	}
	disk := t.TempDir()
	if err := unix.Mount("tare-test", disk, "tmpfs", 0, "size=64k"); err != nil {
		if errors.Is(err, unix.EPERM) {
			t.Skipf("needs the right to mount: %v", err)
		}
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(disk, 0); err != nil {
			t.Errorf("unmounting %s: %v", disk, err)
		}
	})
	dir := filepath.Join(disk, "run")
	w, err := Create(dir, testRun(100))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	trial := testTrial(0)
	// Several trials fit on a page, so the failure comes in the middle of a line.
	trial.Validity.Failed = strings.Repeat("x", 1500)
	n := 0
	for ; n < 100; n++ {
		trial.Index, trial.Position = n, n
		if err = w.Append(trial); err != nil {
			break
		}
	}
	if !errors.Is(err, syscall.ENOSPC) || fault.CodeOf(err) != fault.Machine || n == 0 {
		t.Fatalf("after %d trials: %v (exit code %d)", n, err, fault.CodeOf(err))
	}
	if want := filepath.Join(dir, TrialsFile); !strings.Contains(err.Error(), want) {
		t.Errorf("the error does not name %s: %v", want, err)
	}
	c, err := Read(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Trials) != n || len(c.Warnings) != 0 || !c.Partial {
		t.Errorf("kept %d of %d trials; partial %v; %q", len(c.Trials), n, c.Partial, c.Warnings)
	}
	if err := w.WriteSummary(map[string]string{"a": strings.Repeat("y", 64<<10)}); fault.CodeOf(err) != fault.Machine {
		t.Errorf("summary on a full disk: %v", err)
	}
	if _, err := Create(filepath.Join(disk, fmt.Sprint("run", n)), testRun(1000)); fault.CodeOf(err) != fault.Machine {
		t.Errorf("second run on a full disk: %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"schema":"tare.run/v1"}`), []byte(`{"schema":"tare.trial/v1","index":0}`+"\n"))
	f.Add([]byte(`{`), []byte("\n\n{\n"))
	f.Fuzz(func(t *testing.T, run, trials []byte) {
		dir := t.TempDir()
		if os.WriteFile(filepath.Join(dir, RunFile), run, 0o644) != nil ||
			os.WriteFile(filepath.Join(dir, TrialsFile), trials, 0o644) != nil {
			t.Skip("needs a disk")
		}
		if _, err := Read(dir); err != nil && fault.CodeOf(err) != fault.Usage {
			t.Errorf("not a fault with its code: %v", err)
		}
	})
}

// A directory that others may write to is rejected: a symbolic link in the place of a file of the run would be written
// through with the run's privileges.
func TestCreateRefusesDirectoriesOfOthers(t *testing.T) {
	for name, prepare := range map[string]func(dir string) error{
		"another user": func(dir string) error { return os.Chown(dir, 65534, 65534) },
		"others may":   func(dir string) error { return os.Chmod(dir, 0o777) },
		"(its mode":    func(dir string) error { return os.Chmod(dir, 0o775) },
	} {
		dir := filepath.Join(t.TempDir(), "run")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := prepare(dir); err != nil {
			t.Fatal(err)
		}
		w, err := Create(dir, Run{Schema: RunSchema})
		if err == nil {
			w.Close()
		}
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), name) || fault.HintOf(err) == "" {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("%s: it left %v, %v", name, left, err)
		}
	}
}

// Files are written in the directory that was created, without following links, whatever happens to the directories
// above it.
func TestWriterFollowsNoLinks(t *testing.T) {
	base := t.TempDir()
	dir, victim := filepath.Join(base, "run"), filepath.Join(base, "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o644); err != nil {
		t.Fatal(err)
	}
	w, err := Create(dir, Run{Schema: RunSchema})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, filepath.Join(dir, ReportFile)); err != nil {
		t.Fatal(err)
	}
	if err := w.WriteFile(ReportFile, []byte("report")); err != nil {
		t.Fatal(err)
	}
	moved, decoy := filepath.Join(base, "moved"), filepath.Join(base, "decoy")
	if err := errors.Join(os.Rename(dir, moved), os.Mkdir(decoy, 0o755), os.Symlink(decoy, dir)); err != nil {
		t.Fatal(err)
	}
	err = errors.Join(w.WriteSummary(struct{}{}), w.UpdateRun(Run{Schema: RunSchema}), w.WriteFile("costs.yaml", nil),
		w.Append(Trial{Schema: TrialSchema}), w.Close())
	if err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(decoy); err != nil || len(left) > 0 {
		t.Errorf("it wrote %v elsewhere: %v", left, err)
	}
	for _, name := range []string{RunFile, TrialsFile, SummaryFile, ReportFile, "costs.yaml"} {
		if info, err := os.Lstat(filepath.Join(moved, name)); err != nil || !info.Mode().IsRegular() {
			t.Errorf("%s: %v, %v", name, info, err)
		}
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "precious" {
		t.Errorf("the victim has %q, %v", text, err)
	}
	if left, err := os.ReadDir(moved); err != nil || len(left) != 5 {
		t.Errorf("left in the directory: %v, %v", left, err)
	}
}

// Different levels have different keys, whatever their text: no text in a level can be mistaken for the end of a name.
func TestLevelKey(t *testing.T) {
	seen := map[string]map[string]string{}
	for _, level := range []map[string]string{
		nil, {"": ""}, {"a": "b"}, {"a": "1 b"}, {"a": "", "b": ""}, {"a": "1 b0 "},
		{"a1 b": ""}, {"a": "b1 c1 d"}, {"a": "b", "c": "d"},
	} {
		key := LevelKey(level)
		if other, is := seen[key]; is {
			t.Errorf("%v and %v are both %q", level, other, key)
		}
		seen[key] = level
	}
	if LevelKey(nil) != LevelKey(map[string]string{}) {
		t.Error("a level without factors has two keys")
	}
}
