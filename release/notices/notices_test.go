package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTexts: a text that several modules have stands there once, below their names, and a module without one is an
// error.
func TestTexts(t *testing.T) {
	dir := t.TempDir()
	for path, text := range map[string]string{
		"a/LICENSE": "free as in beer  \r\n", "a/license.go": "package a", "a/NOTICE.txt": "by A",
		"b/COPYING": "free as in beer", "none/README": "no licence",
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	modules := map[string]string{"a v1": filepath.Join(dir, "a"), "b v2": filepath.Join(dir, "b")}
	var out bytes.Buffer
	if err := writeTexts(&out, modules); err != nil {
		t.Fatal(err)
	}
	line := strings.Repeat("-", 80) + "\n\n"
	if want := "a v1\nb v2\n\nfree as in beer\n\n" + line + "a v1\n\nby A\n\n" + line; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
	modules["c v3"] = filepath.Join(dir, "none")
	if err := writeTexts(&out, modules); err == nil || !strings.Contains(err.Error(), "c v3") {
		t.Errorf("a module without a licence: %v", err)
	}
}

// TestModules: a program's modules are those that Go lists, with Go itself.
func TestModules(t *testing.T) {
	t.Chdir("../..")
	modules, err := modulesOf("./cmd/tare-agent")
	if err != nil {
		t.Fatal(err)
	}
	var cobra bool
	for name, dir := range modules {
		cobra = cobra || strings.HasPrefix(name, "github.com/spf13/cobra v")
		if strings.HasPrefix(name, "npm ") {
			t.Errorf("the agent has no charts, and here is %s", name)
		}
		if _, err := licences(dir); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !cobra || modules["tare"] == "" || modules["Go's runtime and standard library"] == "" {
		t.Errorf("modules: %v", modules)
	}
}
