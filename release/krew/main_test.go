package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"testing"

	"github.com/goccy/go-yaml"
)

// TestWrite: the manifest names the archive by its checksum, and the archive holds the program and the licence.
func TestWrite(t *testing.T) {
	t.Chdir("../..")
	t.Setenv("VERSION", "0.1.0+3")
	t.Setenv("SOURCE_DATE_EPOCH", "1790000000")
	dir := t.TempDir()
	program := filepath.Join(dir, "kubectl-tare")
	if err := os.WriteFile(program, []byte("program"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := write(dir, program, "https://example.com/releases/"); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(dir, "tare.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var m struct {
		Spec struct {
			Version   string
			Platforms []struct{ URI, SHA256, Bin string }
		}
	}
	if err := yaml.Unmarshal(text, &m); err != nil || len(m.Spec.Platforms) != 1 || m.Spec.Version != "v0.1.0+3" {
		t.Fatalf("%v\n%s", err, text)
	}
	p := m.Spec.Platforms[0]
	data, err := os.ReadFile(filepath.Join(dir, path.Base(p.URI)))
	if err != nil {
		t.Fatal(err)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256(data)); p.SHA256 != sum {
		t.Errorf("checksum %s, want %s", p.SHA256, sum)
	}
	z, err := gzip.NewReader(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	held := map[string]string{}
	for r := tar.NewReader(z); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		held[h.Name] = string(content)
	}
	if held[p.Bin] != "program" || held["LICENSE"] == "" {
		t.Errorf("the archive holds %d files", len(held))
	}
}
