package session

import (
	"fmt"
	"strings"

	"tare/experiments"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/lib/text"
)

// LoadSpec loads the experiment of a command such as "tare run": a built-in one by its name, or a file by its path. It
// calls read for the content of a file. features are as for spec.Parse.
func LoadSpec(command, arg string, features []string, read func(path string) ([]byte, error)) (*spec.Spec, error) {
	file, data, err := ReadSpec(command, arg, read)
	if err != nil {
		return nil, err
	}
	return spec.Parse(file, data, features)
}

// ReadSpec returns the text of a spec for LoadSpec, and the name of its file for messages.
func ReadSpec(command, arg string, read func(path string) ([]byte, error)) (file string, data []byte, err error) {
	file, data, ok := experiments.File(arg)
	if ok {
		return file, data, nil
	}
	if !strings.ContainsAny(arg, "/.") {
		return "", nil, NoSuchExperiment(command, arg, "; a file is named with its ending, .yaml")
	}
	data, err = read(arg)
	return arg, data, err
}

// NoSuchExperiment returns an error that lists the built-in experiments and suggests the nearest name.
func NoSuchExperiment(command, name, more string) error {
	hint := "the built-in experiments are " + strings.Join(experiments.Names(), ", ") + more
	if n := text.Nearest(name, experiments.Names()); n != "" {
		hint = fmt.Sprintf("did you mean %q? %s", n, hint)
	}
	return fault.New(fault.Usage, command+" "+name, hint, "no such experiment")
}
