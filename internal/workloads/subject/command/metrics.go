package command

import (
	"slices"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/lib/quantity"
)

// Finder is a subject whose processes Tare finds, whether or not events are counted.
type Finder interface{ FindsProcesses() }

// Resident is evidence with the memory of a subject's processes.
type Resident interface {
	Resident() (now, peak uint64) // the sum of the resident sets, and of the peak of each process, in bytes
	GroupPeak() *uint64           // the most memory charged to the processes' group, in bytes; nil if unknown
}

// Metrics are the memory metrics of every subject that is an external program.
var Metrics = []measured.Metric{
	{
		Definition: metric.Definition{
			Name: "memory_peak_bytes", Unit: quantity.Bytes, Rank: metric.RankMemory, Pool: metric.Mean, Cost: true,
			Family: "memory",
			Better: metric.Lower, Needs: measured.NeedMemory,
			How: "Most memory of any kind, page cache included, of the control group of a tracer or command (memory.peak, or " +
				"max_usage of v1)." +
				measured.NoSubject,
		},
		Value: inBytes(Resident.GroupPeak),
	},
	{
		Definition: metric.Definition{
			Name: "rss_bytes", Unit: quantity.Bytes, Rank: metric.RankOther, Pool: metric.Mean, Cost: true,
			Family: "rss", Clause: "has {} resident",
			Better: metric.Lower, Needs: measured.NeedMemory, Headline: true,
			How: "Sum of the resident sets (VmRSS) of the processes of a tracer or command. Shared pages count in " +
				"each." + measured.NoSubject,
		},
		Value: inBytes(residentNow),
	},
	{
		Definition: metric.Definition{
			Name: "rss_peak_bytes", Unit: quantity.Bytes, Rank: metric.RankOther, Pool: metric.Mean, Cost: true,
			Family: "rss",
			Better: metric.Lower, Needs: measured.NeedMemory,
			How: "The same of the highest since each began (VmHWM)." +
				measured.NoSubject,
		},
		Value: inBytes(residentPeak),
	},
}

// inBytes returns a function that gets a number of bytes from the evidence about the subject's processes. In an arm
// without a subject the number is 0, provided that the subject of another arm has the metric.
func inBytes(of func(Resident) *uint64) func(*measured.Measured) (float64, bool) {
	return func(m *measured.Measured) (float64, bool) {
		if m.Subject == nil {
			return 0, m.Events != nil || slices.ContainsFunc(m.Setup.Subjects(), findsProcesses)
		}
		for _, found := range m.Evidence {
			if r, ok := found.(Resident); ok && of(r) != nil {
				return float64(*of(r)), true
			}
		}
		return 0, false
	}
}

func findsProcesses(p *kind.Part) bool {
	_, finds := p.Kind.(Finder)
	return finds
}

func residentNow(r Resident) *uint64 {
	now, _ := r.Resident()
	return some(now)
}

func residentPeak(r Resident) *uint64 {
	_, peak := r.Resident()
	return some(peak)
}

// some returns nil for 0, which means that the subject's processes were not found.
func some(bytes uint64) *uint64 {
	if bytes == 0 {
		return nil
	}
	return &bytes
}
