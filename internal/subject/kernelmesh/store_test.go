package kernelmesh

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"unsafe"

	"github.com/cilium/ebpf"

	"tare/internal/fault"
)

// read is the services as a program would find them: each with the weight that its slots give to each endpoint, in parts of 2^32 slots.
func (s *mapStore) read(t *testing.T) map[string]map[string]uint64 {
	t.Helper()
	services := map[string]map[string]uint64{}
	var key kernelmeshServiceKey
	var id uint32
	for all := s.maps.KmServices.Iterate(); all.Next(&key, &id); {
		word := atomic.LoadUint64((*uint64)(unsafe.Pointer(&s.words[8*int(id)])))
		shares := map[string]uint64{}
		for i := range uint32(word >> 24 & 0xffff) {
			var slot kernelmeshSlot
			if err := s.maps.KmSlots.Lookup(uint32(word&0xffffff)+i, &slot); err != nil {
				t.Fatal(err)
			}
			add := func(id uint32, share uint64) {
				var e kernelmeshEndpoint
				if err := s.maps.KmEndpoints.Lookup(id, &e); err != nil {
					t.Fatal(err)
				}
				if e.Epoch == 0 {
					t.Fatalf("a slot names endpoint %d, which is retired", id)
				}
				shares[fmt.Sprint(e.Address)] += share
			}
			add(slot.Own, uint64(slot.Threshold))
			add(slot.Alias, 1<<32-uint64(slot.Threshold))
		}
		services[fmt.Sprint(key.Address, key.Protocol)] = shares
	}
	return services
}

// TestStore applies random configurations and reads each back as a program would. At the end nothing may be lost.
func TestStore(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	const maxServices, maxEndpoints = 24, 280
	d, err := Load(Options{MaxServices: maxServices, MaxEndpoints: maxEndpoints})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	random := rand.New(rand.NewPCG(5, 6))
	at := func(kind, n int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, byte(kind), 0, byte(n)}), uint16(1+n))
	}
	refused := 0
	var applied []Service
	for range 150 {
		var desired []Service
		for i := range 25 {
			switch {
			case random.IntN(3) == 0:
				continue
			case i < len(applied) && random.IntN(2) == 0 && applied[i].Address == at(0, i):
				desired = append(desired, applied[i])
				continue
			}
			service := Service{Address: at(0, i), Protocol: []Protocol{TCP, UDP}[i%2]}
			for j := range random.IntN(16) {
				service.Endpoints = append(service.Endpoints, Endpoint{at(1+i, j), uint32(1 + random.IntN(10))})
			}
			desired = append(desired, service)
		}
		before := d.store.read(t)
		changes, err := d.Store().Apply(context.Background(), desired)
		after := d.store.read(t)
		if err != nil {
			refused++
			if fault.CodeOf(err) != fault.Usage || fmt.Sprint(before) != fmt.Sprint(after) {
				t.Fatalf("refused (%v), but the services changed", err)
			}
			continue
		}
		if n := changes.Added + changes.Changed + changes.Unchanged; n != len(desired) || len(after) != n {
			t.Fatalf("%d services, %v; %d in the map", len(desired), changes, len(after))
		}
		for _, service := range desired {
			shares := after[fmt.Sprint(toKernel(service.Address), uint32(service.Protocol))]
			total, sum := uint64(0), uint64(0)
			for _, e := range service.Endpoints {
				total += uint64(e.Weight)
			}
			for _, e := range service.Endpoints {
				share := shares[fmt.Sprint(toKernel(e.Address))]
				want := uint64(e.Weight) << 32 * uint64(len(service.Endpoints)) / total
				if diff := int64(share - want); diff > 1<<16 || diff < -1<<16 {
					t.Fatalf("service %s: endpoint %s has %d of %d slots, want %d", service, e.Address, share, len(service.Endpoints), want)
				}
				sum += share
			}
			if sum != uint64(len(service.Endpoints))<<32 {
				t.Fatalf("service %s: its slots name other endpoints too", service)
			}
		}
		applied = desired
	}
	if refused == 0 || refused > 100 {
		t.Errorf("%d of 150 configurations did not fit; the test wants some of both", refused)
	}
	if _, err := d.Store().Apply(context.Background(), nil); err != nil {
		t.Fatal(err)
	}
	s := d.store
	if n := int(s.endpointID.next) - len(s.endpointID.returned); n != 0 || len(s.retired) != 0 {
		t.Errorf("%d endpoint ids are lost, %d retired", n, len(s.retired))
	}
	if n := int(s.serviceIDs.next) - len(s.serviceIDs.returned); n != 0 {
		t.Errorf("%d service ids are lost", n)
	}
	if len(s.slots.free) != 1 || s.slots.free[0].size != maxEndpoints {
		t.Errorf("slots are lost: free is %v", s.slots.free)
	}
}

func TestApplyRefuses(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	d, err := Load(Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	good := Service{service4, TCP, []Endpoint{{other4, 1}}}
	for name, services := range map[string][]Service{
		"twice":          {good, good},
		"protocol":       {{service4, 1, nil}},
		"no address":     {{Protocol: TCP}},
		"weights":        {{service4, TCP, []Endpoint{{other4, 0}}}},
		"endpoint twice": {{service4, TCP, []Endpoint{{other4, 1}, {other4, 1}}}},
		"family":         {{service6, TCP, []Endpoint{{other4, 1}}}},
	} {
		if _, err := d.Store().Apply(context.Background(), services); fault.CodeOf(err) != fault.Usage {
			t.Errorf("%s: got %v", name, err)
		}
	}
	ended, end := context.WithCancel(context.Background())
	end()
	if _, err := d.Store().Apply(ended, []Service{good}); err == nil {
		t.Error("a context that has ended: no error")
	}
	if n := len(d.store.read(t)); n != 0 {
		t.Errorf("%d services after nothing but refusals", n)
	}
}

// BenchmarkApply replaces all endpoints of 1000 services of 20.
func BenchmarkApply(b *testing.B) {
	d, err := Load(Options{MaxEndpoints: 1 << 16})
	if err != nil {
		b.Fatal(err)
	}
	defer d.Close()
	sets := make([][]Service, 2)
	for n := range sets {
		for i := range 1000 {
			s := Service{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80), Protocol: TCP}
			for j := range 20 {
				s.Endpoints = append(s.Endpoints, Endpoint{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(j), byte(i >> 8), byte(i)}), uint16(8080+n)), 1})
			}
			sets[n] = append(sets[n], s)
		}
	}
	for i := 0; b.Loop(); i++ {
		if _, err := d.Store().Apply(context.Background(), sets[i%2]); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(sum(b, d)), "map-bytes")
}

// sum is the memory of the maps that programs use, as the kernel tells.
func sum(b *testing.B, d *DataPlane) (bytes uint64) {
	m := &d.objects.kernelmeshMaps
	for _, m := range []*ebpf.Map{m.KmConnections, m.KmEndpoints, m.KmFlows, m.KmOrigins, m.KmProgCounts, m.KmServices, m.KmSlots, m.KmSvcCounts, m.KmTables} {
		info, err := m.Info()
		if err != nil {
			b.Fatal(err)
		}
		n, _ := info.Memlock()
		b.Logf("%-15s %9d bytes", info.Name, n)
		bytes += n
	}
	return bytes
}
