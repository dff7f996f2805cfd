package main

import (
	"compress/gzip"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const top = "../.."

// written is a directory with the files of all packages.
func written(t *testing.T) string {
	t.Helper()
	t.Setenv("VERSION", "1.2.3-rc.1+4.g0123abcd")
	t.Setenv("SOURCE_DATE_EPOCH", "1790000000")
	t.Setenv("MAINTAINER", "Name <name@example.invalid>")
	dir := t.TempDir()
	t.Chdir(top)
	if err := write(dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestPages: each command that help shows has a page with its name, and nothing of Markdown's is left in it.
func TestPages(t *testing.T) {
	dir := written(t)
	pages := 0
	var check func(c *cobra.Command, man, section string)
	check = func(c *cobra.Command, man, section string) {
		pages++
		name := strings.ReplaceAll(c.CommandPath(), " ", "-")
		text := decompressed(t, filepath.Join(man, name+"."+section+".gz"))
		for _, want := range []string{"1.2.3-rc.1+4.g0123abcd", ".SH NAME", "Sep 2026"} {
			if !strings.Contains(text, want) {
				t.Errorf("the page of %s has no %q", c.CommandPath(), want)
			}
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden && !strings.Contains(strings.ReplaceAll(text, `\-`, "-"), "--"+f.Name) {
				t.Errorf("the page of %s has no --%s", c.CommandPath(), f.Name)
			}
		})
		if strings.Contains(text, "```") {
			t.Errorf("the page of %s shows Markdown", c.CommandPath())
		}
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() {
				check(sub, man, section)
			}
		}
	}
	for _, p := range programs() {
		check(p.command, filepath.Join(dir, p.command.Name(), "man"), p.section)
	}
	if pages < 40 {
		t.Errorf("there are %d pages", pages)
	}
}

// TestMarkdown: what Markdown gives a meaning is shown as it is, and tables stay tables.
func TestMarkdown(t *testing.T) {
	for text, want := range map[string]string{
		"a *b* <c> d_e":           `a \*b\* \<c\> d\_e`,
		"one\n\n  a_b   c\n  d":   "one\n\n```\n  a_b   c\n  d\n```",
		"'cgroup=/kube-system/*'": `'cgroup=/kube-system/\*'`,
	} {
		if got := markdown(text); got != want {
			t.Errorf("markdown(%q) = %q, want %q", text, got, want)
		}
	}
}

func TestCompletionsParse(t *testing.T) {
	dir := written(t)
	for _, p := range programs() {
		at := filepath.Join(dir, p.command.Name(), "completions")
		if out, err := exec.Command("bash", "-n", filepath.Join(at, p.command.Name())).CombinedOutput(); err != nil {
			t.Errorf("bash: %v\n%s", err, out)
		}
		for _, name := range []string{"_" + p.command.Name(), p.command.Name() + ".fish"} {
			text, err := os.ReadFile(filepath.Join(at, name))
			if err != nil || !strings.Contains(string(text), p.command.Name()) {
				t.Errorf("%s: %v, %d bytes", name, err, len(text))
			}
		}
	}
}

// TestChangelog: the version in Debian's changelog is the one that nfpm gives the package, and sorts as releases do.
func TestChangelog(t *testing.T) {
	const want = "tare-agent (1.2.3~rc.1+4.g0123abcd-1) unstable; urgency=medium\n\n" +
		"  * Version 1.2.3-rc.1+4.g0123abcd: see changelog.gz.\n\n" +
		" -- Name <name@example.invalid>  Mon, 21 Sep 2026 14:13:20 +0000\n"
	if got := decompressed(t, filepath.Join(written(t), "tare-agent", "changelog.Debian.gz")); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// configuration holds the parts of nfpm's configuration that the packages set.
type configuration struct {
	Name, Version, Release, Arch, Section, Priority, Maintainer, License, Description string

	Contents []struct {
		Src, Dst, Type, Packager string
		FileInfo                 struct{ Mode int } `yaml:"file_info"`
	}
	Overrides map[string]struct {
		Scripts struct{ Postinstall, Preremove, Postremove string }
	}
	Deb struct{ Compression string }
	RPM struct{ Compression, Summary, Buildhost string } `yaml:"rpm"`
}

// madeByMake are the files of packages that the Makefile makes with other programs.
var madeByMake = regexp.MustCompile(`^bin/(tare|tare-agent|files/tare(-agent)?/notices\.gz)$`)

// TestConfigurations: nfpm's files have no unknown keys, and every file that they name is in the tree or is made.
func TestConfigurations(t *testing.T) {
	var contents int
	made := written(t)
	for _, p := range programs() {
		path := filepath.Join("deploy", "packages", p.command.Name()+".yaml")
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		var c configuration
		if err := yaml.UnmarshalWithOptions(text, &c, yaml.Strict()); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		if c.Name != p.command.Name() || c.Version != "${VERSION}" || c.Arch != "${ARCH}" {
			t.Errorf("%s: name %q, version %q, architecture %q", path, c.Name, c.Version, c.Arch)
		}
		var sources []string
		for _, f := range c.Contents {
			contents++
			if f.Src != "" {
				sources = append(sources, f.Src)
			}
		}
		for _, s := range c.Overrides {
			sources = append(sources, s.Scripts.Postinstall, s.Scripts.Preremove, s.Scripts.Postremove)
		}
		for _, src := range sources {
			if madeByMake.MatchString(src) {
				continue
			}
			if rest, ok := strings.CutPrefix(src, "bin/files/"); ok {
				src = filepath.Join(made, rest)
			}
			if found, err := filepath.Glob(src); err != nil || len(found) == 0 {
				t.Errorf("%s: %s: not found, %v", path, src, err)
			}
		}
	}
	if contents < 20 {
		t.Errorf("the packages have %d entries", contents)
	}
}

// TestScriptsParse: the scripts of the packages are valid for a POSIX shell.
func TestScriptsParse(t *testing.T) {
	found, err := filepath.Glob(filepath.Join(top, "deploy/packages/*/p*"))
	if err != nil || len(found) != 6 {
		t.Fatalf("%v, %v", found, err)
	}
	for _, path := range found {
		if out, err := exec.Command("sh", "-n", path).CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", path, err, out)
		}
	}
}

func decompressed(t *testing.T, path string) string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
