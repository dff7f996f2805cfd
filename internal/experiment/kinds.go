package experiment

import (
	"fmt"
	"slices"
	"strconv"

	apphttp "tare/internal/app/http"
	"tare/internal/fault"
	loadhttp "tare/internal/load/http"
	"tare/internal/param"
	"tare/internal/subject/mesh/kernelmesh"
	"tare/internal/subject/tracer"
)

// Kind is one kind of application, load or subject that a spec can name. A new one is one entry in a registry below.
type Kind struct {
	Name     string
	Summary  string
	Settings []param.Setting

	// watches is of loads: it goes to no application, and only looks on.
	watches bool
	// alone is of loads: it goes to no application, but to what the subject serves by itself.
	alone bool
	// steered is of applications that do what a load tells them, and of loads that do tell: one goes with the other only.
	steered bool
	// execs is of loads: it makes events, which are counted in its control group.
	execs bool
	// idle is of applications: they serve nobody, and no load goes to them.
	idle bool
	// Serves is of subjects: loads go to a service address, which the subject takes to the application. Else they go straight.
	Serves bool
	// Works is of subjects: it does measured work itself, between the same edges as loads do, and reports it as they do. An experiment of
	// such subjects alone needs no loads.
	Works bool
	// traces is of subjects: a tracer, which delivers the events of a load.
	traces *tracer.Entry
	// varies is of subjects: there is none, but the baseline with other settings.
	varies bool
	// label is of subjects: the setting by which one is told from another of its kind; empty: they are called by the kind.
	label string
	// trait is of subjects: what to know of one with these options wherever it is named; may be nil.
	trait func(param.Values) string

	check func(param.Values) error // of the options together; may be nil
	// command is the start of the arguments of tare; those of the knobs follow. Subjects have theirs in package subject.
	command func(site) []string
	// holdsConnections is of loads: whether it means to have all its connections open at once.
	holdsConnections func(param.Values) bool
}

// site is what a load must know of its surroundings.
type site struct {
	address   string // where to go, host:port
	control   string // where to say what the application is to do, of those that are steered
	first     string // of the services that the subject serves by itself, host:port
	services  int    // how many these are
	endpoints bool   // connections to them show endpoints
	replacer  int    // process of a subject that replaces its services; 0: it does not
	rewritten bool   // address is a service address, which a subject takes to this machine
	seed      uint64 // of the arrivals
}

// Applications, Loads and Subjects are the registries.
var (
	Applications = []*Kind{{
		Name:     "http",
		Summary:  "an HTTP/1.1 echo server",
		Settings: apphttp.Settings,
		command:  func(site) []string { return []string{"app", "http", "--role", "--listen=127.0.0.1:0"} },
	}, meshApp, burnApp}

	Loads = []*Kind{{
		Name:             "http",
		Summary:          "an HTTP/1.1 client",
		Settings:         loadhttp.Settings,
		check:            makes(loadhttp.OptionsOf),
		command:          httpLoad,
		holdsConnections: func(o param.Values) bool { return o.On("keepalive") },
	}, probeLoad, pushLoad, connectLoad, execLoad}

	Subjects = append([]*Kind{{
		Name:     "kernelmesh",
		Summary:  "the reference eBPF mesh data plane, on the hooks of a control group",
		Settings: slices.Concat(kernelmesh.Settings, []param.Setting{xdsKnob}, serviceKnobs),
		Serves:   true,
		label:    "store",
		trait:    storeTrait,
		check:    checkKernelmesh,
	}, storeSubject, variantSubject}, traceSubjects...)
)

// CopySettings are what applications and loads have beside the settings of their kind, LimitSettings what all parts of a
// spec have.
var (
	CopySettings  = []param.Setting{countKnob}
	LimitSettings = prefixed("limits.", limitKnobs)
)

func prefixed(prefix string, settings []param.Setting) []param.Setting {
	settings = slices.Clone(settings)
	for i := range settings {
		settings[i].Name = prefix + settings[i].Name
	}
	return settings
}

// makes is the check of values that a guest must be able to make options of.
func makes[O any](optionsOf func(param.Values) (O, error)) func(param.Values) error {
	return func(v param.Values) error {
		_, err := optionsOf(v)
		if hint := fault.MendOf(err); hint != "" {
			return fmt.Errorf("%w; %s", err, hint)
		}
		return err
	}
}

// argv are the arguments of tare that start a process of this kind.
func (k *Kind) argv(o param.Values, at site) []string {
	return append(k.command(at), o.Args(k.Settings)...)
}

func httpLoad(at site) []string {
	args := []string{"load", "http", "--role", "--url=http://" + at.address + "/", "--seed=" + strconv.FormatUint(at.seed, 10)}
	if at.rewritten {
		args = append(args, "--source=loopback") // what a service address is rewritten to is on this machine
	}
	return args
}

func kindOf(kinds []*Kind, name string) *Kind {
	i := slices.IndexFunc(kinds, func(k *Kind) bool { return k.Name == name })
	if i < 0 {
		return nil
	}
	return kinds[i]
}

func namesOf(kinds []*Kind) []string {
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = k.Name
	}
	return names
}
