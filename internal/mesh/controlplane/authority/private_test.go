package authority

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"tare/internal/mesh/controlplane/bootstrap"
)

func mode(t *testing.T, path string) fs.FileMode {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Mode()
}

// TestStore: roots are restored at every stage of a rollover from a file that only its owner can read, which no longer
// has the old root's key once the new root signs.
func TestStore(t *testing.T) {
	dir := t.TempDir()
	a, err := Open(Options{}, dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { a.Close() }()
	if _, err := Open(Options{}, dir); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("a second authority of the directory: %v", err)
	}
	for i, want := range []int{1, 2, 1, 1} { // keys at each stage
		if i > 0 {
			if err := a.Advance(true); err != nil {
				t.Fatal(err)
			}
		}
		before, roots := a.Rollover(), a.RootsPEM()
		file := filepath.Join(dir, storeFile)
		if m := mode(t, file); m != 0o600 {
			t.Errorf("mode %s", m)
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if keys := bytes.Count(text, []byte("BEGIN "+keyBlock)); keys != want {
			t.Errorf("stage %q: %d keys in the file; want %d", before.Stage, keys, want)
		}
		a.Close()
		if a, err = Open(Options{}, dir); err != nil {
			t.Fatal(err)
		}
		after := a.Rollover()
		if left := time.Until(after.SafeAt); left < DefaultLife-time.Minute || left > DefaultLife {
			t.Errorf("the next step is safe in %s; agents may have certificates for %s", left, DefaultLife)
		}
		before.Pending, before.SafeAt = 0, after.SafeAt // they depend on what was issued before
		if fmt.Sprint(before) != fmt.Sprint(after) || !bytes.Equal(roots, a.RootsPEM()) {
			t.Errorf("%+v came back as %+v", before, after)
		}
		if err := verifyAt(credentialsOf(t, a, webID), roots, credentialsOf(t, a, webID).NotBefore); err != nil {
			t.Error(err)
		}
	}
	a.Close()
	if _, err := Open(Options{TrustDomain: "other.local"}, dir); err == nil {
		t.Error("roots of another trust domain were taken")
	}
}

// writer is the environment variable that makes the test binary a process that rolls its roots over until it is
// killed.
const writer = "TARE_TEST_AUTHORITY_WRITER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(writer); dir != "" {
		rollOver(dir)
	}
	os.Exit(m.Run())
}

func rollOver(dir string) {
	a, err := Open(Options{}, dir)
	for err == nil {
		err = a.Advance(true)
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// TestStoreKilled kills a process with SIGKILL while it writes roots, again and again: the file that it leaves is
// always valid, and the next start removes the leftovers.
func TestStoreKilled(t *testing.T) {
	dir := t.TempDir()
	left := 0
	for i := range 20 {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), writer+"="+dir)
		c.Stderr = os.Stderr
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		for begin := time.Now(); ; time.Sleep(time.Millisecond) {
			if _, err := os.Stat(filepath.Join(dir, storeFile)); err == nil {
				break
			}
			if time.Since(begin) > time.Minute {
				t.Error("no roots are written")
				break
			}
		}
		time.Sleep(time.Duration(20+i) * time.Millisecond)
		if err := c.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the writer has ended by itself: %v", err)
		}
		if entries, err := os.ReadDir(dir); err != nil || len(entries) > 1 {
			left++
		}
		a, err := Open(Options{}, dir)
		if err != nil {
			t.Fatal(err)
		}
		if err := verifyAt(credentialsOf(t, a, webID), a.RootsPEM(), time.Now()); err != nil {
			t.Error(err)
		}
		a.Close()
		if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
			t.Errorf("%v, %v", entries, err)
		}
	}
	t.Logf("killed in the middle of a write %d times of 20", left)
}

// TestHostileFiles: files that another user could have created or could read are refused, and links are never
// followed.
func TestHostileFiles(t *testing.T) {
	elsewhere := t.TempDir()
	target := filepath.Join(elsewhere, "target")
	key := must(keyPEM(must(newKey())))
	file := func(text []byte, mode fs.FileMode) func(string) error {
		return func(dir string) error { return os.WriteFile(filepath.Join(dir, storeFile), text, mode) }
	}
	chmod := func(mode fs.FileMode) func(string) error {
		return func(dir string) error { return os.Chmod(dir, mode) }
	}
	for name, c := range map[string]struct {
		plant func(dir string) error
		good  bool
	}{
		"nothing":            {func(string) error { return nil }, true},
		"others write":       {chmod(0o777), false},
		"the group writes":   {chmod(0o770), false},
		"a sticky directory": {chmod(0o777 | fs.ModeSticky), false},
		"others pass":        {chmod(0o711), true},
		"another's":          {func(dir string) error { return os.Chown(dir, 12345, 12345) }, false},
		"a link":             {func(dir string) error { return os.Symlink(target, filepath.Join(dir, storeFile)) }, false},
		"a link below":       {linkBelow, false},
		"a pipe":             {func(dir string) error { return syscall.Mkfifo(filepath.Join(dir, storeFile), 0o600) }, false},
		"a directory":        {func(dir string) error { return os.Mkdir(filepath.Join(dir, storeFile), 0o700) }, false},
		"readable by others": {file(nil, 0o644), false},
		"empty":              {file(nil, 0o600), false},
		"a key alone":        {file(key, 0o600), false},
		"too long":           {file(make([]byte, maxFile+1), 0o600), false},
		"another's file": {func(dir string) error {
			return errors.Join(file(nil, 0o600)(dir), os.Chown(filepath.Join(dir, storeFile), 12345, 12345))
		}, false},
	} {
		dir := t.TempDir()
		if err := c.plant(dir); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		a, err := Open(Options{}, dir)
		if (err == nil) != c.good {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil {
			a.Close()
		} else if strings.Contains(err.Error(), "PRIVATE") {
			t.Errorf("%s: the error shows a key: %v", name, err)
		}
		if _, err := os.Lstat(target); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("%s: the link was followed", name)
		}
	}
}

func linkBelow(dir string) error {
	file := filepath.Join(dir, "other")
	return errors.Join(os.WriteFile(file, nil, 0o600), os.Symlink("other", filepath.Join(dir, storeFile)))
}

// TestWriteFiles: the files have mode 0600, replace a link instead of following it, can be read back, and no other
// files are left.
func TestWriteFiles(t *testing.T) {
	a := newAuthority(t, Options{})
	dir, victim := t.TempDir(), filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("mine"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{IdentityFile, EnvoyIdentityFile} {
		if err := os.Symlink(victim, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	envoy := bootstrap.Envoy{Node: "web", ControlPlane: "127.0.0.1:15010"}
	for range 2 {
		a.Forget(webID)
		c := credentialsOf(t, a, webID)
		if err := errors.Join(c.WriteFiles(dir), c.WriteEnvoy(dir, envoy)); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{IdentityFile, RootsFile, EnvoyBootstrapFile, EnvoyIdentityFile, EnvoyRootsFile} {
			if m := mode(t, filepath.Join(dir, name)); m != 0o600 {
				t.Errorf("%s has mode %s", name, m)
			}
		}
		if back, err := ReadFiles(dir); err != nil || back.ID != c.ID || !bytes.Equal(back.Key, c.Key) ||
			!bytes.Equal(back.Chain, c.Chain) || !bytes.Equal(back.Roots, c.Roots) || !back.NotAfter.Equal(c.NotAfter) {
			t.Errorf("%v came back as %v, %v", c, back, err)
		}
	}
	if text, err := os.ReadFile(victim); err != nil || string(text) != "mine" {
		t.Errorf("the link was followed: %q, %v", text, err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 5 {
		t.Errorf("%v, %v", entries, err)
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	if credentialsOf(t, a, webID).WriteFiles(dir) == nil || credentialsOf(t, a, webID).WriteEnvoy(dir, envoy) == nil {
		t.Error("keys were written where others can write")
	}
}

// TestSecretsDoNotPrint: keys and tokens appear in no log line, error or document, however they are printed.
func TestSecretsDoNotPrint(t *testing.T) {
	a := newAuthority(t, Options{})
	c := credentialsOf(t, a, webID)
	token := newCluster(t).token(t, "web")
	block, _ := pem.Decode(c.Key)
	secrets := []string{string(token), string(c.Key), string(c.Key)[40:80], string(block.Bytes[40:60])}
	var texts []string
	for _, v := range []any{c, &c, c.Key, &c.Key, token, &token, []any{c, token}, map[string]any{"k": c.Key, "t": token}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%c", "%b"} {
			texts = append(texts, fmt.Sprintf(verb, v))
		}
		var b strings.Builder
		slog.New(slog.NewJSONHandler(&b, nil)).Info("x", "v", v)
		slog.New(slog.NewTextHandler(&b, nil)).Info("x", "v", v)
		j, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		y, err := yaml.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		texts = append(texts, b.String(), string(j), string(y))
	}
	for _, secret := range secrets {
		forms := []string{secret, fmt.Sprintf("%x", secret), fmt.Sprintf("%X", secret), fmt.Sprintf("%d", []byte(secret)),
			strings.Trim(fmt.Sprintf("%q", secret), `"`)}
		for _, text := range texts {
			for _, form := range forms {
				if strings.Contains(text, form) {
					t.Errorf("a secret is shown: %.200s", text)
				}
			}
		}
	}
}

// FuzzStore: no text of a store leads to an authority that cannot sign, or to a panic.
func FuzzStore(f *testing.F) {
	a, err := New(Options{})
	if err != nil {
		f.Fatal(err)
	}
	root := a.trust.Load().issuing
	good := append(bytes.Clone(root.pem), must(keyPEM(root.key))...)
	f.Add(good)
	f.Add(append(bytes.Clone(good), root.pem...))
	f.Add(append(bytes.Clone(good), good...))
	f.Add(bytes.Clone(root.pem))
	f.Fuzz(func(t *testing.T, text []byte) {
		tr, err := parseTrust(text, DefaultTrustDomain)
		if err != nil {
			return
		}
		if tr.issuing.key == nil || len(tr.roots) > 2 || tr.pool == nil {
			t.Errorf("%+v", tr)
		}
	})
}
