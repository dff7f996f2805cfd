// Package experiments holds the built-in experiments: one spec each, in this folder. A new one is one new file. Those
// in the folder cluster weigh what is installed in a cluster, and run there only.
package experiments

import (
	"embed"
	"io/fs"
	"strings"
)

//go:embed *.yaml cluster/*.yaml
var specs embed.FS

// Names are the names of the built-in experiments, in order.
func Names() []string { return names("*.yaml") }

// ClusterNames are the names, cluster/NAME, of the built-in experiments that run in a cluster only, in order.
func ClusterNames() []string { return names("cluster/*.yaml") }

func names(pattern string) []string {
	files, err := fs.Glob(specs, pattern)
	if err != nil {
		panic(err) // the pattern is a constant
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(f, ".yaml")
	}
	return files
}

// File is the text of a built-in spec, and the file name to use in messages about it.
func File(name string) (file string, data []byte, ok bool) {
	data, err := specs.ReadFile(name + ".yaml")
	return "experiments/" + name + ".yaml", data, err == nil
}
