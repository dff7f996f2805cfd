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

// fileSuffix is the suffix of the files that are read from a directory.
const fileSuffix = ".yaml"

// maxFiles is the maximum number of files in a directory. It is limited because each file is checked ten times a
// second.
const maxFiles = 1000

// Files returns the files that a mesh is read from: path itself or, if it is a directory, all of its *.yaml files,
// sorted by name. Symbolic links are followed, and names that begin with a dot are skipped, because the files of a
// mounted ConfigMap are links into a directory with such a name. Errors are of type *fault.Error and code Usage.
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
		return nil, fault.New(fault.Usage, path, "put more into each file", "the directory has more than %d files *%s",
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

// lengths returns the lengths of a configuration's lists, by key.
func (c *Config) lengths() map[string]int {
	return map[string]int{
		"services": len(c.Services), "proxies": len(c.Proxies), "ingress": len(c.Ingress), "resources": len(c.Resources),
	}
}

// merged is the configuration that several files make together.
type merged struct {
	config *Config
	files  []file
}

// merge concatenates the lists of files. A setting of the whole mesh may be in several files, but only with the same
// value.
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
					"set it in only one of the files", "%s: it is %q here, and %q in an earlier file", word.key, word.of, *word.to)
			}
			if word.of != "" {
				*word.to = word.of
			}
		}
	}
	return &merged{all, files}, nil
}

// place returns where the error is: file:line if that is known, or else the given name, which stands for all files. In
// the returned error, list elements are numbered as in their own file.
func (m *merged) place(name string, err error) (where string, in error) {
	path := pathOf(err)
	if len(m.files) == 1 {
		return at(m.files[0].name, lineOf(m.files[0].data, path)), err
	}
	if len(path) == 0 {
		return name, err
	}
	key, _ := path[0].(string)
	if _, list := m.config.lengths()[key]; !list { // a setting of the whole mesh
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

// renumbered returns an error whose label begins with the list element KEY[FROM], such as services[7], with KEY[TO] in
// its place. It returns any other error unchanged.
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
