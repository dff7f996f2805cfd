package store

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
)

// OpenMaps creates maps of a design's program (Design.Ask), given the number of entries of each map by the map's name.
// The caller must close them with CloseMaps.
func OpenMaps(ask func() (*ebpf.CollectionSpec, error), entries map[string]uint32) (map[string]*ebpf.Map, error) {
	spec, err := ask()
	if err != nil {
		return nil, fmt.Errorf("reading the embedded BPF object: %w", err)
	}
	all := map[string]*ebpf.Map{}
	for name, n := range entries {
		spec.Maps[name].MaxEntries = n
		if all[name], err = NewMap(spec.Maps[name]); err != nil {
			delete(all, name)
			return nil, errors.Join(err, CloseMaps(all))
		}
	}
	return all, nil
}

// NewMap creates a map, which the caller must close. Its error is a *fault.Error with a hint.
func NewMap(spec *ebpf.MapSpec) (*ebpf.Map, error) {
	m, err := ebpf.NewMap(spec)
	if err != nil {
		return nil, explain(err, spec.Name)
	}
	return m, nil
}

// CloseMaps closes the maps that OpenMaps returned.
func CloseMaps(all map[string]*ebpf.Map) (err error) {
	for _, m := range all {
		err = errors.Join(err, m.Close())
	}
	return err
}

func explain(err error, name string) error {
	switch {
	case errors.Is(err, unix.EPERM):
		return fault.Wrap(err, fault.Machine, "", "run as root (it needs CAP_BPF)", "making map %s: not permitted", name)
	case errors.Is(err, unix.ENOMEM):
		return fault.Wrap(err, fault.Machine, "", "make the store smaller, or raise the memory limit",
			"making map %s: no memory", name)
	case errors.Is(err, unix.EMFILE):
		return fault.Wrap(err, fault.Machine, "", "raise the limit: ulimit -n", "making map %s: too many open files", name)
	}
	return fault.Wrap(err, fault.Machine, "", "it needs Linux 5.10 with CONFIG_BPF_SYSCALL", "making map %s", name)
}
