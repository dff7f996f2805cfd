// Package oci drives container runtimes with runc's command line (create, start, state, kill, delete) on bundles that
// it builds itself, without a registry or a daemon.
package oci

import (
	"bytes"
	"cmp"
	"context"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"tare/internal/experiment/child"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/param"
	"tare/internal/sandboxes/microvm"
	"tare/internal/scale/host/proc"
	"tare/internal/scale/host/sandbox"
)

// Runtime is a program with runc's command line.
type Runtime struct {
	Name string   `json:"name"` // the name or path as the user gave it
	Argv []string `json:"argv"` // the program, and the arguments that precede those of each command
}

// Find finds a runtime by its path, or by its name: on the PATH, or beside the tare binary, whose path is self. The
// runtime's settings become arguments. If the runtime is not installed, the error has the code fault.Machine.
func Find(name, self string, v param.Values) (Runtime, error) {
	launch := sandbox.LaunchOf(name)
	if launch.Own {
		return Runtime{Name: name, Argv: []string{self, name}}, nil
	}
	if real, err := filepath.EvalSymlinks(self); err == nil {
		self = real // self may be a link in a directory without other programs
	}
	program, err := child.Find(name, filepath.Dir(self))
	if err != nil {
		hint := launch.Install
		if name != launch.Program {
			hint = "install it, or give its path"
		}
		return Runtime{}, fault.Wrap(child.ErrNotFound, fault.Machine, name, hint, "not installed")
	}
	if program, err = filepath.Abs(program); err != nil {
		return Runtime{}, fmt.Errorf("finding the runtime %s: %w", name, err)
	}
	return Runtime{Name: name, Argv: append([]string{program}, launch.Config(v, "").Args...)}, nil
}

// command returns the command line of one command of the runtime.
func (r Runtime) command(root string, args ...string) []string {
	if root != "" {
		args = slices.Concat([]string{"--root", root}, args)
	}
	return slices.Concat(r.Argv, args)
}

// commandTime is the time limit of a runtime's command, unless the caller sets another. Commands take milliseconds; a
// command that hangs must not block the end of a run.
var commandTime = 20 * time.Second // tests set a shorter one

// run runs a command of the runtime until the context ends, or for at most commandTime if the context has no deadline.
// The error, of code fault.Machine, contains the runtime's message.
func (r Runtime) run(ctx context.Context, root string, args ...string) ([]byte, error) {
	within := time.Duration(0)
	if _, bounded := ctx.Deadline(); !bounded {
		var cancel context.CancelFunc
		within = commandTime
		ctx, cancel = context.WithTimeout(ctx, within)
		defer cancel()
	}
	argv := r.command(root, args...)
	var out, said bytes.Buffer
	cmd := child.Command{Argv: argv, Stdout: &out, Stderr: &said}
	// Processes that the command started may keep its streams open.
	if err := child.Run(ctx, cmd, child.Options{Name: r.Name, Linger: time.Second}); err != nil {
		why := cmp.Or(strings.TrimSpace(said.String()), strings.TrimSpace(out.String()), err.Error())
		if within > 0 && errors.Is(ctx.Err(), context.DeadlineExceeded) {
			why = fmt.Sprintf("it did not end within %v", within)
		}
		return nil, fault.New(fault.Machine, r.Name+" "+args[0], "", "%s", clean(why))
	}
	return out.Bytes(), nil
}

// message matches the message in a line of logrus's log.
var message = regexp.MustCompile(`msg="((?:[^"\\]|\\.)*)"`)

const longest = 400 // maximum length in bytes of a reported message

// clean reduces a runtime's output to one line: the messages of the log, without time stamps and colours.
func clean(said string) string {
	var words []string
	for line := range strings.Lines(said) {
		line = strings.TrimSpace(line)
		if m := message.FindStringSubmatch(line); m != nil {
			line = strings.ReplaceAll(m[1], `\"`, `"`)
		}
		if line != "" {
			words = append(words, line)
		}
	}
	text := strings.Map(func(c rune) rune {
		if c < ' ' {
			return -1
		}
		return c
	}, strings.ToValidUTF8(strings.Join(words, "; "), "?"))
	if len(text) > longest {
		text = "..." + text[len(text)-longest:]
	}
	return text
}

// Version returns the runtime's version, from the first line that it prints, or "" if it prints none.
func (r Runtime) Version(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := r.run(ctx, "", "--version")
	if err != nil {
		return ""
	}
	line, _, _ := strings.Cut(string(out), "\n")
	line = clean(line)
	if _, after, ok := strings.Cut(line, " version "); ok {
		line = after
	}
	if built, err := buildinfo.ReadFile(r.Argv[0]); err == nil && line == noVersion {
		line = built.Main.Version
	}
	return line
}

// noVersion is the version that gVisor prints if it was built from its Go module. Version then returns the module's
// version.
const noVersion = "VERSION_MISSING"

// Container is a container of a runtime.
type Container struct {
	Runtime Runtime `json:"runtime"`
	Root    string  `json:"root"`   // directory of the runtime's state
	Bundle  string  `json:"bundle"` // directory of config.json
	ID      string  `json:"id"`
}

// State is the state of a container as a runtime reports it, with the field names of the specification.
type State struct {
	ID     string `json:"id"`
	Status string `json:"status"` // creating, created, running or stopped
	PID    int    `json:"pid"`

	Annotations map[string]string `json:"annotations"`
}

// OutOfMemory returns the processes that the kernel of the container's guest killed because it was out of memory, if
// the runtime reports them.
func (s State) OutOfMemory() (kills []microvm.Kill) {
	_ = json.Unmarshal([]byte(s.Annotations[microvm.OutOfMemory]), &kills) // most states have no such annotation
	return kills
}

// State asks the runtime for the state of the container.
func (c Container) State(ctx context.Context) (s State, err error) {
	out, err := c.Runtime.run(ctx, c.Root, "state", c.ID)
	if err != nil {
		return s, err
	}
	if err := json.Unmarshal(out, &s); err != nil {
		return s, fmt.Errorf("decoding what %s says of its container: %w", c.Runtime.Name, err)
	}
	return s, nil
}

// Delete ends the container's processes and removes the container.
func (c Container) Delete(ctx context.Context) error {
	_, err := c.Runtime.run(ctx, c.Root, "delete", "--force", c.ID)
	return err
}

// pidFile is the path of the file to which the runtime writes the container's pid.
func (c Container) pidFile() string { return filepath.Join(c.Bundle, "pid") }

// probeTime is the minimum of the time limit for running an empty container. A runtime that boots a kernel on an
// emulated processor takes seconds.
const probeTime = 60 * time.Second

// Probe runs an empty container with a runtime, with annotations in its bundle. self is the path of the tare binary.
// The time limit is the given duration, but at least a minute. The error, of code fault.Machine, contains the runtime's
// message.
func Probe(ctx context.Context, r Runtime, self string, within time.Duration,
	annotations map[string]string) (err error) {
	within = max(within, probeTime)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	process, err := proc.FS{}.Identify()
	if err != nil {
		return err
	}
	// The name is like that of a run's tree of control groups, so that Clean recognizes the tree if this process is
	// killed.
	tree := fmt.Sprintf("tare-probe-%d-%s", probes.Add(1), process)
	files, err := files.NewScratch("", "probe") // the directory has an unpredictable name
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, files.Close()) }()
	state, err := NewState(tree)
	if err != nil {
		return fault.Wrap(err, fault.Machine, "", "remove that directory if nobody needs it", "no container can be tried")
	}
	defer func() {
		_, removed := RemoveState(context.WithoutCancel(ctx), tree)
		err = errors.Join(err, removed)
	}()
	dir := filepath.Join(state, "one")
	if err := os.Mkdir(dir, 0o711); err != nil {
		return fault.Wrap(err, fault.Machine, state, "make room there", "no container can be tried")
	}
	root, err := NewRoot(filepath.Join(files.Path(), "rootfs"), self)
	if err != nil {
		return err
	}
	c := Container{Runtime: r, Root: filepath.Join(dir, "state"), Bundle: dir, ID: tree}
	spec := Spec{Args: []string{Busybox, "true"}, Root: root.Dir, Cgroup: "/" + c.ID, Annotations: annotations}
	if err := spec.Write(c.Bundle); err != nil {
		return err
	}
	if _, err := (Job{Container: c}).Write(dir); err != nil {
		return err
	}
	_, err = r.run(ctx, c.Root, "run", "--bundle", c.Bundle, c.ID)
	if err != nil && ctx.Err() != nil {
		err = fault.New(fault.Machine, r.Name, "see what it waits for", "it did not run an empty container within %v",
			within)
	}
	return err
}

// probes is the number of probes that this process has made.
var probes atomic.Int64
