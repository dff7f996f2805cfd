// Package fleettest records which resources the proxies of a fleet have, for tests of control planes.
package fleettest

import (
	"sync"

	"google.golang.org/protobuf/proto"
)

// Has holds the digests of a proxy's resources by type and name.
type Has map[string]map[string]uint64

// Kept holds what each proxy of a fleet has. Its method Keep is meant for the fleet's Options.OnHave.
type Kept struct {
	mu  sync.Mutex
	has map[int]Has
}

// Keep replaces the recorded resources of a proxy.
func (k *Kept) Keep(proxy int, has map[string]map[string]uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.has == nil {
		k.has = map[int]Has{}
	}
	k.has[proxy] = has
}

// Has returns the resources of a proxy, or nil if it has none yet.
func (k *Kept) Has(proxy int) Has {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.has[proxy]
}

// Digests returns the Has of a proxy that has the given resources and no others. digest is the method Digest of the
// proxy's fleet. The control plane under test must encode resources deterministically, as Tare's does.
func Digests(digest func(url string, value []byte) (string, uint64, error), messages []proto.Message) (Has, error) {
	all := Has{}
	for _, m := range messages {
		url := "type.googleapis.com/" + string(m.ProtoReflect().Descriptor().FullName())
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
		if err != nil {
			return nil, err
		}
		name, sum, err := digest(url, b)
		if err != nil {
			return nil, err
		}
		if all[url] == nil {
			all[url] = map[string]uint64{}
		}
		all[url][name] = sum
	}
	return all, nil
}
