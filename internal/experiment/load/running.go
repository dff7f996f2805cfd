package load

import "fmt"

// The names of the histograms of requests that no stall of the machine touched. They are weighted: see Running.Scale.
const (
	LatencyRunning = Latency + "_running"
	ServiceRunning = Service + "_running"
	ConnectRunning = Connect + "_running"
	OwnLagRunning  = OwnLag + "_running"
)

// Running says how the requests of a load were told apart into those that the machine's stalls touched and those they
// did not, and what the second kind can carry. Package load/running is the method.
type Running struct {
	Method         string  `json:"method,omitempty"` // busy-periods, backlog or requests: what a request is judged by
	Level          int     `json:"level,omitempty"`  // of backlog: requests in flight when a queue has recovered
	WatchedSeconds float64 `json:"watched_seconds"`  // of the window, in which stalls were watched for
	QuietSeconds   float64 `json:"quiet_seconds"`    // of them, without a stall

	// Requests of the window that were answered, by what touched them. Unwatched are those whose history began before
	// the watch or ended after it.
	Undisturbed int64 `json:"undisturbed"`
	Disturbed   int64 `json:"disturbed"`
	Unwatched   int64 `json:"unwatched"`
	DoneQuiet   int64 `json:"done_quiet"` // answers that came in the quiet seconds

	Effective     float64 `json:"effective"`      // undisturbed requests of equal weight that would carry as much
	LargestWeight float64 `json:"largest_weight"` // of an undisturbed request; 1 where no correction was needed
	LostShare     float64 `json:"lost_share"`     // of all requests, estimated: none as long in the queue stayed untouched

	// Scale is what a request of average weight counts in the *_running histograms, whose counts are whole numbers.
	Scale int64 `json:"scale,omitempty"`
	// Beyond is, by histogram and quantile, how many requests of equal weight lie beyond it in effect.
	Beyond map[string]map[string]float64 `json:"beyond,omitempty"`

	Withheld string `json:"withheld,omitempty"` // why there is no undisturbed distribution
}

// Share is the part of the watched requests that a stall touched; false where none were watched.
func (r *Running) Share() (float64, bool) {
	if r == nil || r.Undisturbed+r.Disturbed == 0 {
		return 0, false
	}
	return float64(r.Disturbed) / float64(r.Undisturbed+r.Disturbed), true
}

// Tells says whether the undisturbed requests carry a quantile of one of the *_running histograms, of which at least
// some must lie beyond it, and why they do not. What touches a tenth of the tail beyond a quantile moves it; and where
// hardly any request stayed undisturbed, those few came from moments too short for a long queue to build, which a
// median stands better than a tail.
func (r *Running) Tells(histogram, quantile string, q, least float64) (bool, string) {
	if r == nil {
		return false, "the load does not tell disturbed requests apart"
	}
	if r.Withheld != "" {
		return false, r.Withheld
	}
	share, _ := r.Share()
	allowed, lost := 0.9, (1-q)/10
	if q <= 0.5 {
		allowed, lost = 0.97, (1-q)/5
	}
	const rounding = 1e-9
	switch beyond := r.Beyond[histogram][quantile]; {
	case share > allowed:
		return false, fmt.Sprintf("%.0f %% of the requests were disturbed, and the others are no fair sample", 100*share)
	case r.LostShare > lost:
		return false, fmt.Sprintf("about %.2g %% of the requests wait in queues that outlast the machine's quiet times",
			100*r.LostShare)
	case beyond*(1+rounding) < least:
		return false, fmt.Sprintf("%.0f undisturbed requests lie beyond it, and %g must", beyond, least)
	}
	return true, ""
}

// MergeRunning is what the same load did at several nodes, taken together; nil unless all of them say.
func MergeRunning(parts []*Running) *Running {
	sum := &Running{}
	var lost float64
	for i, r := range parts {
		if r == nil {
			return nil
		}
		if i == 0 {
			sum.Method, sum.Level, sum.Scale = r.Method, r.Level, r.Scale
		}
		if sum.Method != r.Method {
			sum.Method = "mixed"
		}
		sum.Level, sum.Scale = max(sum.Level, r.Level), max(sum.Scale, r.Scale)
		sum.WatchedSeconds = plus(sum.WatchedSeconds, r.WatchedSeconds)
		sum.QuietSeconds = plus(sum.QuietSeconds, r.QuietSeconds)
		sum.Undisturbed += r.Undisturbed
		sum.Disturbed += r.Disturbed
		sum.Unwatched += r.Unwatched
		sum.DoneQuiet += r.DoneQuiet
		sum.Effective = plus(sum.Effective, r.Effective)
		sum.LargestWeight = max(sum.LargestWeight, r.LargestWeight)
		lost = plus(lost, r.LostShare*float64(r.Undisturbed+r.Disturbed))
		for h, quantiles := range r.Beyond {
			if sum.Beyond == nil {
				sum.Beyond = map[string]map[string]float64{}
			}
			if sum.Beyond[h] == nil {
				sum.Beyond[h] = map[string]float64{}
			}
			for q, n := range quantiles {
				sum.Beyond[h][q] = plus(sum.Beyond[h][q], n)
			}
		}
		if sum.Withheld == "" {
			sum.Withheld = r.Withheld
		}
	}
	if n := sum.Undisturbed + sum.Disturbed; n > 0 {
		sum.LostShare = lost / float64(n)
	}
	if len(parts) == 0 {
		return nil
	}
	return sum
}
