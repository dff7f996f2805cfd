package experiment

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/fault"
	"tare/internal/ledger"
	"tare/internal/metric"
	"tare/internal/quantity"
	"tare/internal/record"
	"tare/internal/subject/mesh/store"
)

// The knobs of arms whose subject serves services. They are the engine's: the subject sees them only as the services file and the sizes of
// its maps.
const (
	knobServices = "services"
	knobThen     = "then-services"
	knobFit      = "fit"
	knobProtocol = "protocol"
	knobEach     = "endpoints"
)

// withServices is how a number of services reads in a sentence.
var withServices = map[string]string{"": "with {} services", "1": "with one service"}

var serviceKnobs = []Knob{
	{Name: knobServices, Type: TypeCount, Min: 1, Max: 1_000_000, Phrase: withServices, Doc: "services in all: those of the applications, and as many more as it takes, with endpoints that nobody listens on; as many as there are applications when left out"},
	{Name: knobEach, Type: TypeCount, Min: 1, Max: maxEach, Doc: "endpoints of each of these others; 1 when left out"},
	{Name: knobProtocol, Type: TypeWord, Words: []string{"tcp", "udp"}, Doc: "protocol of these others: `udp` for a load of kind `connect`, and then their endpoints are loopback addresses; `tcp` when left out"},
	{Name: knobThen, Type: TypeCount, Min: 1, Max: 1_000_000, Doc: "services that are left when the load has ended: the subject reads its services again. Memory is then read twice more, before the load began and after this"},
	{Name: knobFit, Type: TypeSwitch, Doc: "true: maps for exactly the services and endpoints that there are, instead of `max-services` and `max-endpoints`"},
}

// defaultMaxServices is what kernelmesh takes where it is told nothing; a test holds it against the subject's own.
const defaultMaxServices = 1024

// checkKernelmesh checks the options of the data plane together.
func checkKernelmesh(o Options) error {
	if o["store"] != "" {
		if _, _, err := store.Lookup(o["store"]); err != nil {
			return fmt.Errorf("%w; %s", err, fault.MendOf(err))
		}
	}
	return checkServices(o)
}

// checkServices sees that the maps hold what they are to hold.
func checkServices(o Options) error {
	n := max(o.float(knobServices), o.float(knobThen))
	if o[knobFit] == "true" {
		if _, sized := o["max-services"]; sized {
			return errors.New(`"fit" makes the maps as large as there are services: "max-services" has no meaning beside it`)
		}
		if o.float(knobThen) > max(o.float(knobServices), 1) {
			return fmt.Errorf(`%q is more than %q, and the maps fit no more than these`, knobThen, knobServices)
		}
		return nil
	}
	most := o.float("max-services")
	if most == 0 {
		most = defaultMaxServices
	}
	if n > most {
		return fmt.Errorf(`%g services are more than the %g that its maps hold: raise "max-services", or write fit: true`, n, most)
	}
	return nil
}

// subjectOptions are the options that the subject itself has, with the sizes of its maps where they are to fit.
func subjectOptions(o Options, services int) Options {
	own := o.clone()
	for _, k := range serviceKnobs {
		delete(own, k.Name)
	}
	if o[knobFit] == "true" {
		own["max-services"] = strconv.Itoa(services)
		own["max-endpoints"] = strconv.Itoa(services * fillerOf(o).each) // those of applications have one
	}
	return own
}

// serviceIP is the address of the n-th service, from 1, in 10.96.0.0/12, the range that clusters give their services. It means something
// only inside the trial's control group.
func serviceIP(n int) string {
	return fmt.Sprintf("10.%d.%d.%d:80", 96+n>>16, n>>8&0xff, n&0xff)
}

// fillerIP is the endpoint of the n-th service that no application is behind, in 198.18.0.0/15, which is set aside for benchmarks (RFC 2544).
func fillerIP(n int) string {
	return fmt.Sprintf("198.%d.%d.%d:%d", 18+n>>16&1, n>>8&0xff, n&0xff, 8080+n>>17)
}

// maxEach bounds the endpoints of a service that no application is behind.
const maxEach = 1000

// filler is what the services are that no application is behind.
type filler struct {
	each     int    // endpoints
	protocol string // empty: tcp
}

func fillerOf(o Options) filler {
	return filler{max(1, int(o.float(knobEach))), o[knobProtocol]}
}

// endpoint is the address of its n-th endpoint, counted over all services. A UDP socket connects to a loopback address on any machine, whatever
// routes there are.
func (f filler) endpoint(n int) string {
	if f.protocol == "udp" {
		return fmt.Sprintf("127.%d.%d.%d:%d", 128+n>>16&0x3f, n>>8&0xff, n&0xff, 8080+n>>22)
	}
	return fillerIP(n)
}

// serviceCount is how many services an arm has: never fewer than the applications, which loads must find.
func (x *trial) serviceCount(o Options, knob string) int { return max(int(o.float(knob)), len(x.apps)) }

// writeServices writes the services file: the applications first, then as many others as it takes.
func (x *trial) writeServices(file string, count int) error {
	var b strings.Builder
	b.WriteString("services:\n")
	if count == 0 && len(x.apps) == 0 {
		b.WriteString("  []\n")
	}
	service := func(address, protocol string) {
		fmt.Fprintf(&b, "  - address: %s\n", strconv.Quote(address))
		if protocol != "" {
			fmt.Fprintf(&b, "    protocol: %s\n", protocol)
		}
		b.WriteString("    endpoints:\n")
	}
	endpoint := func(address string) { fmt.Fprintf(&b, "      - address: %s\n", strconv.Quote(address)) }
	for _, name := range slices.Sorted(maps.Keys(x.apps)) {
		service(x.serviceAddress(name), "")
		endpoint(x.apps[name])
	}
	f := filler{each: 1}
	if arm := x.spec.Subject(x.arm); arm != nil {
		f = fillerOf(arm.Options)
	}
	for n := len(x.apps) + 1; n <= count; n++ {
		service(serviceIP(n), f.protocol)
		for i := range f.each {
			endpoint(f.endpoint((n-1)*f.each + i + 1)) // from 1
		}
	}
	if err := record.ReplaceFile(file, []byte(b.String())); err != nil {
		return fault.Wrap(err, fault.Machine, file, "make room, or name another directory with --out", "the subject's services cannot be written")
	}
	return nil
}

// The names of the further readings of a trial (record.Trial.Further).
const (
	readingBefore = "before" // all services, and no load yet
	readingAfter  = "after"  // the load has ended, and services were taken away
)

// settle is how long the kernel gets to free what was deleted: elements of hash maps wait for RCU grace periods.
const settle = 200 * time.Millisecond

// furtherReadings says whether memory is to be read before and after the load in this arm.
func (x *trial) furtherReadings() bool {
	arm := x.spec.Subject(x.arm)
	return arm != nil && arm.Options[knobThen] != ""
}

// readBefore reads memory before the load begins.
func (x *trial) readBefore(ctx context.Context, t *record.Trial) error {
	if !x.furtherReadings() {
		return nil
	}
	return x.read(ctx, t, readingBefore)
}

// readAfter takes services away while the subject runs, and reads memory once they have gone.
func (x *trial) readAfter(ctx context.Context, t *record.Trial) error {
	if !x.furtherReadings() {
		return nil
	}
	if err := x.writeServices(filepath.Join(x.dir, servicesFile), x.serviceCount(x.spec.Subject(x.arm).Options, knobThen)); err != nil {
		return err
	}
	if err := x.subject.cmd.Process.Signal(unix.SIGHUP); err != nil {
		return fmt.Errorf("telling %s to read its services again: %w", x.arm, err)
	}
	if err := x.subject.reloaded(ctx); err != nil {
		return err
	}
	if err := sleep(ctx, settle); err != nil {
		return err
	}
	return x.read(ctx, t, readingAfter)
}

// read opens a window only to close it: memory is what it is at the second edge.
func (x *trial) read(ctx context.Context, t *record.Trial, name string) error {
	w, err := x.machine.OpenWindow()
	if err != nil {
		return fmt.Errorf("opening the window %s the load: %w", name, err)
	}
	slept := sleep(ctx, 10*time.Millisecond) // a window of no length has no rates
	l, err := w.Close()
	if err = errors.Join(slept, err); err != nil {
		return err
	}
	if t.Further == nil {
		t.Further = map[string]*ledger.Ledger{}
	}
	t.Further[name] = l
	return nil
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// reloaded waits until the process says that it has read its services again.
func (p *process) reloaded(ctx context.Context) error {
	timer := time.NewTimer(readyTimeout)
	defer timer.Stop()
	for {
		select {
		case line := <-p.logs:
			switch {
			case strings.HasPrefix(line, "applied "):
				return nil
			case strings.HasPrefix(line, "applying ") || strings.HasPrefix(line, "the services stay "):
				return fmt.Errorf("%s read its services again, and %s", p.name, line)
			}
		case <-p.ended:
			return p.failure("while it read its services again")
		case <-timer.C:
			return p.withLastWords(fmt.Errorf("%s did not read its services again within %v", p.name, readyTimeout))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// memoryMetrics speak of maps and memory where an experiment asks about them: where an arm says how many services it has.
var memoryMetrics = []Metric{
	{Definition: metric.Definition{Name: "memory_kernel_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needMemory, Headline: true, How: "Of the subject's control group at the end of the window: kernel memory, in which the kernel counts the maps and programs that it charges to the group. Here and below, only in experiments in which an arm has `services`." + noSubject},
		value: asked(memory(kernelMemory))},
	{Definition: metric.Definition{Name: "map_charged_share", Unit: quantity.Part, Rank: metric.RankMemory, Pool: metric.Mean, Needs: needMemory, How: "Part of the bytes of the subject's maps that the kernel charges to the subject's own control group."},
		value: asked((*measurement).mapCharged)},
	{Definition: metric.Definition{Name: "map_declared_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needMemory, How: "The same maps, each once, by the number of entries that they were made for and not by what is in them: entries x (key + value), in pages. Linux 5.11 to 6.3 gives this for every map." + noSubject},
		value: asked(func(m *measurement) (float64, bool) { return m.mapDeclared(false) })},
	{Definition: metric.Definition{Name: "map_by_program_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needMemory, How: "The same, each map once for every program that uses it: what the sum over a list of programs with the memory of their maps comes to." + noSubject},
		value: asked(func(m *measurement) (float64, bool) { return m.mapDeclared(true) })},
	further("map_before_bytes", readingBefore, "`map_bytes` before the load began", (*measurement).mapBytes),
	further("map_after_bytes", readingAfter, "`map_bytes` after the load had ended and the subject was left with `then-services` services", (*measurement).mapBytes),
	further("memory_kernel_before_bytes", readingBefore, "`memory_kernel_bytes` before the load began", memory(kernelMemory)),
	further("memory_kernel_after_bytes", readingAfter, "`memory_kernel_bytes` after the load had ended and the subject was left with `then-services` services", memory(kernelMemory)),
	further("memory_hard_after_bytes", readingAfter, "`memory_hard_bytes` then", memory(func(m *ledger.Memory) *int64 { return m.Hard })),
}

func kernelMemory(m *ledger.Memory) *int64 {
	if m.Kernel == nil {
		return nil
	}
	v := int64(*m.Kernel)
	return &v
}

// asked gives a value only where an arm says how many services it has.
func asked(value func(*measurement) (float64, bool)) func(*measurement) (float64, bool) {
	return func(m *measurement) (float64, bool) {
		for _, arm := range m.spec.Subjects() {
			if arm.Options[knobServices] != "" {
				return value(m)
			}
		}
		return 0, false
	}
}

// further is a metric of another reading than that of the window.
func further(name, reading, what string, value func(*measurement) (float64, bool)) Metric {
	return Metric{Definition: metric.Definition{
		Name: name, Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true, Better: metric.Lower, Needs: needRest, How: "As " + what + "." + noSubject,
	}, value: func(m *measurement) (float64, bool) {
		for _, arm := range m.spec.Subjects() {
			if m.subject == nil && arm.Options[knobThen] != "" {
				return 0, true
			}
		}
		l, ok := m.further[reading]
		if !ok {
			return 0, false
		}
		other := *m
		other.ledger = l
		return value(&other)
	}}
}

// mapCharged is false where the kernel does not tell for one of the maps.
func (m *measurement) mapCharged() (float64, bool) {
	ids := m.subjectMaps()
	own, all := 0.0, 0.0
	for _, mp := range m.ledger.Maps {
		if !ids[mp.ID] {
			continue
		}
		if mp.Bytes == nil || mp.ChargedTo == nil {
			return 0, false
		}
		all += float64(*mp.Bytes)
		if m.roleOf(*mp.ChargedTo) == "subject" {
			own += float64(*mp.Bytes)
		}
	}
	return own / all, all > 0
}

// mapDeclared adds up the subject's maps by their declared size, each once or once for each of the subject's programs that use it.
func (m *measurement) mapDeclared(byProgram bool) (float64, bool) {
	ids := m.subjectMaps()
	programs, ok := m.programs()
	found, total := 0, 0.0
	for _, mp := range m.ledger.Maps {
		if !ids[mp.ID] {
			continue
		}
		found++
		times := 1
		if byProgram {
			times = 0
			for _, p := range programs {
				if slices.Contains(p.MapIDs, mp.ID) {
					times++
				}
			}
		}
		total += float64(times) * declared(mp, m.ledger.Host.CPUs)
	}
	return total, ok && found == len(ids)
}

// declared is what Linux 5.11 to 6.3 calls the size of a map: bpf_map_memory_footprint and bpf_map_value_size of kernel/bpf/syscall.c.
func declared(m ledger.Map, cpus int) float64 {
	const page = 4096
	round := func(n, to float64) float64 { return float64(int64((n+to-1)/to)) * to }
	value := float64(m.ValueBytes)
	if strings.HasPrefix(m.Type, "percpu_") || strings.HasPrefix(m.Type, "lru_percpu_") {
		value = round(value, 8) * float64(cpus)
	}
	return round(float64(m.MaxEntries)*round(float64(m.KeyBytes)+value, 8), page)
}
