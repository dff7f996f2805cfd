package kernelmesh

import (
	"fmt"
	"math"

	"github.com/cilium/ebpf"

	"tare/internal/lib/fault"
	_ "tare/internal/mesh/store/designs" // registers the designs that programs exist for
)

// objects are the embedded BPF objects, by the design of the store that they query.
var objects = map[string]func() (*ebpf.CollectionSpec, error){
	"naive":    loadMapinmap,
	"pooled":   loadMapinmap,
	"sized":    loadSized,
	"value":    loadValue,
	"snapshot": loadSnapshot,
}

// load loads the programs with the store's maps, and creates the other maps that they use. All numbers of the store's
// clusters are less than ids.
func (d *DataPlane) load(o Options, ids uint32) error {
	read, ok := objects[d.design.Name]
	if !ok {
		return fault.New(fault.Internal, "--store", "", "there are no programs for the store %s", d.design.Name)
	}
	spec, err := read()
	if err != nil {
		return fmt.Errorf("reading the embedded BPF object: %w", err)
	}
	variables := map[string]any{snapshotVarTareSteps: o.Steps, snapshotVarTareSockopsSteps: o.SockopsSteps,
		snapshotVarKmIds: ids}
	for _, a := range o.Sources {
		if a.Is4() {
			variables[snapshotVarKmSource4] = a.As4()
		} else {
			variables[snapshotVarKmSource6] = a.As16()
		}
	}
	for name, value := range variables {
		if err := spec.Variables[name].Set(value); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	cpus, err := ebpf.PossibleCPU()
	if err != nil {
		return fmt.Errorf("counting CPUs: %w", err)
	}
	counts := uint64(ids) * uint64(cpus)
	if counts > math.MaxUint32 {
		return fault.New(fault.Usage, "--max-services", "lower it",
			"counters of %d clusters on each of %d CPUs do not fit into one map", ids, cpus)
	}
	spec.Maps[snapshotMapKmClusters].MaxEntries = ids
	spec.Maps[snapshotMapKmCounts].MaxEntries = uint32(counts)
	if o.Peer == PeerEndpoint {
		for _, name := range namesPeers {
			delete(spec.Programs, name)
		}
	}
	given := map[string]*ebpf.Map{}
	for name, m := range d.store.Maps() {
		if s := spec.Maps[name]; s != nil {
			s.MaxEntries = m.MaxEntries()
			given[name] = m
		}
	}
	loaded, err := ebpf.NewCollectionWithOptions(spec, ebpf.CollectionOptions{MapReplacements: given})
	if err != nil {
		return err
	}
	d.programs, d.maps = loaded.Programs, loaded.Maps
	return nil
}
