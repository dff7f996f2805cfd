package sidecar

import (
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
)

// hardMemory is the name of the metric that is reported a second time, from the reading after services were removed.
const hardMemory = "memory_hard_bytes"

// metrics are the metrics of all kinds of proxies.
var metrics = []measured.Metric{{
	Definition: metric.Definition{
		Name: "memory_hard_fewer_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true,
		Better: metric.Lower, Needs: measured.NeedRest, Family: "memory_fewer", Headline: true,
		Clause: "still holds {} of hard memory after services have gone",
		How: "`memory_hard_bytes` of sidecar proxies and their control plane after the load, with `then-services` " +
			"services left. Absent without that setting.",
	},
	Value: func(m *measured.Measured) (float64, bool) {
		hard, fewer := afterwards(m)
		if fewer == nil || m.Subject == nil {
			return 0, false
		}
		return hard.Value(fewer)
	},
	Component: func(m *measured.Measured, component string) (float64, bool) {
		hard, fewer := afterwards(m)
		if fewer == nil {
			return 0, false
		}
		return hard.Component(fewer, component)
	},
}}

// afterwards returns the metric of hard memory, and the trial's measurements with the ledger from after services were
// removed. The latter is nil if no services were removed.
func afterwards(m *measured.Measured) (hard measured.Metric, fewer *measured.Measured) {
	l := m.Further[readingFewer]
	hard, known := measured.Find(hardMemory)
	if l == nil || !known {
		return hard, nil
	}
	other := *m
	other.Ledger = l
	return hard, &other
}

// Metrics implements measured.Teller.
func (Guest) Metrics() []measured.Metric { return metrics }
