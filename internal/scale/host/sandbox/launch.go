package sandbox

import (
	"path/filepath"

	"tare/internal/lib/param"
)

// Launch is how Tare itself runs containers in a runtime (internal/sandboxes): by the command line of runc.
type Launch struct {
	Program string // on the PATH or beside the tare binary; it is the runtime's name in specs
	Title   string // what it is, where Program does not say it
	Install string // how to install it
	Own     bool   // it is a command of the tare binary, which says itself which rights it lacks

	// Main is what the process is that the runtime names as its container's; empty: the application.
	Main Component

	// Settings are those that the subject has for this runtime.
	Settings []param.Setting

	configure func(v param.Values, overhead string) Config
}

// Config is what a container is started with.
type Config struct {
	Args        []string // of the runtime, before those of each command
	Annotations map[string]string
	Trait       string // what to say of the runtime wherever an arm is named
}

// Config is that of the settings of a subject. overhead is a control group outside the pod for what is to be there;
// empty: all is to be in the pod.
func (l *Launch) Config(v param.Values, overhead string) Config {
	if l.configure == nil {
		return Config{}
	}
	return l.configure(v, overhead)
}

// Launches are those of all runtimes that have one.
func Launches() (all []*Launch) {
	for _, r := range runtimes {
		if r.Launch != nil {
			all = append(all, r.Launch)
		}
	}
	return all
}

// LaunchOf finds a runtime by its name in specs, or by the path of its program. One that is not known has none but the
// command line of runc.
func LaunchOf(name string) *Launch {
	for _, l := range Launches() {
		if name == l.Program || !l.Own && filepath.Base(name) == l.Program {
			return l
		}
	}
	return &Launch{}
}
