package cli

import (
	"errors"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
)

// TestMain makes a write to a pipe without a reader fail, as Main does, instead of ending the process.
func TestMain(m *testing.M) {
	signal.Notify(make(chan os.Signal, 1), unix.SIGPIPE)
	os.Exit(m.Run())
}

func TestStdoutFull(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Skipf("needs /dev/full: %v", err)
	}
	defer full.Close()
	o := newStdout(full)
	for range 2 {
		if _, err := io.WriteString(o, "x"); !errors.Is(err, unix.ENOSPC) || fault.CodeOf(err) != fault.Machine ||
			fault.HintOf(err) == "" {
			t.Errorf("writing to a full disk: %v", err)
		}
	}
	if o.err == nil || unheard(o) {
		t.Errorf("kept %v, unheard %v", o.err, unheard(o))
	}
}

func TestStdoutWithoutReader(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	o := newStdout(w)
	if _, err := io.WriteString(o, "heard"); err != nil || unheard(o) {
		t.Errorf("with a reader: %v, unheard %v", err, unheard(o))
	}
	r.Close()
	for range 2 {
		if n, err := io.WriteString(o, "unheard"); n != 7 || err != nil || o.err != nil || !unheard(o) {
			t.Errorf("without: %d, %v, %v, unheard %v", n, err, o.err, unheard(o))
		}
	}
	if unheard(io.Discard) || fileOf(o) != w || fileOf(w) != w || fileOf(io.Discard) != nil {
		t.Error("the file behind a writer")
	}
}

// TestFiles: commands refuse to read a path that is not a regular file, and a file that is too long. The error names
// the path and the reason.
func TestFiles(t *testing.T) {
	dir := t.TempDir()
	fifo, long, good, device := filepath.Join(dir, "fifo.yaml"), filepath.Join(dir, "long.yaml"), filepath.Join(dir,
		"good.yaml"), filepath.Join(dir, "zero.yaml")
	if err := errors.Join(unix.Mkfifo(fifo, 0o600), os.WriteFile(good, []byte("a: 1"), 0o600),
		os.WriteFile(long, nil, 0o600), os.Truncate(long, 1<<40), os.Symlink("/dev/zero", device)); err != nil {
		t.Fatal(err)
	}
	if data, err := readSpecFile(good); err != nil || string(data) != "a: 1" {
		t.Errorf("a file: %q, %v", data, err)
	}
	for path, want := range map[string]string{
		fifo: "it is not a file", device: "it is not a file", dir: "it is not a file", long: "it has more than 1 MiB",
		dir + "/nosuch.yaml": "no such file",
	} {
		_, err := loadSpec(path)
		if fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" || !strings.HasPrefix(err.Error(), path) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("want %q, code 2 and a hint: %v (%s)", want, err, fault.HintOf(err))
		}
	}
	_, err := execute("subject", "kernelmesh", "--services", fifo, "--cgroup", dir, "--human")
	const says = "the services file cannot be read: it is not a file"
	if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), says) {
		t.Errorf("services from a pipe: %v", err)
	}
}

// execute runs a command line.
func execute(args ...string) (string, error) {
	root := Command()
	var out strings.Builder
	root.SetOut(&out)
	root.SetErr(io.Discard)
	root.SetArgs(args)
	err := root.Execute()
	return out.String(), err
}

func TestWrongUseInWords(t *testing.T) {
	run := writeRun(t, 24)
	for _, c := range []struct {
		args       string
		want, hint string
	}{
		{"list quikstart", "tare list quikstart: no such experiment", `did you mean "quickstart"?`},
		{"run quikstart", "tare run quikstart: no such experiment", `did you mean "quickstart"?`},
		{"weigh --hz abc", `tare weigh --hz: must be a whole number, not "abc"`, "samples per second"},
		{"weigh --hz 99999999999999999999", `tare weigh --hz: must be another value, not "99999999999999999999"`,
			"samples per second"},
		{"weigh --json=maybe", `tare weigh --json: must be true or false, not "maybe"`, "see 'tare weigh --help'"},
		{"weigh --for 10", `tare weigh --for: must be a duration with its unit, such as 300ms or 2s, not "10"`,
			"length of the window"},
		{"run quickstart --seed -1", `tare run --seed: must be a whole number, 0 or more, not "-1"`, "see 'tare run --help'"},
		{"load http --rate fast", `tare load http --rate: must be a number, not "fast"`, "requests per second"},
		{"subject kernelmesh --steps -1", `tare subject kernelmesh --steps: must be at least 0, not -1`, "extra steps"},
		{"subject kernelmesh --cgroup /x", "--services: the source of the services is missing",
			"--services or --xds"},
		{"subject kernelmesh --cgroup /x --services s --xds h:1",
			"--services: the source of the services is missing", "--services or --xds"},
		{"subject kernelmesh --services s", "--cgroup: missing value", "--help"},
		{"subject kernelmesh --services s --cgroup /x --source here", `--source: "here" is not an address`, "auto, none"},
		{"run quickstart --blocks 99999", `--blocks: "blocks" must be at most 10000, not 99999`, "1 to 10000"},
		{"report " + run + "/run.json", run + "/run.json: this is a file, not a run directory",
			"name the directory that it is in: " + run},
	} {
		out, err := execute(strings.Fields(c.args)...)
		if err == nil || err.Error() != c.want || fault.CodeOf(err) != fault.Usage ||
			!strings.Contains(fault.HintOf(err), c.hint) || out != "" {
			t.Errorf("tare %s:\n got %v (%s)\nwant %s (%s)", c.args, err, fault.HintOf(err), c.want, c.hint)
		}
	}
}
