package cluster

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/fault"
)

// TestMakeKeys: files that only their owner can read, of one authority, also when more nodes come later; and none is
// written over.
func TestMakeKeys(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "keys")
	wrote, err := MakeKeys(dir, []string{"a", "b"})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"a.key", "a.pem", "authority.key", "authority.pem", "b.key", "b.pem", "coordinator.key", "coordinator.pem"}; !slices.Equal(wrote, want) {
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
		if wrote, err := MakeKeys(dir, c.nodes); fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), c.want) || len(wrote) > 0 {
			t.Errorf("%s: wrote %v, %v", c.name, wrote, err)
		}
	}
	if err := os.Remove(filepath.Join(dir, "authority.key")); err != nil {
		t.Fatal(err)
	}
	if _, err := MakeKeys(dir, []string{"e"}); fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), "authority's key cannot be read") {
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
			ended <- Agent{Hello: Hello{Name: name, Version: build}, Address: at.String(), Credentials: credentials}.Join(context.Background(), good)
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
