package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
)

// TestMakeKeys: the key files can be read only by their owner and are all issued by one authority, even if nodes are
// added later. No file is overwritten.
func TestMakeKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	wrote, err := MakeKeys(dir, []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a.key", "a.pem", "authority.key", "authority.pem", "b.key", "b.pem", "coordinator.key",
		"coordinator.pem"}; !slices.Equal(wrote, want) {
		t.Errorf("wrote %v", wrote)
	}
	if wrote, err := MakeKeys(dir, []string{"c"}); err != nil || !slices.Equal(wrote, []string{"c.key", "c.pem"}) {
		t.Errorf("wrote %v, %v", wrote, err)
	}
	for _, path := range append(wrote, ".") {
		info, err := os.Stat(filepath.Join(dir, path))
		if err != nil || info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s can be read by others: %v, %v", path, info.Mode(), err)
		}
	}
	for _, c := range []struct {
		name  string
		nodes []string
		want  string
	}{
		{"there already", []string{"d", "b"}, "has a certificate already"},
		{"twice", []string{"d", "d"}, "named twice"},
		{"a path", []string{"../d"}, "not a name for a node"},
		{"capitals", []string{"D"}, "not a name for a node"},
		{"empty", []string{""}, "not a name for a node"},
		{"taken", []string{"coordinator"}, "is taken"},
		{"taken too", []string{"authority"}, "is taken"},
	} {
		if wrote, err := MakeKeys(dir, c.nodes); fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want) ||
			len(wrote) > 0 {
			t.Errorf("%s: wrote %v, %v", c.name, wrote, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "authority.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeKeys(dir, []string{"e"}); fault.CodeOf(err) != fault.Usage ||
		!strings.Contains(err.Error(), "authority's key cannot be read") {
		t.Errorf("without the authority's key: %v", err)
	}

	keys, err := ReadCoordinator(dir)
	if err != nil {
		t.Fatal(err)
	}
	c, err := NewCoordinator(Options{Version: build, Credentials: keys})
	if err != nil {
		t.Fatal(err)
	}
	at, err := c.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	for _, name := range []string{"b", "c"} {
		own := filepath.Join(dir, name)
		credentials, err := ReadCredentials(filepath.Join(dir, "authority.pem"), own+".pem", own+".key")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			ended <- Agent{Hello: Hello{Node: record.Node{Name: name}, Version: build}, Address: at.String(),
				Credentials: credentials}.Join(context.Background(), good)
		}()
	}
	if _, err := c.Wait(context.Background(), 2, time.Minute, func(int) {}); err != nil {
		t.Error(err)
	}
	c.Close()
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

// fits fails the test unless the key and certificate of a name match, the authority beside them issued the
// certificate, and no other user can read the key.
func fits(t *testing.T, dir, name string) {
	t.Helper()
	own := filepath.Join(dir, name)
	c, err := ReadCredentials(filepath.Join(dir, "authority.pem"), own+".pem", own+".key")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(c.Certificate, c.Key)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(c.Authority)
	authority, err := x509.ParseCertificate(block.Bytes)
	if err == nil {
		err = pair.Leaf.CheckSignatureFrom(authority)
	}
	if err != nil {
		t.Errorf("%s: %v", name, err)
	}
	for _, file := range []string{own + ".pem", own + ".key"} {
		if info, err := os.Lstat(file); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
	}
}

// TestKeysCutOff: if writing keys was interrupted at any point, the existing files match, and the next call completes
// them.
func TestKeysCutOff(t *testing.T) {
	const whole = 6 // files of an authority, the coordinator and one node
	for done := range whole + 1 {
		dir := t.TempDir()
		k, err := openKeys(dir)
		if err != nil {
			t.Fatal(err)
		}
		k.stop = func() bool { return len(k.wrote) == done }
		err = k.make([]string{"n1"})
		if (err == nil) != (done == whole) {
			t.Fatalf("cut off after %d files: %v", done, err)
		}
		before := map[string]string{}
		for _, name := range []string{"authority", "coordinator", "n1"} {
			if text, err := os.ReadFile(filepath.Join(dir, name+".key")); err == nil {
				before[name] = string(text)
			} else if _, err := os.Lstat(filepath.Join(dir, name+".pem")); err == nil {
				t.Errorf("cut off after %d files, a certificate of %s has no key", done, name)
			}
		}
		if done < whole {
			if _, err := MakeKeys(dir, []string{"n1"}); err != nil {
				t.Fatalf("cut off after %d files: %v", done, err)
			}
		}
		for _, name := range []string{"authority", "coordinator", "n1"} {
			fits(t, dir, name)
			if now, _ := os.ReadFile(filepath.Join(dir, name+".key")); before[name] != "" && string(now) != before[name] {
				t.Errorf("cut off after %d files, the key of %s was written over", done, name)
			}
		}
		if entries, _ := os.ReadDir(dir); len(entries) != whole {
			t.Errorf("cut off after %d files, there are %v", done, entries)
		}
	}
}

// TestKeysThroughLinks: a symbolic link in the place of a key file is not followed.
func TestKeysThroughLinks(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	if _, err := MakeKeys(dir, []string{"a"}); err != nil {
		t.Fatal(err)
	}
	for _, present := range []bool{false, true} {
		if present {
			if err := os.WriteFile(outside, []byte("mine"), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		for _, file := range []string{"b.key", "b.pem"} {
			path := filepath.Join(dir, file)
			if err := os.Symlink(outside, path); err != nil {
				t.Fatal(err)
			}
			if wrote, err := MakeKeys(dir, []string{"b"}); fault.CodeOf(err) != fault.Usage || len(wrote) > 0 {
				t.Errorf("through %s: wrote %v, %v", file, wrote, err)
			}
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		text, err := os.ReadFile(outside)
		if present && string(text) != "mine" || !present && err == nil {
			t.Errorf("outside, there is %q", text)
		}
	}
	if err := errors.Join(os.Remove(filepath.Join(dir, "a.pem")),
		os.Symlink(outside, filepath.Join(dir, "a.pem"))); err != nil {
		t.Fatal(err)
	}
	if _, err := RenewKeys(dir); err != nil {
		t.Fatal(err)
	}
	fits(t, dir, "a")
	if text, _ := os.ReadFile(outside); string(text) != "mine" {
		t.Errorf("outside, there is %q", text)
	}
	fifo := filepath.Join(dir, "c.key")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeKeys(dir, []string{"c"}); fault.CodeOf(err) != fault.Usage {
		t.Errorf("a pipe: %v", err)
	}
	if _, err := ReadCredentials(fifo, fifo, fifo); fault.CodeOf(err) != fault.Usage {
		t.Errorf("credentials from a pipe: %v", err)
	}
}

// TestRenewUnreadable: a directory of keys that cannot be read is not one that cannot be written.
func TestRenewUnreadable(t *testing.T) {
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := RenewKeys(file)
	if fault.CodeOf(err) != fault.Machine || !strings.Contains(err.Error(), "the directory of keys cannot be read") {
		t.Errorf("%v", err)
	}
}

// TestRenew: renewed certificates have the same keys and are valid for a year from now, and old and new ones work
// together.
func TestRenew(t *testing.T) {
	dir := t.TempDir()
	k, err := openKeys(dir)
	if err != nil {
		t.Fatal(err)
	}
	k.life = 24 * time.Hour
	if err := k.make([]string{"a", "b"}); err != nil {
		t.Fatal(err)
	}
	read := func(name string) Credentials {
		t.Helper()
		own := filepath.Join(dir, name)
		c, err := ReadCredentials(filepath.Join(dir, "authority.pem"), own+".pem", own+".key")
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	old := map[string]Credentials{"a": read("a"), "coordinator": read("coordinator")}
	for hours, want := range map[int][2]string{0: {},
		20: {"in 0 days; renew all certificates with 'tare node keys --dir DIR --renew'"},
		25: {"", "the certificate expired on"}, -3: {"", "the certificate is not valid before"}} {
		warning, err := old["a"].Expires(time.Now().Add(time.Duration(hours) * time.Hour))
		if want[0] == "" != (warning == "") || !strings.Contains(warning, want[0]) || (err == nil) != (want[1] == "") ||
			err != nil && (!strings.Contains(err.Error(), want[1]) || fault.CodeOf(err) != fault.Usage ||
				!strings.Contains(fault.HintOf(err), "renew")) {
			t.Errorf("after %d hours: %q, %v", hours, warning, err)
		}
	}
	wrote, err := RenewKeys(dir)
	if want := []string{"a.pem", "authority.pem", "b.pem", "coordinator.pem"}; err != nil || !slices.Equal(wrote, want) {
		t.Fatalf("wrote %v, %v", wrote, err)
	}
	for _, name := range []string{"authority", "coordinator", "a", "b"} {
		fits(t, dir, name)
		if warning, err := read(name).Expires(time.Now().Add(300 * 24 * time.Hour)); warning != "" || err != nil {
			t.Errorf("%s: %q, %v", name, warning, err)
		}
	}
	for _, pair := range [][2]Credentials{
		{read("coordinator"), old["a"]}, {old["coordinator"], read("a")}, {read("coordinator"), read("a")},
	} {
		c, err := NewCoordinator(Options{Version: build, Credentials: pair[0]})
		if err != nil {
			t.Fatal(err)
		}
		at, err := c.Listen("127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() {
			ended <- Agent{Hello: Hello{Node: record.Node{Name: "a"}, Version: build}, Address: at.String(),
				Credentials: pair[1], Patience: time.Minute}.Join(context.Background(), good)
		}()
		if _, err := c.Wait(context.Background(), 1, time.Minute, func(int) {}); err != nil {
			t.Error(err)
		}
		c.Close()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	for _, gone := range []string{"authority.key", ""} {
		path := filepath.Join(dir, gone)
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
		if wrote, err := RenewKeys(dir); fault.CodeOf(err) != fault.Usage || len(wrote) > 0 {
			t.Errorf("without %q: wrote %v, %v", gone, wrote, err)
		}
	}
}

// TestExpired: neither side starts with an expired certificate.
func TestExpired(t *testing.T) {
	a, err := NewAuthority(-time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	node, err := a.Node("a")
	if err != nil {
		t.Fatal(err)
	}
	coordinator, err := a.Coordinator()
	if err != nil {
		t.Fatal(err)
	}
	_, err = NewCoordinator(Options{Version: build, Credentials: coordinator})
	for _, err := range []error{err, (Agent{Hello: Hello{Node: record.Node{Name: "a"}}, Address: "127.0.0.1:1",
		Credentials: node}).Join(t.Context(), good)} {
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), "the certificate expired on") ||
			!strings.Contains(fault.HintOf(err), "--renew") {
			t.Errorf("got %v (%s)", err, fault.HintOf(err))
		}
	}
}
