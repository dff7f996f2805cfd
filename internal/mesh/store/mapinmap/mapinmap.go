// Package mapinmap implements the stores that keep each record in a separate map, inside a map of maps: naive, the
// starting point of Kmesh's proposal for faster map updates, and pooled, the design that it proposed.
package mapinmap

import (
	"errors"

	"github.com/cilium/ebpf"

	"tare/internal/mesh/store"
	"tare/internal/mesh/store/records"
	"tare/internal/mesh/store/records/keep"
)

func init() {
	store.Register(Naive)
	store.Register(Pooled)
}

// valueSize is the size of every record, in bytes: enough for the largest one.
const valueSize = 1300

// maxRecords is the maximum number of records in the map of maps, as in Kmesh.
const maxRecords = 1 << 20

// inner specifies the map that holds a record.
var inner = &ebpf.MapSpec{Name: "mim_record", Type: ebpf.Array, KeySize: 4, ValueSize: valueSize, MaxEntries: 1}

// need returns the number of records for resources like those of Kmesh's benchmarks: clusters with each endpoint in a
// separate locality, and listeners with five filter chains.
func need(o store.Options) int {
	return 5*int(o.MaxClusters) + 4*int(o.MaxEndpoints) + 43*int(o.MaxListeners)
}

// open makes a store and its maps. room is the number of records that the map of maps can hold besides record 0.
func open(o store.Options, room int, make func(*keep.Kernel, *ebpf.Map) (keep.Records, error)) (store.Store, error) {
	maps, err := store.OpenMaps(loadAsk, map[string]uint32{
		"mim_listeners": o.MaxListeners, "mim_clusters": o.MaxClusters, "mim_records": uint32(room) + 1})
	if err != nil {
		return nil, err
	}
	k := keep.NewKernel()
	r, err := make(k, maps["mim_records"])
	if err != nil {
		return nil, errors.Join(err, store.CloseMaps(maps))
	}
	tops := keep.Tops{Listeners: maps["mim_listeners"], Clusters: maps["mim_clusters"]}
	return keep.New(k, r, tops, records.Single, maps, o, false), nil
}
