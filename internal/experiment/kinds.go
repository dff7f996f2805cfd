package experiment

import (
	"errors"
	"slices"
	"strconv"

	"tare/internal/subject/mesh/kernelmesh"
	"tare/internal/subject/tracer"
)

// Kind is one kind of application, load or subject that a spec can name. A new one is one entry in a registry below.
type Kind struct {
	Name    string
	Summary string
	Knobs   []Knob

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
	trait func(Options) string

	check func(Options) error // of the options together; may be nil
	// command is the start of the arguments of tare; those of the knobs follow. Subjects have theirs in package subject.
	command func(site) []string
	// flags are the arguments of the options; null: one for each knob, of its name.
	flags func(Options) []string
	// holdsConnections is of loads: whether it means to have all its connections open at once.
	holdsConnections func(Options) bool
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
		Name:    "http",
		Summary: "an HTTP/1.1 echo server",
		Knobs: []Knob{
			{Name: "body", Type: TypeBytes, Default: "128", Max: 16 << 20, Doc: "size of the answer's body"},
			{Name: "delay", Type: TypeDuration, Default: "0s", Max: 60, Doc: "time the server waits before it answers"},
		},
		command: func(site) []string { return []string{"app", "http", "--role", "--listen=127.0.0.1:0"} },
	}, meshApp, burnApp}

	Loads = []*Kind{{
		Name:    "http",
		Summary: "an HTTP/1.1 client",
		Knobs: []Knob{
			{Name: "mode", Type: TypeWord, Default: "open", Words: []string{"open", "closed"}, Doc: "open: requests start on an absolute schedule; closed: each connection sends again when its answer came"},
			{Name: "rate", Type: TypeNumber, Min: 0.1, Max: 10_000_000, Phrase: map[string]string{"": "at {} requests/s"}, Doc: "requests per second; of open loads, which need it"},
			{Name: "arrivals", Type: TypeWord, Default: "poisson", Words: []string{"poisson", "constant"}, Doc: "how the starts of an open load are spread"},
			{Name: "connections", Type: TypeCount, Default: "64", Min: 1, Max: 100_000, Phrase: map[string]string{"": "with {} connections", "1": "with one connection"}, Doc: "connections open at once, at most; with keepalive, exactly"},
			{Name: "keepalive", Type: TypeSwitch, Default: "true", Doc: "whether a connection serves many requests; false: one connection for each request"},
			{Name: "threads", Type: TypeCount, Min: 1, Max: 1024, Doc: "threads of the generator; it chooses when this is left out"},
			{Name: "timeout", Type: TypeDuration, Default: "5s", Min: 0.001, Max: 600, Doc: "time after which a request counts as failed"},
			{Name: "drain", Type: TypeDuration, Default: "1s", Max: 600, Doc: "time after the window in which answers are still waited for"},
		},
		check: func(o Options) error {
			_, rated := o["rate"]
			switch {
			case o["mode"] == "open" && !rated:
				return errors.New(`an open load needs a "rate", in requests per second`)
			case o["mode"] == "closed" && rated:
				return errors.New(`a closed load goes as fast as answers come: "rate" has no meaning for it`)
			}
			return nil
		},
		command:          httpLoad,
		holdsConnections: func(o Options) bool { return o["keepalive"] == "true" },
	}, probeLoad, pushLoad, connectLoad, execLoad}

	Subjects = append([]*Kind{{
		Name:    "kernelmesh",
		Summary: "the reference eBPF mesh data plane, on the hooks of a control group",
		Knobs: append([]Knob{
			{Name: "store", Type: TypeText, Doc: "design of the store that holds its configuration, as under `subject: store`; its own choice when left out"},
			{Name: "fail", Type: TypeWord, Words: kernelmesh.Fails, Doc: "what becomes of connections before its first configuration; its own choice when left out"},
			{Name: "peer", Type: TypeWord, Words: kernelmesh.Peers, Doc: "what applications see as the peer of a connection; its own choice when left out"},
			{Name: "work", Type: TypeWord, Words: kernelmesh.Works(), Doc: "what its process does by itself between the edges: replace configuration as fast as it goes, or time the changes that a control plane pushes; nothing when left out"},
			xdsKnob,
			{Name: "steps", Type: TypeCount, Default: "0", Max: 1 << 23, Phrase: map[string]string{"": "with {} extra steps in each program"}, Doc: "extra steps in each run of its connect programs: a planted weight"},
			{Name: "sockops-steps", Type: TypeCount, Default: "0", Max: 1 << 23, Doc: "the same in its sockops program"},
			{Name: "max-services", Type: TypeCount, Min: 1, Max: 1 << 20, Doc: "services that its maps hold; its own choice when left out"},
			{Name: "max-endpoints", Type: TypeCount, Min: 1, Max: 1 << 24, Doc: "endpoints that its maps hold; its own choice when left out"},
		}, serviceKnobs...),
		Serves: true,
		label:  "store",
		trait:  storeTrait,
		check:  checkKernelmesh,
	}, storeSubject, variantSubject}, traceSubjects...)
)

// argv are the arguments of tare that start a process of this kind.
func (k *Kind) argv(o Options, at site) []string {
	if k.flags != nil {
		return append(k.command(at), k.flags(o)...)
	}
	return append(k.command(at), o.args(k.Knobs)...)
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
