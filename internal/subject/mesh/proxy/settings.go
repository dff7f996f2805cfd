package proxy

import (
	"slices"
	"time"

	"tare/internal/fault"
	"tare/internal/param"
)

// Options are what the proxy's process needs to know.
type Options struct {
	Config  string        // a file of resources; or
	XDS     string        // the address of a control plane
	Node    string        // the id by which that knows the proxy
	Workers int           // operating system threads that run Go code at a time
	Garbage int           // how much garbage may gather before it is collected, in per cent of what lives
	Drain   time.Duration // that requests under way have when the process is to end
	Stats   string        // a socket at which whoever connects is told the counters; empty: none
	UID     int           // whom to run as once files are read and listeners listen; 0: nobody else
	GID     int
}

// Settings are what specs and the command line set of the proxy.
var Settings = slices.Concat([]param.Setting{{Name: "workers", Type: param.TypeCount, Min: 1, Max: 1024, Default: "1",
	Doc: "threads that serve at a time, as Envoy's `--concurrency`"}}, ownSettings)

// ownSettings are those that no other proxy has.
var ownSettings = []param.Setting{
	{Name: "gc-percent", Type: param.TypeCount, Min: 10, Max: 10000, Default: "400",
		Doc: "garbage that may gather before it is collected, in per cent of what lives"},
}

// OptionsOf are the options by their settings.
func OptionsOf(v param.Values) (Options, error) {
	o := Options{Workers: v.Int("workers"), Garbage: v.Int("gc-percent")}
	if o.Workers < 1 {
		return o, fault.New(fault.Usage, "workers", "", "there must be at least one worker")
	}
	return o, nil
}
