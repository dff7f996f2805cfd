package kernelmesh

import (
	"slices"
	"strings"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

// memoryMetrics are the metrics of maps and memory. The metrics of readings before and after the load are reported only
// if an arm has then-services, and the others only if an arm has services.
var memoryMetrics = []measured.Metric{
	{
		Definition: metric.Definition{
			Name: "map_charged_share", Unit: quantity.Part, Rank: metric.RankMemory, Pool: metric.Mean,
			Family: "map",
			Needs:  measured.NeedMemory,
			How: "Part of the bytes of the subject's maps that the kernel charges to the subject's own control group." +
				ifAsked,
		},
		Value: asked(mapCharged),
	},
	declaredBytes("map_declared_bytes", false,
		"The same maps, each once, by declared entries x (key + value), in pages, as Linux 5.11 to 6.3 reports every "+
			"map."),
	declaredBytes("map_by_program_bytes", true,
		"The same, with each map counted once for every program that uses it, as in a sum over a list of programs with "+
			"their maps."),
	before("map", "map_before_bytes", "map_bytes", (*measured.Measured).MapBytes),
	after("map", "map_after_bytes", "map_bytes", "`map_bytes`"+left, (*measured.Measured).MapBytes),
	before("memory", "memory_kernel_before_bytes", "memory_kernel_bytes", measured.Memory(measured.KernelMemory)),
	after("memory", "memory_kernel_after_bytes", "memory_kernel_bytes", "`memory_kernel_bytes`"+left,
		measured.Memory(measured.KernelMemory)),
	after("memory", "memory_hard_after_bytes", "memory_hard_bytes", "`memory_hard_bytes` then",
		measured.Memory(func(m *ledger.Memory) *int64 { return m.Hard })),
}

func declaredBytes(name string, byProgram bool, how string) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: name, Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true, Better: metric.Lower,
			Needs: measured.NeedMemory, Family: "map", How: how + ifAsked + measured.NoSubject,
		},
		Value: asked(func(m *measured.Measured) (float64, bool) { return mapDeclared(m, byProgram) }),
	}
}

// anySubject reports whether one of the experiment's data planes has a setting. Other kinds of subjects have settings
// with the same names.
func anySubject(s *kind.Setup, key string) bool {
	return slices.ContainsFunc(s.Subjects(), func(p *kind.Part) bool {
		_, own := p.Kind.(guest)
		return own && p.Options[key] != ""
	})
}

// asked wraps value, which is then reported only if an arm sets the number of services.
func asked(value func(*measured.Measured) (float64, bool)) func(*measured.Measured) (float64, bool) {
	return func(m *measured.Measured) (float64, bool) {
		if !anySubject(m.Setup, servicesKey) {
			return 0, false
		}
		return value(m)
	}
}

// ifAsked ends the descriptions of metrics whose value asked wraps.
const ifAsked = " Only in experiments in which an arm has `services`."

// left ends the descriptions of metrics of the reading after the load.
const left = " after the load, with `then-services` services left"

// before returns the counterpart, in the reading before the load, of the metric that the third argument names.
func before(family, name, of string, value func(*measured.Measured) (float64, bool)) measured.Metric {
	m := further(family, name, readingBefore, "`"+of+"` before the load; absent without `then-services`", value)
	m.Before = of
	return m
}

// after returns the counterpart, in the reading after the load, of the metric that the third argument names.
func after(family, name, of, what string, value func(*measured.Measured) (float64, bool)) measured.Metric {
	m := further(family, name, readingAfter, what, value)
	m.After = of
	return m
}

// further returns a metric of a reading other than the window's.
func further(family, name, reading, what string, value func(*measured.Measured) (float64, bool)) measured.Metric {
	return measured.Metric{
		Definition: metric.Definition{
			Name: name, Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true,
			Better: metric.Lower, Needs: measured.NeedRest, Family: family, How: "As " + what + "." + measured.NoSubject,
		},
		Value: func(m *measured.Measured) (float64, bool) {
			if m.Subject == nil && anySubject(m.Setup, thenKey) {
				return 0, true
			}
			l, ok := m.Further[reading]
			if !ok {
				return 0, false
			}
			other := *m
			other.Ledger = l
			return value(&other)
		},
	}
}

// mapCharged returns the share of the maps' bytes that is charged to the subject. It returns false if there are no
// maps, or if the kernel does not report the size or the control group of one of them.
func mapCharged(m *measured.Measured) (float64, bool) {
	ids := m.SubjectMaps()
	own, all := 0.0, 0.0
	for _, mp := range m.Ledger.Maps {
		if !ids[mp.ID] {
			continue
		}
		if mp.Bytes == nil || mp.ChargedTo == nil {
			return 0, false
		}
		all += float64(*mp.Bytes)
		if m.RoleOf(*mp.ChargedTo) == kind.Subject {
			own += float64(*mp.Bytes)
		}
	}
	return own / all, all > 0
}

// mapDeclared sums the declared sizes of the subject's maps: each once, or, if byProgram, once for each of the
// subject's programs that use it. It returns false if a map, the programs, or the number of copies of a per-CPU map are
// unknown.
func mapDeclared(m *measured.Measured, byProgram bool) (float64, bool) {
	ids := m.SubjectMaps()
	programs, ok := m.Programs()
	found, total := 0, 0.0
	for _, mp := range m.Ledger.Maps {
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
		if perCPU(mp) && m.Ledger.Host.PossibleCPUs == 0 {
			return 0, false
		}
		total += float64(times) * declared(mp, m.Ledger.Host.PossibleCPUs)
	}
	return total, ok && found == len(ids)
}

// declared returns what Linux 5.11 to 6.3 reports as the size of a map: bpf_map_memory_footprint and
// bpf_map_value_size of kernel/bpf/syscall.c. A per-CPU map has a value for each of the possible CPUs.
func declared(m ledger.Map, possible int) float64 {
	const page = 4096
	round := func(n, to float64) float64 { return float64(int64((n+to-1)/to)) * to }
	value := float64(m.ValueBytes)
	if perCPU(m) {
		value = round(value, 8) * float64(possible)
	}
	return round(float64(m.MaxEntries)*round(float64(m.KeyBytes)+value, 8), page)
}

func perCPU(m ledger.Map) bool {
	return strings.HasPrefix(m.Type, "percpu_") || strings.HasPrefix(m.Type, "lru_percpu_")
}
