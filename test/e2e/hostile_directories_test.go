package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/record"
	"tare/test/analysistest"
	"tare/test/long"
)

// stranger is the ID of another user.
const stranger = 12345

// sharedSpec is an experiment that takes less than a second.
const sharedSpec = `name: shared
question: Does it write where it should?
blocks: 1
warmup: 10ms
duration: 100ms
repeat: 0%
applications: {server: {kind: http}}
loads: {client: {kind: http, to: server, rate: 50}}
gates: {rate: 0.01, errors: 1, lag: 60s, generator_cpu: 1, drift: 1000}
`

// shared is a directory of a stranger, who puts into it what they like, and tries to make root write elsewhere.
type shared struct {
	t *testing.T

	dir       string // the stranger's
	precious  string // a directory of root's, in which nothing may change
	before    map[string]string
	temporary string // of root's, for temporary files
}

func newShared(t *testing.T) *shared {
	t.Helper()
	base := t.TempDir()
	s := &shared{t: t, dir: filepath.Join(base, "shared"), precious: filepath.Join(base, "precious"),
		temporary: filepath.Join(base, "tmp")}
	s.try(os.Mkdir(s.dir, 0o755), os.Mkdir(s.precious, 0o755), os.Mkdir(s.temporary, 0o755),
		os.Chown(s.dir, stranger, stranger))
	for _, name := range []string{"file", record.RunFile, record.ReportFile, "empty/file"} {
		path := filepath.Join(s.precious, name)
		s.try(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte("precious"), 0o600))
	}
	s.try(os.Mkdir(filepath.Join(s.precious, "nothing"), 0o755))
	s.before = s.whatIs()
	t.Cleanup(func() {
		if after := s.whatIs(); !maps.Equal(s.before, after) {
			t.Errorf("what is precious was %v, and is %v", s.before, after)
		}
		if left := namesIn(t, s.temporary); len(left) > 0 {
			t.Errorf("temporary files are left: %v", left)
		}
	})
	return s
}

func (s *shared) try(errs ...error) {
	s.t.Helper()
	if err := errors.Join(errs...); err != nil {
		s.t.Fatal(err)
	}
}

// at returns a path in the stranger's directory.
func (s *shared) at(name string) string { return filepath.Join(s.dir, name) }

// own makes a directory that belongs to the stranger, and returns its path.
func (s *shared) own(name string) string {
	s.t.Helper()
	s.try(os.Mkdir(s.at(name), 0o777), os.Chown(s.at(name), stranger, stranger))
	return s.at(name)
}

// whatIs returns everything in the precious directory, with owners, modes and contents.
func (s *shared) whatIs() map[string]string {
	s.t.Helper()
	found := map[string]string{}
	s.try(filepath.WalkDir(s.precious, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		stat := info.Sys().(*syscall.Stat_t)
		text := []byte(nil)
		if d.Type().IsRegular() {
			text, err = os.ReadFile(path)
		}
		found[path] = fmt.Sprint(stat.Ino, stat.Uid, info.Mode(), string(text))
		return err
	}))
	return found
}

// command returns a command that starts tare in the stranger's directory.
func (s *shared) command(args ...string) command {
	return command{args: args, dir: s.dir, env: []string{"TMPDIR=" + s.temporary}, timeout: 2 * time.Minute}
}

// tare runs tare in the stranger's directory to its end.
func (s *shared) tare(args ...string) output {
	s.t.Helper()
	return s.command(args...).start(s.t).wait(s.t)
}

// refuses fails the test unless tare refuses something as wrong use, with words and a hint.
func (s *shared) refuses(words string, args ...string) {
	s.t.Helper()
	if o := s.tare(args...); o.code != 2 || !strings.Contains(o.stderr, words) || !strings.Contains(o.stderr, "\n      ") {
		s.t.Errorf("want it to say %q: %s", words, o)
	}
}

// moves runs an experiment. Once its trials have begun, the stranger moves its run directory away and puts something in
// its place. The run must go on in the directory that was moved.
func (s *shared) moves(spec string, replace func(out string)) {
	s.t.Helper()
	out := s.at("out")
	p := s.command("run", specFile(s.t, strings.Replace(spec, "100ms", "700ms", 1)), "--out", out).start(s.t)
	whileItRuns(s.t, p, func() bool { return strings.Contains(p.stderr.String(), "trial 1 of") })
	s.try(os.Rename(out, s.at("moved")))
	replace(out)
	<-p.done // and not wait, which would look for the record where the directory was
	if code := p.cmd.ProcessState.ExitCode(); code != 0 && code != 4 {
		s.t.Errorf("exit code %d: %s", code, p.stderr.String())
	}
	if c, err := record.Read(s.at("moved")); err != nil || len(firstAttempts(c)) != len(c.Run.Plan) {
		s.t.Errorf("the record that was moved: %v", err)
	}
}

// decoy has the stranger replace the run directory by a directory of their own. Nothing may be written there.
func (s *shared) decoy(spec string) {
	s.t.Helper()
	s.moves(spec, func(string) { s.own("out") })
	if got := namesIn(s.t, s.at("out")); len(got) > 0 {
		s.t.Errorf("it wrote %v into a stranger's directory", got)
	}
}

// recorded writes a run that can be read.
func (s *shared) recorded(dir string) {
	s.t.Helper()
	run, trials := analysistest.Quickstart(analysistest.Truth{Blocks: 6, BPF: 3e-6, Latency: 9e-6, Noise: 1e-6})
	f := &forged{t: s.t, dir: dir, run: run, trials: trials}
	f.write()
}

// swapping replaces everything in dir whose name begins with prefix by a link to target, as fast as it can, until the
// test is over.
func (s *shared) swapping(dir, prefix, target string) {
	over, done := make(chan struct{}), make(chan struct{})
	s.t.Cleanup(func() { close(over); <-done })
	go func() {
		defer close(done)
		for {
			select {
			case <-over:
				return
			case <-time.After(200 * time.Microsecond):
			}
			entries, err := os.ReadDir(dir)
			if err != nil {
				continue
			}
			for _, e := range entries {
				path := filepath.Join(dir, e.Name())
				if !strings.HasPrefix(e.Name(), prefix) || e.Type() == fs.ModeSymlink {
					continue
				}
				if os.Rename(path, filepath.Join(dir, fmt.Sprint("moved-", rand.Uint64()))) == nil {
					_ = os.Symlink(target, path)
				}
			}
		}
	}()
}

// leftover makes a temporary directory that looks like one that a killed process has left.
func (s *shared) leftover() string {
	s.t.Helper()
	dir := filepath.Join(s.temporary, "tare-scratch-test-1")
	s.try(os.Mkdir(dir, 0o711))
	return dir
}

// clean runs tare clean, which must exit with 0.
func (s *shared) clean() output {
	s.t.Helper()
	o := s.tare("clean")
	if o.code != 0 {
		s.t.Error(o)
	}
	return o
}

// directoryAttacks are what a directory can hold for root to stumble over.
var directoryAttacks = []struct {
	name string
	do   func(s *shared)
}{
	{"a run directory of a stranger", func(s *shared) {
		s.refuses("another user", "run", specFile(s.t, sharedSpec), "--out", s.own("out"))
	}},
	{"a run directory that all may write to", func(s *shared) {
		s.try(os.Mkdir(s.at("out"), 0o755), os.Chmod(s.at("out"), 0o777))
		s.refuses("others may write", "run", specFile(s.t, sharedSpec), "--out", s.at("out"))
	}},
	{"a run directory with links in it", func(s *shared) {
		s.try(os.Mkdir(s.at("out"), 0o755), os.Symlink(filepath.Join(s.precious, "file"), s.at("out/"+record.ReportFile)))
		s.refuses("not empty", "run", specFile(s.t, sharedSpec), "--out", s.at("out"))
	}},
	{"a link to a stranger's directory", func(s *shared) {
		s.try(os.Symlink(s.own("theirs"), s.at("out")))
		s.refuses("another user", "run", specFile(s.t, sharedSpec), "--out", s.at("out"))
	}},
	{"a link to what is precious", func(s *shared) {
		s.try(os.Symlink(s.precious, s.at("out")))
		s.refuses("not empty", "run", specFile(s.t, sharedSpec), "--out", s.at("out"))
	}},
	{"a link to what would be there", func(s *shared) {
		s.try(os.Symlink(filepath.Join(s.precious, "new"), s.at("out")))
		if o := s.tare("run", specFile(s.t, sharedSpec), "--out", s.at("out")); o.code != 3 && o.code != 2 {
			s.t.Error(o)
		}
	}},
	{"the default's name taken in advance", func(s *shared) {
		for i := range 30 {
			at := time.Now().Add(time.Duration(i-2) * time.Second)
			for _, when := range []time.Time{at, at.UTC()} {
				name := "tare-run-shared-" + when.Format("20060102-150405")
				if err := os.Symlink(filepath.Join(s.precious, "nothing"), s.at(name)); err != nil && !errors.Is(err, fs.ErrExist) {
					s.t.Fatal(err)
				}
			}
		}
		// A run may use an empty directory of root's, even through a link. A file in it makes tare refuse it.
		s.try(os.WriteFile(filepath.Join(s.precious, "nothing", "something"), nil, 0o600))
		s.before = s.whatIs()
		s.refuses("not empty", "run", specFile(s.t, sharedSpec))
	}},
	{"a run directory that is moved away", func(s *shared) {
		s.moves(sharedSpec, func(out string) { s.try(os.Symlink(s.precious, out)) })
	}},
	{"a run directory in whose place another one comes", func(s *shared) { s.decoy(sharedSpec) }},
	{"a mesh whose run directory is moved away", func(s *shared) {
		s.decoy(sharedSpec + "arms: {mesh: {subject: kernelmesh}}\n") // which reads its services from a file
	}},
	{"a link for a report", func(s *shared) {
		s.try(os.Mkdir(s.at("run"), 0o755), os.Symlink(filepath.Join(s.precious, "file"), s.at("report")))
		s.recorded(s.at("run"))
		if o := s.tare("report", s.at("run"), "-o", s.at("report")); o.code != 0 {
			s.t.Error(o)
		}
		if info, err := os.Lstat(s.at("report")); err != nil || !info.Mode().IsRegular() {
			s.t.Errorf("the report: %v, %v", info, err)
		}
	}},
	{"a link for a page", func(s *shared) {
		s.try(os.Mkdir(s.at("run"), 0o755), os.Symlink(filepath.Join(s.precious, "file"), s.at("page")))
		s.recorded(s.at("run"))
		if o := s.tare("compare", s.at("run"), s.at("run"), "--anyway", "--html", s.at("page")); o.code != 0 && o.code != 2 {
			s.t.Error(o)
		}
	}},
	{"a pipe for a report", func(s *shared) {
		s.try(os.Mkdir(s.at("run"), 0o755), unix.Mkfifo(s.at("report"), 0o666))
		s.recorded(s.at("run"))
		p := s.command("report", s.at("run"), "-o", s.at("report")).start(s.t)
		time.Sleep(time.Second) // nobody reads the pipe, so tare waits, as other programs do, until a signal stops it
		p.signal(s.t, syscall.SIGINT)
		if o := p.wait(s.t); o.code == 0 {
			s.t.Error(o)
		}
	}},
	{"temporary files where others rename", func(s *shared) {
		c := s.command("run", specFile(s.t, sharedSpec), "--out", filepath.Join(s.t.TempDir(), "out"))
		c.env = []string{"TMPDIR=" + s.own("tmp")}
		if o := c.start(s.t).wait(s.t); o.code != 3 || !strings.Contains(o.stderr, "another user") {
			s.t.Error(o)
		}
		s.try(os.Mkdir(s.at("mine"), 0o700)) // root's, but the stranger can rename it
		c.env = []string{"TMPDIR=" + s.at("mine")}
		if o := c.start(s.t).wait(s.t); o.code != 3 || !strings.Contains(o.stderr, "another user") {
			s.t.Error(o)
		}
		all := filepath.Join(s.t.TempDir(), "all")
		s.try(os.Mkdir(all, 0o755), os.Chmod(all, 0o777))
		c.env = []string{"TMPDIR=" + all}
		if o := c.start(s.t).wait(s.t); o.code != 3 || !strings.Contains(o.stderr, "others may write") {
			s.t.Error(o)
		}
	}},
	{"files of a load that are swapped", func(s *shared) {
		dir := s.own("disk")
		s.swapping(dir, "tare-scratch-", filepath.Join(s.precious, "empty"))
		p := s.command("load", "write", "--directory", dir, "--rate", "500", "--duration", "1s").start(s.t)
		o := p.wait(s.t)
		if strings.Contains(o.stderr, "goroutine ") {
			s.t.Error(o)
		}
	}},
	{"leftovers with links in them", func(s *shared) {
		dir := s.leftover()
		s.try(os.Symlink(s.precious, filepath.Join(dir, "directory")),
			os.Symlink(filepath.Join(s.precious, "file"), filepath.Join(dir, "file")),
			os.Link(filepath.Join(s.precious, "file"), filepath.Join(dir, "hard")))
		s.clean()
	}},
	{"a link for a leftover", func(s *shared) {
		link := filepath.Join(s.temporary, "tare-scratch-test-2")
		s.try(os.Symlink(s.precious, link))
		s.clean()
		s.try(os.Remove(link))
	}},
	{"leftovers of a stranger", func(s *shared) {
		dir := s.leftover()
		s.try(os.WriteFile(filepath.Join(dir, "file"), nil, 0o600), os.Chown(dir, stranger, stranger))
		s.clean()
		if got := namesIn(s.t, dir); len(got) != 1 {
			s.t.Errorf("it removed what is a stranger's: %v", got)
		}
		s.try(os.RemoveAll(dir))
	}},
	{"a deep leftover", func(s *shared) {
		fd, err := unix.Open(s.leftover(), unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
		s.try(err)
		for range 1500 {
			err := unix.Mkdirat(fd, strings.Repeat("d", 100), 0o755)
			below, err2 := unix.Openat(fd, strings.Repeat("d", 100), unix.O_DIRECTORY|unix.O_RDONLY|unix.O_CLOEXEC, 0)
			s.try(err, err2, unix.Close(fd))
			fd = below
		}
		s.try(unix.Close(fd))
		s.clean()
	}},
	{"a wide leftover", func(s *shared) {
		dir := s.leftover()
		for i := range 50_000 {
			s.try(unix.Mknod(filepath.Join(dir, fmt.Sprint(i)), unix.S_IFREG|0o600, 0))
		}
		p := s.command("clean").start(s.t)
		most := peak(p)
		if o := p.wait(s.t); o.code != 0 {
			s.t.Error(o)
		}
		if most > mostMemory {
			s.t.Errorf("it took %d MiB", most>>20)
		}
	}},
	{"a leftover with something mounted in it", func(s *shared) {
		dir := s.leftover()
		s.try(os.Mkdir(filepath.Join(dir, "mnt"), 0o755))
		at := filepath.Join(dir, "mnt")
		s.try(unix.Mount(s.precious, at, "", unix.MS_BIND, ""))
		defer func() { s.try(unix.Unmount(at, unix.MNT_DETACH), os.RemoveAll(dir)) }()
		if o := s.tare("clean"); o.code == 0 || !strings.Contains(o.stderr, "mounted") {
			s.t.Error(o)
		}
	}},
	{"a pipe for a spec", func(s *shared) {
		s.try(unix.Mkfifo(s.at("spec.yaml"), 0o666))
		s.refuses("cannot be read", "run", s.at("spec.yaml"))
	}},
	{"a device for a spec", func(s *shared) {
		s.try(os.Symlink("/dev/zero", s.at("spec.yaml")))
		s.refuses("cannot be read", "run", s.at("spec.yaml"))
	}},
	{"a spec of a tebibyte", func(s *shared) {
		s.try(os.WriteFile(s.at("spec.yaml"), nil, 0o644), os.Truncate(s.at("spec.yaml"), 1<<40))
		s.refuses("more than", "run", s.at("spec.yaml"))
	}},
	{"a file with a built-in's name", func(s *shared) {
		s.try(os.WriteFile(s.at("quickstart"), []byte("name: [}"), 0o644),
			os.WriteFile(s.at("quickstart.yaml"), []byte("name: [}"), 0o644))
		if o := s.tare("list", "quickstart"); o.code != 0 || !strings.Contains(o.stdout, "name: quickstart") {
			s.t.Error(o)
		}
	}},
	{"programs in the directory", func(s *shared) {
		for _, name := range []string{"bpftool", "envoy", "haproxy", "nginx", "runc", "runsc", "qemu-system-x86_64", "ig",
			"bpftrace", "ip", "modprobe", "sh"} {
			s.try(os.WriteFile(s.at(name), []byte("#!/bin/sh\necho taken > "+filepath.Join(s.precious, "taken")+"\n"), 0o755))
		}
		for _, args := range [][]string{{"doctor"}, {"list"}, {"clean"}, {"weigh", "--for", "100ms"}} {
			c := s.command(args...)
			c.env = append(c.env, "PATH="+os.Getenv("PATH")+":.:")
			if o := c.start(s.t).wait(s.t); o.code != 0 && o.code != 3 {
				s.t.Error(o)
			}
		}
	}},
	{"a history of rubbish", func(s *shared) {
		history := s.own("history")
		s.try(os.Symlink(".", filepath.Join(history, "circle")), unix.Mkfifo(filepath.Join(history, "pipe"), 0o666),
			os.Symlink("/dev/zero", filepath.Join(history, "device")), os.Symlink("/proc", filepath.Join(history, "proc")))
		for i := range 3000 {
			dir := filepath.Join(history, fmt.Sprint("run", i))
			s.try(os.Mkdir(dir, 0o755), os.Symlink(filepath.Join("..", "circle"), filepath.Join(dir, record.RunFile)))
		}
		if o := s.tare("compare", "--history", history); !slices.Contains([]int{2, 4}, o.code) || len(o.stderr) > 1<<20 {
			s.t.Errorf("exit code %d: %.1000s", o.code, o.stderr)
		}
	}},
	{"a directory for keys that is a stranger's", func(s *shared) {
		s.refuses("another user", "node", "keys", "--dir", s.own("keys"), "a")
		s.try(os.Mkdir(s.at("all"), 0o755), os.Chmod(s.at("all"), 0o777))
		s.refuses("others may write", "node", "keys", "--dir", s.at("all"), "a")
	}},
	{"links for keys", func(s *shared) {
		s.try(os.Mkdir(s.at("keys"), 0o755), os.Symlink(filepath.Join(s.precious, "file"), s.at("keys/authority.key")),
			os.Symlink(filepath.Join(s.precious, "new"), s.at("keys/coordinator.pem")))
		if o := s.tare("node", "keys", "--dir", s.at("keys"), "a"); o.code != 2 {
			s.t.Error(o)
		}
	}},
	{"a stranger's directory for a node's trials", func(s *shared) {
		keys := attackedKeys(s.t, "a")
		own := filepath.Join(keys, "a")
		s.refuses("another user", "node", "--join", "127.0.0.1:1", "--name", "a", "--ca",
			filepath.Join(keys, "authority.pem"),
			"--cert", own+".pem", "--key", own+".key", "--dir", s.own("node"))
	}},
	{"a directory for a node's trials below a stranger's", func(s *shared) {
		keys := attackedKeys(s.t, "a")
		own := filepath.Join(keys, "a")
		s.try(os.Mkdir(s.at("mine"), 0o755), os.Mkdir(filepath.Join(s.own("theirs"), "mine"), 0o755),
			os.Symlink(s.precious, s.at("link")), os.Lchown(s.at("link"), stranger, stranger))
		for _, dir := range []string{s.at("mine"), s.at("theirs/mine"), s.at("new"), s.at("link")} {
			s.refuses("another user", "node", "--join", "127.0.0.1:1", "--name", "a", "--ca",
				filepath.Join(keys, "authority.pem"),
				"--cert", own+".pem", "--key", own+".key", "--dir", dir)
		}
		if _, err := os.Lstat(s.at("new")); err == nil {
			s.t.Error("a directory was made in a stranger's")
		}
	}},
	{"names that steer", func(s *shared) {
		name := "\x1b[2J\x1b]0;owned\a\r\u202e.yaml"
		s.try(os.WriteFile(s.at(name), []byte("nonsense: true\n"), 0o644), os.Mkdir(s.at("\x1b[31mrun"), 0o755))
		for _, args := range [][]string{{"run", name}, {"report", "\x1b[31mrun"}, {"report", "\x1b[31mnone"},
			{"list", name}} {
			o := s.tare(args...)
			if o.code != 2 {
				s.t.Error(o)
			}
			noEscapes(s.t, strings.Join(args, " "), o.stdout+o.stderr)
		}
	}},
}

// TestHostileDirectories: root works in a directory that a stranger controls. Nothing outside is touched, whatever is
// in the directory is refused with an error or left alone, and nothing that a stranger made is trusted.
func TestHostileDirectories(t *testing.T) {
	long.Test(t, "30 s: a campaign of attacks by what lies in a directory")
	needsRoot(t)
	leavesNothing(t)
	for _, a := range directoryAttacks {
		t.Run(a.name, func(t *testing.T) {
			s := newShared(t)
			a.do(s)
		})
	}
}

// TestSwapping: swapping does replace a directory by a link. An attack whose swap never happened would prove nothing.
func TestSwapping(t *testing.T) {
	s := newShared(t)
	dir := s.own("disk")
	target := filepath.Join(s.precious, "empty")
	s.swapping(dir, "tare-scratch-", target)
	made := filepath.Join(dir, "tare-scratch-x")
	s.try(os.Mkdir(made, 0o755))
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		if to, err := os.Readlink(made); err == nil && to == target {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing was swapped")
		}
	}
	if text, err := os.ReadFile(filepath.Join(made, "file")); err != nil || !bytes.Equal(text, []byte("precious")) {
		t.Errorf("through the link: %q, %v", text, err)
	}
}
