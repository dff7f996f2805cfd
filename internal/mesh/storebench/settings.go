package storebench

import (
	"cmp"
	"errors"

	"tare/internal/lib/param"
	"tare/internal/mesh/store"
)

// Settings are a store's settings in specs and on the command line.
var Settings = []param.Setting{
	{Name: "store", Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "design, or design:variant: `naive`, `pooled` (`ahead`, `background`, `ondemand`), " +
			"`sized` (`replace`, `ordered`), `value`, `snapshot`"},
	{Name: "resource", Type: param.TypeWord, Default: Cluster, Words: Resources, Phrase: map[string]string{"": "for a {}"},
		Doc: "what is flushed: a cluster (10 localities of one endpoint, circuit breakers) or a listener (5 filter " +
			"chains)"},
	{Name: "operation", Type: param.TypeWord, Default: Replace, Words: Operations, Phrase: flushed,
		Doc: "what a flush does; `lookup`: instead, a program in the kernel looks up the services"},
	{Name: "from", Type: param.TypeWord, Default: Struct, Words: Forms, Phrase: decoded,
		Doc: "form of a change: decoded, or an xDS resource on the wire"},
	{Name: "services", Type: param.TypeCount, Min: 1, Max: MaxServices,
		Phrase: map[string]string{"": "with {} services", "1": "with one service"},
		Doc:    "services in the store beside what is flushed, each a cluster and a listener"},
	{Name: "endpoints", Type: param.TypeCount, Min: 1, Max: MaxEndpoints,
		Doc: "endpoints of each of these services; 20 when left out"},
	{Name: "max-clusters", Type: param.TypeCount, Min: 1, Max: 1 << 20,
		Doc: "clusters that the store is made for"},
	{Name: "max-listeners", Type: param.TypeCount, Min: 1, Max: 1 << 20,
		Doc: "listeners that the store is made for"},
	{Name: "max-endpoints", Type: param.TypeCount, Min: 1, Max: 1 << 24,
		Doc: "endpoints of all clusters that the store is made for"},
}

// OptionsOf converts settings to options. It returns an error if settings contradict each other, or if the store is
// unknown.
func OptionsOf(v param.Values) (Options, error) {
	o := Options{
		Store: v["store"], Resource: v["resource"], Operation: v["operation"], From: v["from"],
		Services: v.Int("services"), Endpoints: cmp.Or(v.Int("endpoints"), DefaultEndpoints),
		Max: store.Options{
			MaxClusters: uint32(v.Int("max-clusters")), MaxListeners: uint32(v.Int("max-listeners")),
			MaxEndpoints: uint32(v.Int("max-endpoints")),
		},
	}
	switch {
	case o.Store == "":
		return o, errors.New(`a store needs a "store", the name of a design`)
	case o.Operation == Lookup && o.Services == 0:
		return o, errors.New(`a lookup needs services: give "services"`)
	}
	_, _, err := store.Lookup(o.Store)
	return o, err
}

// Phrases for the settings of a flush, used in sentences such as "for a cluster inserted from decoded form".
var (
	flushed = map[string]string{Insert: "inserted", Replace: "replaced", Delete: "deleted"}
	decoded = map[string]string{Struct: "from decoded form", Bytes: "from bytes on the wire"}
)
