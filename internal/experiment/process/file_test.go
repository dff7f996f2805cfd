package process

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/test/port"
	"tare/test/vm/guest"
)

// userFile writes a configuration file, as a user would.
func userFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestFiles: a user's configuration is written with the values of the trial, and everything that is not a placeholder
// is unchanged.
func TestFiles(t *testing.T) {
	guest.KernelFree(t)
	const text = "bind {address}\nport {port}\nserver s {web.address} # {web.host} {web.port}\n" +
		"log-format \"%{+Q}o ${port} {unknown} {web.name} {\"a\": {port}}\"\n"
	const want = "bind 127.0.0.1:7000\nport 7000\nserver s [::1]:80 # [::1] 80\n" +
		"log-format \"%{+Q}o ${port} {unknown} {web.name} {\"a\": 7000}\"\n"
	path := userFile(t, "proxy.cfg", text)
	c, err := OptionsOf(param.Values{"command": "proxy -f {dir}/proxy.cfg", "files": path + " other.cfg=" + path})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	place := Place{Dir: dir, Address: "127.0.0.1:7000", App: func(string) string { return "[::1]:80" }}
	if c, err = c.At(place); err != nil || c.Line() != "proxy -f "+dir+"/proxy.cfg" {
		t.Fatalf("%s, %v", c.Line(), err)
	}
	for _, name := range []string{"proxy.cfg", "other.cfg"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		info, statErr := os.Stat(filepath.Join(dir, name))
		if err != nil || statErr != nil || string(got) != want || info.Mode().Perm() != 0o640 {
			t.Errorf("%s: %v, %v: %s", name, err, info.Mode(), got)
		}
	}
	if sum := c.Files[0].Sum; len(sum) != 64 {
		t.Errorf("its sum is %q", sum)
	}
}

// TestBadFiles: an unusable file is a usage error, before anything is started if that can be known.
func TestBadFiles(t *testing.T) {
	guest.KernelFree(t)
	good := userFile(t, "a.cfg", "{port}")
	for _, c := range []struct{ files, says string }{
		{good + " " + good, "two files a.cfg"},
		{"x/y=" + good, "which is neither the path of a file"},
		{"..=" + good, "which is neither the path of a file"},
		{"a=", "which is neither the path of a file"},
		{"'", "has an unclosed '"},
		{strings.Repeat("a ", maxFiles+1), "at most 64"},
		{good + ".not", "no such file"},
		{t.TempDir(), "cannot be used"},
		{userFile(t, "b.cfg", "{prot}"), "did you mean {port}?"},
		{userFile(t, "c.cfg", "{web.adress}"), "did you mean {web.address}?"},
		{userFile(t, "d.cfg", strings.Repeat("x", maxFile+1)), "it has more than 1 MiB"},
	} {
		command, err := OptionsOf(param.Values{"command": "true", "files": c.files})
		if err == nil {
			err = command.Installed()
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || fault.CodeOf(err) != fault.Usage {
			t.Errorf("%s: %v, want %q", c.files, err, c.says)
		}
	}
	for _, c := range []struct {
		text, says string
		place      Place
	}{
		{"{address}", "has {address}, which has no value here", Place{Dir: t.TempDir()}},
		{"{web.port}", "has {web.port}, which has no value here", Place{Dir: t.TempDir()}},
		{"plain", "no directory for files", Place{}},
	} {
		command, err := OptionsOf(param.Values{"command": "true", "files": userFile(t, "e.cfg", c.text)})
		if err == nil {
			_, err = command.At(c.place)
		}
		if err == nil || !strings.Contains(err.Error(), c.says) || fault.CodeOf(err) != fault.Usage {
			t.Errorf("%s: %v, want %q", c.text, err, c.says)
		}
	}
}

// TestConnections: a connection is found by the port of either end, while it is open and after it was closed.
func TestConnections(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mine, other := port.Number(t, l.Addr().String()), port.Number(t, port.Free(t))
	count := func(n int) int {
		t.Helper()
		all, err := Connections(uint16(n))
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	if n := count(mine); n != 0 {
		t.Fatalf("%d connections before the first", n)
	}
	conn, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	if count(mine) == 0 || count(other) != 0 {
		t.Errorf("%d of its port, %d of another", count(mine), count(other))
	}
	served, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	_, _ = conn.Close(), served.Close()
	if count(mine) == 0 {
		t.Error("none is seen once it was closed")
	}
}
