package proxy

import (
	"time"

	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/mesh/controlplane/injection/probes"
)

// Options are what the proxy's process needs to know.
type Options struct {
	Config string // a file of resources; or
	XDS    string // the address of a control plane
	Node   string // the id by which that knows the proxy
	// Credentials is the directory of what the proxy proves itself by to the control plane, as a control plane of Tare
	// writes it (tare controlplane --credentials): it connects by mutual TLS then. Empty: in the clear.
	Credentials string
	// Identity has it get its certificates by a token of the pod's service account instead (authority.Agent), as the
	// proxy of a pod does, from a control plane of these roots, as PEM.
	Identity  string
	TokenFile string
	Roots     []byte
	// Probes has it answer the probes of a table at an address, by asking a host; empty: nowhere.
	Probes    string
	Table     probes.Table
	ProbeHost string
	Workers   int           // operating system threads that run Go code at a time
	Garbage   int           // how much garbage may gather before it is collected, in per cent of what lives
	Drain     time.Duration // that requests under way have when the process is to end
	Stats     string        // a socket at which whoever connects is told the counters; empty: none
	UID       int           // whom to run as once files are read and listeners listen; 0: nobody else
	GID       int
}

// Settings are what specs and the command line set of the proxy.
var Settings = []param.Setting{{Name: "workers", Type: param.TypeCount, Min: 1, Max: 1024, Default: "1",
	Doc: "threads that serve at a time, as Envoy's `--concurrency`"}, garbage}

var garbage = param.Setting{Name: "gc-percent", Type: param.TypeCount, Min: 10, Max: 10000, Default: "400",
	Doc: "garbage that may gather before it is collected, in per cent of what lives"}

// settingControl is what configures the proxy as a subject.
const (
	settingControl = "control"
	byFile         = "file"
	byXDS          = "xds"
)

// ownSettings are those of the subject that no other proxy has.
var ownSettings = []param.Setting{garbage, {
	Name: settingControl, Type: param.TypeWord, Default: byFile, Words: []string{byFile, byXDS},
	Phrase: map[string]string{byFile: "configured by a file", byXDS: "configured over xDS"},
	Doc: "what configures the proxies: a file, as HAProxy and nginx, or a control plane over xDS as Envoy, which is then " +
		"a component of the subject",
}}

// OptionsOf are the options by their settings.
func OptionsOf(v param.Values) (Options, error) {
	o := Options{Workers: v.Int("workers"), Garbage: v.Int("gc-percent")}
	if o.Workers < 1 {
		return o, fault.New(fault.Usage, "workers", "", "there must be at least one worker")
	}
	return o, nil
}
