package engine

import (
	"maps"
	"math"
	"slices"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/scale/ledger"
)

// limitedMeasurement is goodMeasurement with a limit of 0.125 CPU on its load.
func limitedMeasurement(t *testing.T) *measured.Measured {
	t.Helper()
	m := goodMeasurement(t)
	for i := range m.Ledger.Cgroups {
		if g := &m.Ledger.Cgroups[i]; g.Role == "load" {
			g.Periods, g.ThrottledPeriods = ptr(uint64(20)), ptr(uint64(15))
		}
	}
	limit(m, 0.125, 0)
	m.Ledger.Host = ledger.Host{SamplerPeriod: ptr(0.002), IRQTime: ptr(false)}
	m.Ledger.CPU = ledger.CPU{Capacity: 4, Idle: 0.8, Steal: 0.2}
	return m
}

// limit gives the groups of the load and the application of goodMeasurement CPU limits; 0 is none.
func limit(m *measured.Measured, load, app float64) {
	roles := map[string]measured.GroupRole{}
	for _, g := range m.Ledger.Cgroups {
		switch r := (measured.GroupRole{Role: kind.Role(g.Role), Charged: g.Charged}); r.Role {
		case kind.Load:
			r.Limit, r.Limited = load, load > 0
			roles[g.Path] = r
		case kind.Application:
			r.Limit, r.Limited = app, app > 0
			roles[g.Path] = r
		case kind.Subject:
			r.Limit, r.Limited = 1, true // of no interest
			roles[g.Path] = r
		}
	}
	m.SetRoles(roles)
}

func TestLimitedMetrics(t *testing.T) {
	absent := math.NaN()
	none := map[string]float64{"limit_cpus": absent, "limited_cpus": absent, "limited_share": absent,
		"limited_most_share": absent, "limited_throttled_share": absent,
		"limited_bpf_cpus": absent, "limited_cpu_seconds_per_connection": absent, "bpf_cpus": absent, "cpu_busy_share": 0.75}
	for _, c := range []struct {
		name   string
		change func(*measured.Measured)
		want   map[string]float64
	}{
		{"softirq inside", func(*measured.Measured) {}, map[string]float64{
			"limit_cpus": 0.125, "limited_cpus": 0.2 / 2.002, "limited_share": 0.2 / 2.002 / 0.125,
			"limited_most_share": 0.2 / 2.002 / 0.125, "limited_throttled_share": 0.75,
			"limited_bpf_cpus": 16 * 0.002 / 2.002, "limited_cpu_seconds_per_connection": 0.1 / 1001, "bpf_cpus": 0.003,
			"bpf_cpu_share": 0.006006 / 4, "cpu_busy_share": 0.75,
			"app_cpu_share": 0.29 / 4, "load_cpu_share": 0.2 / 4}},
		{"softirq apart", func(m *measured.Measured) { m.Ledger.Host.IRQTime = ptr(true) },
			map[string]float64{"limited_bpf_cpus": 14 * 0.002 / 2.002}},
		{"idle CPUs stolen", func(m *measured.Measured) { m.Ledger.CPU.IdleStolen, m.Ledger.CPU.Steal = ptr(0.3), 0.4 },
			map[string]float64{"cpu_busy_share": (4 - (0.8 - 0.3) - 0.4) / 4}},
		{"baseline", func(m *measured.Measured) { m.Subject = nil },
			map[string]float64{"limited_bpf_cpus": 0, "bpf_cpus": 0, "bpf_cpu_share": 0, "limited_cpus": 0.2 / 2.002}},
		{"no sampler", func(m *measured.Measured) { m.Ledger.Host.SamplerPeriod = nil },
			map[string]float64{"limited_bpf_cpus": absent, "limited_cpus": 0.2 / 2.002}},
		{"no counters of throttling", func(m *measured.Measured) { m.Ledger.Cgroups[5].Periods = nil },
			map[string]float64{"limited_throttled_share": absent}},
		{"no CPU counter of one of two", func(m *measured.Measured) {
			limit(m, 0.125, 1)
			m.Ledger.Cgroups[6].CPUSeconds = nil
		}, map[string]float64{"limited_most_share": absent, "limited_share": absent}},
		{"no limit", func(m *measured.Measured) { limit(m, 0, 0) }, none},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := limitedMeasurement(t)
			c.change(m)
			got := m.Values()
			for name, want := range c.want {
				v, ok := got[name]
				if ok == math.IsNaN(want) || ok && math.Abs(v-want) > 0.002*math.Abs(want) {
					t.Errorf("%s is %v (there: %v), want %v", name, v, ok, want)
				}
			}
		})
	}
}

func TestLimitedCounts(t *testing.T) {
	for _, c := range []struct {
		apart  ledger.Host
		inside int
	}{{ledger.Host{IRQTime: ptr(false)}, 16}, {ledger.Host{IRQTime: ptr(true)}, 14},
		{ledger.Host{IRQTimeOn: []string{"tare-trial-p1-t1"}}, 14}, {ledger.Host{IRQTimeOn: []string{"another"}}, 16}} {
		m := limitedMeasurement(t)
		m.Ledger.Host = c.apart
		got := m.Counts()
		maps.DeleteFunc(got, func(name string, _ record.Count) bool {
			return name == "bpf_client_share" || name == "bpf_server_share"
		})
		want := map[string]record.Count{
			"bpf_limited_task_share": {In: 14, Of: 20}, "bpf_limited_softirq_share": {In: 2, Of: 20},
			"bpf_limited_inside_share": {In: c.inside, Of: 20},
		}
		if !maps.Equal(got, want) {
			t.Errorf("interrupts apart %+v: got %v, want %v", c.apart, got, want)
		}
	}
}

func TestHeld(t *testing.T) {
	for _, c := range []struct {
		asked string
		trips bool
	}{{"0", false}, {"0.7", false}, {"0.8", true}} {
		m := limitedMeasurement(t)
		m.Setup.Gates["held"] = c.asked
		got := slices.DeleteFunc(m.Judge(), func(r record.Reason) bool { return r.Gate != "held" })
		if len(got) > 0 != c.trips || c.trips && got[0].Seen != 0.75 {
			t.Errorf("held %s: %+v", c.asked, got)
		}
	}
}
