package proxyconfig

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/lib/fault"
)

// TestReadDirectory: several files are one mesh, and errors have file and line.
func TestReadDirectory(t *testing.T) {
	const services = "services:\n- {name: a, protocol: http, identity: a, endpoints: [{address: 127.0.0.1:1}]}\n"
	const proxies = "mtls: strict\nproxies:\n- {id: p, identity: web, outbound: {a: 127.0.0.1:2}}\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		wrong string // the expected error, after the directory; empty: no error
	}{
		{"a mesh", map[string]string{"1.yaml": services, "2.yaml": proxies, ".3.yaml": "[", "4.yml": "[",
			"empty.yaml": ""}, ""},
		{"the same word twice", map[string]string{"1.yaml": "mtls: strict\n" + services, "2.yaml": proxies}, ""},
		{"another word", map[string]string{"1.yaml": services + "mtls: off\n", "2.yaml": proxies},
			`/2.yaml:1: mtls: it is "strict" here, and "off" in an earlier file`},
		{"no YAML", map[string]string{"1.yaml": services, "2.yaml": "\nproxies: [\n"}, "/2.yaml:"},
		{"an element of the second", map[string]string{"1.yaml": services, "2.yaml": "\nservices:\n- name: b\n- {}\n"},
			"/2.yaml:4: the configuration is wrong: services[1]: name is missing"},
		{"a name of another file", map[string]string{"1.yaml": services, "2.yaml": "services:\n- name: a\n"},
			"/2.yaml:2: the configuration is wrong: service a is given twice"},
		{"within an element", map[string]string{"1.yaml": services, "2.yaml": proxies + "- {id: q, identity: a/b/c}\n"},
			`/2.yaml:4: the configuration is wrong: proxy q: identity: "spiffe://mesh.local/ns/a/sa/b/c": not an identity`},
		{"a word of the mesh", map[string]string{"1.yaml": "services: []", "2.yaml": "\nmtls: strict\n"},
			"/2.yaml:2: the configuration is wrong: mtls: needs proxies"},
		{"no file", map[string]string{"1.yml": services}, ": there is no file *.yaml in the directory"},
	} {
		dir := t.TempDir()
		for name, text := range c.files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		m, err := ReadFile(dir)
		switch {
		case c.wrong == "" && err != nil:
			t.Errorf("%s: %v", c.name, err)
		case c.wrong == "":
			if r, err := m.For("p"); err != nil || len(r.Listeners) != 1 || !m.Secure() {
				t.Errorf("%s: %v, %+v", c.name, err, r)
			}
		case err == nil || !strings.HasPrefix(err.Error(), dir+c.wrong) || fault.CodeOf(err) != fault.Usage:
			t.Errorf("%s: %v; want %s", c.name, err, c.wrong)
		}
	}
}

// TestReadDirectoryBounds: too many files, or too many bytes in all, are refused before they are read.
func TestReadDirectoryBounds(t *testing.T) {
	dir := t.TempDir()
	for i := range maxFiles + 1 {
		name := filepath.Join(dir, "f"+strings.Repeat("x", i%10)+string(rune('a'+i%26))+strings.Repeat("y", i/26)+fileSuffix)
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := ReadFile(dir); err == nil || !strings.Contains(err.Error(), "more than 1000 files") {
		t.Errorf("too many files: %v", err)
	}
	dir = t.TempDir()
	for _, name := range []string{"a.yaml", "b.yaml"} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, maxFile/2+1); err != nil { // a sparse file
			t.Fatal(err)
		}
	}
	if _, err := ReadFile(dir); err == nil || !strings.Contains(err.Error(), "more than 64 MiB") {
		t.Errorf("too many bytes: %v", err)
	}
}
