// Package process starts, watches and stops an external program: an application, a load or a subject that is only a
// command line. It waits until the program is ready, keeps its last output for errors, finds what belongs to it (its
// processes, eBPF programs and maps), and leaves none of its processes behind. It also finds what is running already
// (a process, a control group, a systemd unit or a container), to be observed and never started, moved or stopped.
//
// The program knows nothing of Tare. Its time is measured from outside.
package process

import (
	"cmp"
	"fmt"
	"net"
	"net/url"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
)

// Command describes how to run a program. OptionsOf makes it from settings, and At replaces its placeholders with
// values of a trial.
type Command struct {
	Argv         []string // the program and its arguments
	Env          []string // variables added to those of this process, as NAME=value
	Dir          string   // the working directory; empty: this process's
	Files        []File   // files in its directory, which At writes
	Ready        Ready
	ReadyTimeout time.Duration  // from the start until it must be ready
	Stop         syscall.Signal // asks it to end
	StopTime     time.Duration  // time to end before it is killed
	Address      string         // host:port at which it is reached; empty: where it listens

	// CgroupDir is the directory of the control group in which it is started. The group must be empty: whatever runs there
	// belongs to the command and ends with it. Without CgroupDir, only the processes of its session and their descendants
	// are known.
	CgroupDir string
	// Finishes is true for a command that ends by itself when its work is done, such as a load generator: exit status 0
	// is then a success. Others, such as servers, must run until they are asked to end.
	Finishes bool
	// Capture is the number of bytes at the end of its standard output that are kept for Output.
	Capture int
}

// Ready holds the conditions under which a program is ready. All that are given must hold; After comes last. A program
// without conditions is ready once it listens on a TCP port or has run for half a second.
type Ready struct {
	Port   string         // host:port that accepts a TCP connection
	Line   *regexp.Regexp // matches a line of its standard output or standard error
	HTTP   string         // URL that is answered with a status of 200 to 399
	File   string         // path that exists, relative to the working directory
	Listen bool           // it listens on some TCP port, or accepts connections at Offered
	// Offered is the host:port at which it may listen, if Listen is true; empty: none. Connecting there also satisfies
	// Listen, because the ports of a program on another kernel (gVisor, a virtual machine) are not visible here.
	Offered string
	After   time.Duration // time since all other conditions held
}

// The defaults of the settings.
const (
	readyTimeout = 30 * time.Second
	stopTime     = 10 * time.Second
)

// Settings are the settings of every command. Limits are not among them: they are set on the command's control group.
var Settings = []param.Setting{
	{Name: "command", Type: param.TypeText, Reach: param.ReachCommand,
		Doc: "command line, split into words as by a shell; for a shell write `sh -c '...'`. Placeholders: " +
			placeholderDoc},
	{Name: "env", Type: param.TypeText, Reach: param.ReachCommand,
		Doc: "variables added to those of tare, as `NAME=value` words; quote a value with blanks"},
	{Name: "files", Type: param.TypeText, Reach: param.ReachFile,
		Doc: "files with placeholders, separated by blanks: each is filled in and written to `{dir}`, under its name or as " +
			"`NAME=PATH` says"},
	{Name: "dir", Type: param.TypeText, Reach: param.ReachFile, Doc: "working directory; tare's own when left out"},
	{Name: "ready-port", Type: param.TypeText, Reach: param.ReachAddress,
		Doc: "this TCP port, of 127.0.0.1 or as `host:port`, accepts connections"},
	{Name: "ready-line", Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "a line on either output matches this regular expression"},
	{Name: "ready-http", Type: param.TypeText, Reach: param.ReachAddress,
		Doc: "this URL is answered with a status of 200 to 399"},
	{Name: "ready-file", Type: param.TypeText, Reach: param.ReachFile,
		Doc: "this file or socket exists"},
	{Name: "ready-after", Type: param.TypeDuration, Max: 600,
		Doc: "this time has passed since the other conditions held"},
	{Name: "ready-timeout", Type: param.TypeDuration, Default: readyTimeout.String(), Min: 0.01, Max: 3600,
		Doc: "most time from its start until it is ready"},
	{Name: "stop-signal", Type: param.TypeWord, Default: "TERM", Words: stopSignals,
		Doc: "signal that ends it, sent to all its processes"},
	{Name: "stop-time", Type: param.TypeDuration, Default: stopTime.String(), Max: 600,
		Doc: "time to end before it is killed"},
	{Name: "address", Type: param.TypeText, Reach: param.ReachAddress,
		Doc: "`host:port` for loads and `{address}`; where it listens when left out"},
}

var (
	stopSignals = []string{"TERM", "INT", "QUIT", "HUP", "USR1", "USR2", "WINCH", "KILL"}
	signals     = map[string]syscall.Signal{
		"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "QUIT": syscall.SIGQUIT, "HUP": syscall.SIGHUP,
		"USR1": syscall.SIGUSR1, "USR2": syscall.SIGUSR2, "WINCH": syscall.SIGWINCH, "KILL": syscall.SIGKILL,
	}
)

// OptionsOf makes a Command from values of Settings. Its error has the code fault.Usage and names the setting.
func OptionsOf(v param.Values) (Command, error) {
	if err := v.Check(Settings); err != nil {
		return Command{}, err
	}
	c := Command{
		Dir: v["dir"],
		Ready: Ready{Port: v["ready-port"], HTTP: v["ready-http"], File: v["ready-file"],
			After: v.Duration("ready-after")},
		ReadyTimeout: cmp.Or(v.Duration("ready-timeout"), readyTimeout),
		Stop:         signals[cmp.Or(v["stop-signal"], "TERM")],
		StopTime:     stopTime,
		Address:      v["address"],
	}
	if _, ok := v["stop-time"]; ok {
		c.StopTime = v.Duration("stop-time")
	}
	var err error
	if c.Argv, err = programOf(v["command"]); err != nil {
		return Command{}, usage("command", err)
	}
	if c.Env, err = envOf(v["env"]); err != nil {
		return Command{}, usage("env", err)
	}
	if c.Files, err = filesOf(v["files"]); err != nil {
		return Command{}, usage("files", err)
	}
	if text := v["ready-line"]; text != "" {
		if c.Ready.Line, err = regexp.Compile(text); err != nil {
			return Command{}, usage("ready-line", fmt.Errorf("is not a regular expression: %w", err))
		}
	}
	for _, s := range []struct {
		name  string
		check func(string) error
	}{{"dir", checkPlaceholders}, {"ready-file", checkPlaceholders}, {"ready-port", checkPort}, {"ready-http", checkURL},
		{"address", checkAddress}} {
		if text := v[s.name]; text != "" {
			if err := s.check(text); err != nil {
				return Command{}, usage(s.name, err)
			}
		}
	}
	return c, nil
}

// usage returns the error for a setting; err continues a sentence that begins with its name.
func usage(name string, err error) error {
	s, _ := param.Find(Settings, name)
	return fault.New(fault.Usage, name, s.Hint(), "%q %s", name, err)
}

// programOf splits a command line and refuses what only a shell understands.
func programOf(line string) ([]string, error) {
	words, err := split(line)
	if err != nil {
		return nil, err
	}
	if err := checkPlaceholders(line); err != nil {
		return nil, err
	}
	var argv []string
	for i, w := range words {
		if w.operator() {
			return nil, fmt.Errorf("has %q, which only a shell understands: write sh -c '...' around it, "+
				"or quote it where it is an argument", w.text)
		}
		if i == 0 && assignment().MatchString(w.text) && !w.quoted {
			return nil, fmt.Errorf("begins with the variable %q: put it into \"env\"", text.Clip(w.text))
		}
		argv = append(argv, w.text)
	}
	if len(argv) == 0 || argv[0] == "" {
		return nil, fmt.Errorf("names no program")
	}
	return argv, nil
}

var assignment = text.LazyRegexp(`^[A-Za-z_][A-Za-z0-9_]*=`)

func envOf(line string) ([]string, error) {
	words, err := split(line)
	if err != nil {
		return nil, err
	}
	if err := checkPlaceholders(line); err != nil {
		return nil, err
	}
	var env []string
	for _, w := range words {
		if !assignment().MatchString(w.text) {
			return nil, fmt.Errorf("has %q, which is not NAME=value", text.Clip(w.text))
		}
		env = append(env, w.text)
	}
	return env, nil
}

// checkPort accepts a port or host:port, with placeholders.
func checkPort(text string) error {
	if err := checkPlaceholders(text); err != nil {
		return err
	}
	text = probe.Replace(text)
	if !strings.Contains(text, ":") {
		text = "127.0.0.1:" + text
	}
	return checkAddress(text)
}

// probe replaces placeholders with likely values, so that the text around them can be checked.
var probe = strings.NewReplacer("{port}", "80", "{host}", "127.0.0.1", "{address}", "127.0.0.1:80")

func checkAddress(raw string) error {
	if err := checkPlaceholders(raw); err != nil {
		return err
	}
	_, port, err := net.SplitHostPort(probe.Replace(raw))
	if err != nil {
		return fmt.Errorf("must be host:port, not %q", text.Clip(raw))
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return fmt.Errorf("must have a port of 1 to 65535, not %q", text.Clip(port))
	}
	return nil
}

func checkURL(raw string) error {
	if err := checkPlaceholders(raw); err != nil {
		return err
	}
	u, err := url.Parse(probe.Replace(raw))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return fmt.Errorf("must be a URL, such as http://127.0.0.1:{port}/health, not %q", text.Clip(raw))
	}
	return nil
}

// Name returns the program's name in messages.
func (c Command) Name() string { return strings.ReplaceAll(filepath.Base(c.Argv[0]), "{self}", "tare") }

// Line returns the command line, quoted for a shell, to be tried by hand.
func (c Command) Line() string {
	return strings.Join(lists.Map(c.Argv, quote), " ")
}

// Installed returns an error unless the program exists and can be executed, and the user's files can be read. A name is
// looked up in this process's PATH. The error has the code fault.Machine for a name that is not on the PATH, and
// fault.Usage for a wrong path or a wrong file.
func (c Command) Installed() error {
	for _, f := range c.Files {
		if _, err := f.read(); err != nil {
			return err
		}
	}
	path := c.Argv[0]
	named := !strings.Contains(path, "/")
	if !named && !filepath.IsAbs(path) {
		path = filepath.Join(c.Dir, path)
		if !filepath.IsAbs(path) {
			path = "./" + path // without a slash, it would be looked up in the PATH
		}
	}
	_, err := exec.LookPath(path)
	switch {
	case err == nil:
		return nil
	case named:
		return fault.Wrap(exec.ErrNotFound, fault.Machine, c.Argv[0], "install it, or write the command with its whole path",
			"not installed")
	}
	return fault.Wrap(err, fault.Usage, c.Argv[0], "check the path, and that it may be executed (chmod +x)",
		"cannot be run")
}
