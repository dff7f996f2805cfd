package sidecar

import (
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
)

// hardMemory is the metric of which another reading is told.
const hardMemory = "memory_hard_bytes"

// metrics are those of all kinds of proxies.
var metrics = []measured.Metric{{
	Definition: metric.Definition{
		Name: "memory_hard_fewer_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true,
		Better: metric.Lower, Needs: measured.NeedRest, Family: "memory_fewer", Headline: true,
		Clause: "still holds {} of hard memory after services have gone",
		How: "`memory_hard_bytes` of sidecar proxies and their control plane after the load had ended and the " +
			"mesh was left with `then-services` services. Left out without that setting.",
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

// afterwards is the trial as it was read after services had gone; nil where that was not.
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

// Metrics is measured.Teller's.
func (Guest) Metrics() []measured.Metric { return metrics }
