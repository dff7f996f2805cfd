package proxyconfig

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tare/internal/lib/fault"
)

// fileSuffix ends the names of the files of a directory that are read.
const fileSuffix = ".yaml"

// maxFiles bounds how many files a directory may have. Whoever follows it looks at each ten times a second.
const maxFiles = 1000

// Files are the files that a mesh is read from: path itself, or where that is a directory all of its files *.yaml, in
// order of their names. Links are followed, and names that begin with a dot are left out: that is how Kubernetes shows
// a ConfigMap. An error is a *fault.Error of code Usage.
func Files(path string) ([]string, error) {
	const hint, what = "name a file or a directory with --config", "the configuration cannot be read"
	info, err := os.Stat(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, path, hint, what)
	}
	if !info.IsDir() {
		return []string{path}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, path, hint, what)
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), fileSuffix) && !strings.HasPrefix(e.Name(), ".") && !e.IsDir() {
			names = append(names, filepath.Join(path, e.Name()))
		}
	}
	switch {
	case len(names) == 0:
		return nil, fault.New(fault.Usage, path, "put a mesh file there", "there is no file *%s in the directory", fileSuffix)
	case len(names) > maxFiles:
		return nil, fault.New(fault.Usage, path, "put more into each of them", "the directory has more than %d files *%s",
			maxFiles, fileSuffix)
	}
	return names, nil
}

// file is one file of a mesh.
type file struct {
	name   string
	data   []byte
	config Config
}

// lengths are those of the lists of a configuration, by their keys.
func (c *Config) lengths() map[string]int {
	return map[string]int{
		"services": len(c.Services), "proxies": len(c.Proxies), "ingress": len(c.Ingress), "resources": len(c.Resources),
	}
}

// merged is what several files say together.
type merged struct {
	config *Config
	files  []file
}

// merge puts the lists of files one after the other. What is one word of the mesh can stand in any of them, but not in
// two and otherwise.
func merge(files []file) (*merged, error) {
	all := &Config{}
	for _, f := range files {
		c := f.config
		all.Services = append(all.Services, c.Services...)
		all.Proxies = append(all.Proxies, c.Proxies...)
		all.Ingress = append(all.Ingress, c.Ingress...)
		all.Resources = append(all.Resources, c.Resources...)
		for _, word := range []struct {
			key string
			of  string
			to  *string
		}{
			{"trust_domain", c.TrustDomain, &all.TrustDomain}, {"mtls", c.MTLS, &all.MTLS},
			{"discovery", c.Discovery, &all.Discovery},
		} {
			if word.of != "" && *word.to != "" && word.of != *word.to {
				return nil, fault.New(fault.Usage, at(f.name, lineOf(f.data, []any{word.key})),
					"say it in one of the files", "%s: it is %q here, and %q in a file before", word.key, word.of, *word.to)
			}
			if word.of != "" {
				*word.to = word.of
			}
		}
	}
	return &merged{all, files}, nil
}

// place says where the files are wrong of which an error says so, as file:line where that can be told, else by the name
// of them all. Elements of lists then have the numbers that they have in their file.
func (m *merged) place(name string, err error) (where string, in error) {
	path := pathOf(err)
	if len(m.files) == 1 {
		return at(m.files[0].name, lineOf(m.files[0].data, path)), err
	}
	if len(path) == 0 {
		return name, err
	}
	key, _ := path[0].(string)
	if _, list := m.config.lengths()[key]; !list { // a word of the whole mesh
		for _, f := range m.files {
			if line := lineOf(f.data, path); line > 0 {
				return at(f.name, line), err
			}
		}
		return name, err
	}
	n, ok := 0, false
	if len(path) > 1 {
		n, ok = path[1].(int)
	}
	if !ok {
		return name, err
	}
	for _, f := range m.files {
		length := f.config.lengths()[key]
		if n < length {
			return at(f.name, lineOf(f.data, slices.Concat([]any{key, n}, path[2:]))), renumbered(err, key, path[1].(int), n)
		}
		n -= length
	}
	return name, err
}

// renumbered is an error whose label has another number for the element of a list that it begins with.
func renumbered(err error, key string, from, to int) error {
	var w *wrong
	if !errors.As(err, &w) {
		return err
	}
	rest, ok := strings.CutPrefix(w.label, fmt.Sprintf("%s[%d]", key, from))
	if !ok {
		return err
	}
	return &wrong{w.path, fmt.Sprintf("%s[%d]", key, to) + rest, w.err}
}
