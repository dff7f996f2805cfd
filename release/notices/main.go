// Command notices writes the licences of everything that is linked into a program, because they must accompany the
// binary: those of Go, of every module, and of the npm packages in the charts of reports.
//
//	go run ./release/notices ./cmd/tare notices.gz
//
// A module without a licence is an error.
package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: notices PACKAGE FILE.gz")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintf(os.Stderr, "notices: %v\n", err)
		os.Exit(1)
	}
}

// write writes the licences of a program's package into a compressed file.
func write(pkg, path string) error {
	modules, err := modulesOf(pkg)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	w, err := gzip.NewWriterLevel(&b, gzip.BestCompression)
	if err != nil {
		return err
	}
	err = writeTexts(w, modules)
	if err := errors.Join(err, w.Close()); err != nil {
		return err
	}
	return os.WriteFile(path, b.Bytes(), 0o644)
}

// writeTexts writes the licences of modules, given their directories by name. It writes each text once, below the names
// of all modules that have it.
func writeTexts(w io.Writer, modules map[string]string) error {
	under := map[string][]string{} // the modules under each text
	for name, dir := range modules {
		texts, err := licences(dir)
		if err != nil {
			return fmt.Errorf("reading the licence of %s: %w", name, err)
		}
		for _, text := range texts {
			under[text] = append(under[text], name)
		}
	}
	for _, names := range under {
		slices.Sort(names)
	}
	texts := slices.SortedFunc(maps.Keys(under), func(a, b string) int {
		return slices.Compare(append(under[a], a), append(under[b], b))
	})
	for _, text := range texts {
		_, err := fmt.Fprintf(w, "%s\n\n%s\n\n%s\n\n", strings.Join(under[text], "\n"), text, strings.Repeat("-", 80))
		if err != nil {
			return err
		}
	}
	return nil
}

// modulesOf returns the directories of the modules that are linked into a package, by "path version". It includes Go
// itself, and the npm packages of the charts.
func modulesOf(pkg string) (map[string]string, error) {
	list, err := output("go", "list", "-deps",
		"-f", "{{.ImportPath}}\t{{with .Module}}{{.Path}} {{.Version}}\t{{.Dir}}{{end}}", pkg)
	if err != nil {
		return nil, err
	}
	root, err := output("go", "env", "GOROOT")
	if err != nil {
		return nil, err
	}
	modules := map[string]string{"Go's runtime and standard library": root}
	for line := range strings.Lines(list) {
		f := strings.Split(strings.TrimSpace(line), "\t")
		if len(f) == 3 {
			modules[strings.TrimSpace(f[1])] = f[2]
		}
		if f[0] == "tare/web" {
			if err := addCharts(modules, filepath.Join(f[2], "web")); err != nil {
				return nil, err
			}
		}
	}
	return modules, nil
}

// addCharts adds the npm packages that are bundled in the charts, if the charts are embedded in the binary.
func addCharts(modules map[string]string, web string) error {
	if _, err := os.Stat(filepath.Join(web, "dist", "report.js")); err != nil {
		return nil
	}
	list, err := output("npm", "--prefix", web, "ls", "--all", "--omit", "dev", "--parseable", "--long")
	if err != nil {
		return err
	}
	for line := range strings.Lines(list) {
		if dir, name, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && dir != web {
			name, _, _ = strings.Cut(name, ":")
			modules["npm "+name] = dir
		}
	}
	return nil
}

func output(name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(bytes.TrimSpace(out)), nil
}

// isLicence matches the names of files with licences, and with the notices that licences require to be kept.
var isLicence = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|notice|copyright)([-._].*)?$`)

// licences returns the licences in the top directory of a module, without spaces at the ends of lines. It returns an
// error if there are none.
func licences(dir string) (texts []string, err error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if !e.Type().IsRegular() || !isLicence.MatchString(e.Name()) || strings.HasSuffix(e.Name(), ".go") {
			continue
		}
		text, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(texts, strings.TrimSpace(trailing.ReplaceAllString(string(text), "")))
	}
	if len(texts) == 0 {
		return nil, fmt.Errorf("no licence in %s", dir)
	}
	return texts, nil
}

var trailing = regexp.MustCompile(`(?m)[ \t\r]+$`)
