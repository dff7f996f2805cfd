package process

import (
	"errors"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/internal/lib/lists"
	"tare/internal/lib/text"
)

// word is one word of a command line.
type word struct {
	text   string
	quoted bool // some of it was in quotes, or escaped
}

// operators are words that a shell acts on instead of passing them to the program.
var operators = []string{
	"|", "||", "|&", "&", "&&", ";", ";;", "<", ">", ">>", "<<", "<<<", "2>", "2>>", "&>", "&>>", "2>&1", "1>&2", ">&2",
}

// operator reports whether a shell would act on the word instead of passing it as an argument.
func (w word) operator() bool { return !w.quoted && slices.Contains(operators, w.text) }

// split cuts a command line into words as a shell would: at blanks, except between ' or ", and with \ before a
// character that stands for itself. It implements nothing else of a shell: no variables, patterns or substitutions.
func split(line string) ([]word, error) {
	var words []word
	var text strings.Builder
	var w word
	in, quote, escaped := false, rune(0), false
	for _, c := range line {
		switch {
		case escaped:
			if quote == '"' && c != '"' && c != '\\' {
				text.WriteRune('\\')
			}
			text.WriteRune(c)
			escaped = false
		case c == '\\' && quote != '\'':
			in, escaped, w.quoted = true, true, true
		case quote != 0:
			if c == quote {
				quote = 0
			} else {
				text.WriteRune(c)
			}
		case c == '\'' || c == '"':
			in, quote, w.quoted = true, c, true
		case c == ' ' || c == '\t':
			if in {
				w.text = text.String()
				words = append(words, w)
			}
			text.Reset()
			in, w = false, word{}
		default:
			in = true
			text.WriteRune(c)
		}
	}
	switch {
	case quote != 0:
		return nil, fmt.Errorf("has an unclosed %c", quote)
	case escaped:
		return nil, errors.New(`ends in \`)
	}
	if in {
		w.text = text.String()
		words = append(words, w)
	}
	return words, nil
}

// Words returns the words of a command line, as a shell would cut it. The error continues a sentence that begins with
// the name of the setting.
func Words(line string) ([]string, error) {
	cut, err := split(line)
	if err != nil {
		return nil, err
	}
	return lists.Map(cut, func(w word) string { return w.text }), nil
}

var plain = text.LazyRegexp(`^[A-Za-z0-9_@%+=:,./-]+$`)

// quote quotes a word so that a shell, and split, read it back.
func quote(word string) string {
	if plain().MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// Place holds the values of the placeholders of a command, as known when and where the command is started. A zero field
// is not known, and its placeholder is an error.
type Place struct {
	Self       string // path of the tare binary
	CgroupDir  string // the directory of the control group that the command may name: its own, or one to watch
	CgroupID   uint64 // its id, as bpf_get_current_cgroup_id returns it
	CgroupPath string // its path below the mount of v2, with a leading /
	Dir        string // a private directory, removed after the process ends
	Port       int    // a free TCP port to listen on
	// Address is the host:port of the application that a load is to reach, or at which an application or subject is to
	// listen.
	Address string
	// App returns the address of an application, host:port, by its name, or "" for an unknown name. Nil: none are known.
	App      func(name string) string
	Duration time.Duration // how long a load is to run, warm-up included
	Window   time.Duration // the last part of Duration, which is measured
}

// placeholder is a name that a command line may have in braces. value returns "" if its value is not known.
type placeholder struct {
	name  string
	value func(Place) string
}

// placeholders are in the order of the documentation.
var placeholders = []placeholder{
	{"address", func(p Place) string { return p.Address }},
	{"host", func(p Place) string { host, _, _ := net.SplitHostPort(p.Address); return bracket(host) }},
	{"port", Place.port},
	{"seconds", func(p Place) string { return wholeSeconds(p.Duration) }},
	{"window", func(p Place) string { return wholeSeconds(p.Window) }},
	{"dir", func(p Place) string { return p.Dir }},
	{"cgroup_dir", func(p Place) string { return p.CgroupDir }},
	{"cgroup_id", func(p Place) string { return unlessZero(p.CgroupID) }},
	{"cgroup_path", func(p Place) string { return p.CgroupPath }},
	{"self", func(p Place) string { return p.Self }},
}

const placeholderDoc = "`{address}`, `{host}`, `{port}` (where the application is, or is to listen), " +
	"`{web.address}`, `{web.host}`, `{web.port}` (in a subject: of the application web), `{seconds}` (whole " +
	"seconds of a load's run, rounded up), `{window}` (those measured), `{dir}` (a separate directory), " +
	"`{cgroup_dir}`, `{cgroup_id}`, `{cgroup_path}` (its control group), `{self}` (tare)"

// bracket puts an IPv6 address into brackets, as in an address with a port.
func bracket(host string) string {
	if strings.Contains(host, ":") {
		return "[" + host + "]"
	}
	return host
}

// port returns the port of the address, or else the free port.
func (p Place) port() string {
	if _, port, err := net.SplitHostPort(p.Address); err == nil {
		return port
	}
	return unlessZero(uint64(p.Port))
}

// wholeSeconds rounds up, because tools accept their duration in whole seconds only.
func wholeSeconds(d time.Duration) string {
	if d <= 0 {
		return ""
	}
	return strconv.FormatFloat(math.Ceil(d.Seconds()), 'f', -1, 64)
}

func unlessZero(n uint64) string {
	if n == 0 {
		return ""
	}
	return strconv.FormatUint(n, 10)
}

// braces matches placeholders: of the place, or of an application, whose name is the first group. It also matches a
// shell's ${port}, which is not a placeholder.
var braces = text.LazyRegexp(`\$?\{(?:([a-z0-9-]+)\.)?([a-z_]+)\}`)

// ofApps are the placeholders that an application has.
var ofApps = []string{"address", "host", "port"}

func checkPlaceholders(raw string) error {
	return CheckPlaceholders(raw, lists.Map(placeholders, func(h placeholder) string { return h.name }))
}

// CheckPlaceholders returns an error if a command line has a placeholder that looks like a misspelling of one of
// names. Braces around anything else are left to the program.
func CheckPlaceholders(raw string, names []string) error {
	for _, m := range braces().FindAllStringSubmatch(raw, -1) {
		app, name, of := m[1], m[2], names
		if app != "" {
			of, app = ofApps, app+"."
		}
		if meant := text.Nearest(name, of); meant != "" && meant != name && !strings.HasPrefix(m[0], "$") {
			return fmt.Errorf("has %s, which is not a placeholder; did you mean {%s%s}?", m[0], app, meant)
		}
	}
	return nil
}

// Apps returns the names of the applications that placeholders in a text refer to.
func Apps(raw string) []string {
	var apps []string
	for _, m := range braces().FindAllStringSubmatch(raw, -1) {
		if m[1] != "" && slices.Contains(ofApps, m[2]) && !strings.HasPrefix(m[0], "$") && !slices.Contains(apps, m[1]) {
			apps = append(apps, m[1])
		}
	}
	return apps
}

// Fill replaces the placeholders in a text. One without a known value is an error.
func (p Place) Fill(raw string) (string, error) {
	var lacking error
	filled := braces().ReplaceAllStringFunc(raw, func(in string) string {
		value, known := p.value(in)
		if known && value == "" && lacking == nil {
			lacking = fmt.Errorf("has %s, which has no value here", text.Clip(in))
		}
		if !known {
			return in
		}
		return value
	})
	return filled, lacking
}

// value returns the value of a placeholder, given with its braces. known is false if the text is not a placeholder.
func (p Place) value(in string) (value string, known bool) {
	if strings.HasPrefix(in, "$") {
		return "", false
	}
	name := strings.Trim(in, "{}")
	if app, of, dotted := strings.Cut(name, "."); dotted {
		if !slices.Contains(ofApps, of) {
			return "", false
		}
		if p.App == nil {
			return "", true
		}
		p, name = Place{Address: p.App(app)}, of
	}
	for _, h := range placeholders {
		if h.name == name {
			return h.value(p), true
		}
	}
	return "", false
}

// At returns the command with its placeholders replaced by the values of a place. It does not set Command.CgroupDir: a
// tracer's placeholder can name a group to watch, which is not the tracer's own. At also writes the command's files.
// An error in a placeholder has the code fault.Usage.
func (c Command) At(p Place) (Command, error) {
	var err error
	put := func(setting, text string) string {
		filled, fillErr := p.Fill(text)
		if fillErr != nil && err == nil {
			err = usage(setting, fillErr)
		}
		return filled
	}
	all := func(setting string, texts []string) []string {
		return lists.Map(texts, func(text string) string { return put(setting, text) })
	}
	c.Argv, c.Env = all("command", c.Argv), all("env", c.Env)
	c.Files = slices.Clone(c.Files)
	for i := range c.Files {
		f := &c.Files[i]
		var writeErr error
		if f.Sum, writeErr = f.write(p); err == nil {
			err = writeErr
		}
	}
	c.Dir, c.Address = put("dir", c.Dir), put("address", c.Address)
	c.Ready.HTTP, c.Ready.File = put("ready-http", c.Ready.HTTP), put("ready-file", c.Ready.File)
	if c.Ready.Port = put("ready-port", c.Ready.Port); c.Ready.Port != "" && !strings.Contains(c.Ready.Port, ":") {
		c.Ready.Port = net.JoinHostPort("127.0.0.1", c.Ready.Port)
	}
	return c, err
}
