package process

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/test/port"
	"tare/test/vm/guest"
)

func freePort(t *testing.T) int { return port.Number(t, port.Free(t)) }

func TestSplit(t *testing.T) {
	guest.KernelFree(t)
	for line, want := range map[string][]string{
		`agent --config /etc/a.yaml -v`:   {"agent", "--config", "/etc/a.yaml", "-v"},
		`sh -c 'echo "$HOME"; exit 3'`:    {"sh", "-c", `echo "$HOME"; exit 3`},
		`a "b c"d '' "e\"f\n" \ g`:        {"a", "b cd", "", `e"f\n`, " g"},
		"  a\tb  ":                        {"a", "b"},
		`curl 'a|b' \; "&&" a;b`:          {"curl", "a|b", ";", "&&", "a;b"},
		``:                                nil,
		`prog {port} '{"json":"{port}"}'`: {"prog", "{port}", `{"json":"{port}"}`},
	} {
		words, err := split(line)
		var got []string
		for _, w := range words {
			got = append(got, w.text)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s is split into %q (%v), want %q", line, got, err, want)
		}
	}
	for line, want := range map[string]string{`a "b`: `has an unclosed "`, `a 'b`: "has an unclosed '", `a b\`: `ends in \`} {
		if _, err := split(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
}

// FuzzSplit: words that are quoted and joined are split into the same words.
func FuzzSplit(f *testing.F) {
	for _, seed := range []string{"a b", `it's "so"`, `\`, "'", "ä\u00a0ö\t\v", "", "a\n\nb", "\xff"} {
		f.Add(seed, seed+"x")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		a, b = strings.ToValidUTF8(a, "?"), strings.ToValidUTF8(b, "?")
		line := Command{Argv: []string{a, b}}.Line()
		words, err := split(line)
		if err != nil || len(words) != 2 || words[0].text != a || words[1].text != b {
			t.Errorf("%q and %q are written as %s, and read as %v, %v", a, b, line, words, err)
		}
		_, _ = programOf(a) // the result does not matter
		_, _ = envOf(b)
	})
}

// FuzzOptions: any value of a setting either causes an error with code Usage, or gives a command whose placeholders can
// be replaced.
func FuzzOptions(f *testing.F) {
	for i, s := range Settings {
		for _, text := range []string{
			"", "8080", "127.0.0.1:{port}", "http://{address}/x", "A=b 'C=d e'", "(", "{prot}", "sh -c 'x'", "1s",
		} {
			f.Add(uint8(i), s.Name, text)
		}
	}
	f.Fuzz(func(t *testing.T, i uint8, name, text string) {
		v := param.Defaults(Settings)
		v["command"] = "true"
		v[Settings[int(i)%len(Settings)].Name] = text
		v[name] = text
		c, err := OptionsOf(v)
		if err == nil {
			_, err = c.At(Place{Port: 80, Address: "127.0.0.1:80", Duration: time.Second})
		}
		if err != nil && fault.CodeOf(err) != fault.Usage {
			t.Errorf("%s=%q: %v is of code %d", name, text, err, fault.CodeOf(err))
		}
	})
}

func TestOptions(t *testing.T) {
	guest.KernelFree(t)
	v := param.Defaults(Settings)
	for name, text := range map[string]string{
		"command": `redis-server --port {port} --dir {dir} --save ""`, "env": `A={port} B='two words'`, "dir": "{dir}",
		"ready-port": "{port}", "ready-line": "^Ready", "ready-http": "http://{address}/health", "ready-file": "{dir}/socket",
		"ready-after": "2s", "stop-signal": "INT", "stop-time": "0s", "address": "127.0.0.1:{port}",
	} {
		v[name] = text
	}
	if err := v.Check(Settings); err != nil {
		t.Fatal(err)
	}
	c, err := OptionsOf(v)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = c.At(Place{Dir: "/run/x", Address: "127.0.0.1:7000", Port: 9}); err != nil {
		t.Fatal(err)
	}
	if want := []string{"redis-server", "--port", "7000", "--dir", "/run/x", "--save", ""}; !slices.Equal(c.Argv, want) {
		t.Errorf("the arguments are %q, want %q", c.Argv, want)
	}
	if !slices.Equal(c.Env, []string{"A=7000", "B=two words"}) || c.Dir != "/run/x" || c.Address != "127.0.0.1:7000" ||
		c.Ready.Port != "127.0.0.1:7000" || c.Ready.HTTP != "http://127.0.0.1:7000/health" ||
		c.Ready.File != "/run/x/socket" ||
		c.Ready.After != 2*time.Second || !c.Ready.Line.MatchString("Ready.") || c.Stop != syscall.SIGINT ||
		c.StopTime != 0 || c.ReadyTimeout != 30*time.Second {
		t.Errorf("it is %+v", c)
	}
	if want := `redis-server --port 7000 --dir /run/x --save ''`; c.Line() != want {
		t.Errorf("as a line: %s", c.Line())
	}
	c, err = OptionsOf(param.Values{"command": "wrk -d {seconds}s -w {window} http://{host}:{port}/"})
	if err == nil {
		c, err = c.At(Place{Address: "[::1]:80", Duration: 1500 * time.Millisecond, Window: time.Second})
	}
	if err != nil || c.Line() != "wrk -d 2s -w 1 'http://[::1]:80/'" {
		t.Errorf("a load: %s, %v", c.Line(), err)
	}
}

func TestBadOptions(t *testing.T) {
	guest.KernelFree(t)
	for _, c := range []struct{ name, text, says string }{
		{"command", "", `"command" names no program`},
		{"command", `a "b`, `has an unclosed "`},
		{"command", "a | b", `has "|", which only a shell understands: write sh -c '...'`},
		{"command", "a && b", `has "&&"`},
		{"command", "a > /tmp/x", `has ">"`},
		{"command", "A=1 b", `begins with the variable "A=1": put it into "env"`},
		{"command", "a --port {prot}", "did you mean {port}?"},
		{"env", "A=1 b", `has "b", which is not NAME=value`},
		{"env", "1A=1", "which is not NAME=value"},
		{"ready-port", "http", "must have a port of 1 to 65535"},
		{"ready-port", "0", "must have a port of 1 to 65535"},
		{"ready-port", "a:b:c", "must be host:port"},
		{"ready-line", "(", "is not a regular expression"},
		{"ready-http", "127.0.0.1/health", "must be a URL"},
		{"ready-after", "5", "must be a duration with its unit"},
		{"stop-signal", "TREM", `did you mean "TERM"?`},
		{"address", "127.0.0.1", "must be host:port"},
	} {
		v := param.Values{"command": "true"}
		v[c.name] = c.text
		_, err := OptionsOf(v)
		if err == nil || !strings.Contains(err.Error(), c.says) || fault.CodeOf(err) != fault.Usage ||
			fault.HintOf(err) == "" {
			t.Errorf("%s=%q: %v, want %q", c.name, c.text, err, c.says)
		}
	}
	c, err := OptionsOf(param.Values{"command": "agent --time {seconds}"})
	if err != nil {
		t.Fatal(err)
	}
	const says = `"command" has {seconds}, which has no value here`
	if _, err := c.At(Place{Port: 1}); err == nil || !strings.Contains(err.Error(), says) {
		t.Errorf("a time that is not known: %v", err)
	}
}

func TestInstalled(t *testing.T) {
	guest.KernelFree(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "program"), nil, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		program, dir, says string
		code               fault.Code
	}{
		{"sh", "", "", fault.OK},
		{"./program", dir, "", fault.OK},
		{"no-such-program-anywhere", "", "not installed", fault.Machine},
		{"./none", dir, "cannot be run", fault.Usage},
		{"/no/such/file", "", "cannot be run", fault.Usage},
		{"./data", dir, "permission denied", fault.Usage},
	} {
		err := Command{Argv: []string{c.program}, Dir: c.dir}.Installed()
		if fault.CodeOf(err) != c.code || c.says != "" && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", c.program, err)
		}
	}
	none := Command{Argv: []string{"no-such-program-anywhere"}}
	if _, err := Start(none, begin, nil); !errors.Is(err, exec.ErrNotFound) {
		t.Errorf("it is started: %v", err)
	}
	// A file that is neither a program nor a script with an interpreter line.
	empty := Command{Argv: []string{"./program"}, Dir: dir}
	if _, err := Start(empty, begin, nil); err == nil || fault.CodeOf(err) != fault.Usage {
		t.Errorf("an empty file is started: %v", err)
	}
}
