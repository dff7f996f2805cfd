package main

import (
	"bytes"
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestBuild: for each architecture, a C file that compiles to code only becomes a working executable. Other files are
// refused, with the reason.
func TestBuild(t *testing.T) {
	if _, err := exec.LookPath("clang"); err != nil {
		t.Skip("needs clang (Debian package clang)")
	}
	const quits = `__attribute__((used, noreturn)) void _start(void) { for (;;) `
	for name, c := range map[string]struct{ source, arch, fails string }{
		"code":          {quits + `; }`, "amd64", ""},
		"code for arm":  {quits + `; }`, "arm64", ""},
		"variable":      {`int n; ` + quits + `n++; }`, "amd64", "variable"},
		"string":        {quits + `{ const char *volatile s = "text"; (void)s; } }`, "arm64", "relocations"},
		"library":       {`void g(void); ` + quits + `g(); }`, "amd64", "relocations"},
		"no entry":      {`void f(void) {}`, "amd64", "no _start"},
		"not C":         {`program`, "amd64", "compiling"},
		"other machine": {quits + `; }`, "riscv64", `"riscv64"`},
	} {
		source, out := filepath.Join(t.TempDir(), "source.c"), filepath.Join(t.TempDir(), "out.elf")
		if err := os.WriteFile(source, []byte(c.source), 0o600); err != nil {
			t.Fatal(err)
		}
		err := build(source, c.arch, out)
		if c.fails != "" {
			if err == nil || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		first, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		if err := build(source, c.arch, out); err != nil {
			t.Fatal(err)
		}
		if again, err := os.ReadFile(out); err != nil || !bytes.Equal(first, again) {
			t.Errorf("%s: made twice, it differs: %v", name, err)
		}
		f, err := elf.NewFile(bytes.NewReader(first))
		if err != nil || f.Machine != archs[c.arch].machine || f.Entry < base || f.Entry >= base+uint64(len(first)) {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}
