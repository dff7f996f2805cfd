package sandbox

import (
	"path/filepath"

	"tare/internal/lib/param"
)

// Launch describes how Tare itself runs containers in a runtime that has runc's command line (internal/sandboxes).
type Launch struct {
	Program string // in PATH or beside the tare binary; also the runtime's name in specs
	Title   string // description; empty if the name of the program is enough
	Install string // how to install it
	Own     bool   // it is a command of the tare binary, which reports missing rights itself

	// Main is the component of the process that the runtime reports as its container's; empty if that is the application.
	Main Component

	// Settings are the subject's settings for this runtime.
	Settings []param.Setting

	configure func(v param.Values, overhead string) Config
}

// Config holds the arguments and annotations with which a container is started.
type Config struct {
	Args        []string // arguments of the runtime itself, before the name of each command
	Annotations map[string]string
	Trait       string // short description of the runtime, shown wherever an arm of an experiment is named
}

// Config returns the configuration for a subject's settings. overhead is a control group outside the pod for the
// sandbox's overhead. If it is empty, everything is in the pod.
func (l *Launch) Config(v param.Values, overhead string) Config {
	if l.configure == nil {
		return Config{}
	}
	return l.configure(v, overhead)
}

// Launches returns the Launch of every runtime that has one.
func Launches() (all []*Launch) {
	for _, r := range runtimes {
		if r.Launch != nil {
			all = append(all, r.Launch)
		}
	}
	return all
}

// LaunchOf finds a runtime by its name in specs, or by the path of its program. For an unknown runtime it returns the
// zero value, which assumes only that the runtime has the command line of runc.
func LaunchOf(name string) *Launch {
	for _, l := range Launches() {
		if name == l.Program || !l.Own && filepath.Base(name) == l.Program {
			return l
		}
	}
	return &Launch{}
}
