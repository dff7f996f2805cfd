package load

import (
	"fmt"
	"math"
	"strings"
)

// The names of the histograms of requests that no stall of the machine touched. They are weighted: see Running.Scale.
const (
	LatencyRunning = Latency + "_running"
	ServiceRunning = Service + "_running"
	ConnectRunning = Connect + "_running"
	OwnLagRunning  = OwnLag + "_running"
)

// Running says how the requests of a load were divided into those that a stall of the machine touched and the others,
// and which statistics the untouched requests support. Package load/running describes the method.
type Running struct {
	Method         string  `json:"method,omitempty"` // busy-periods, backlog or requests: how a request is judged
	Level          int     `json:"level,omitempty"`  // for backlog: requests in flight when a queue has recovered
	WatchedSeconds float64 `json:"watched_seconds"`  // the part of the window in which stalls were watched for
	QuietSeconds   float64 `json:"quiet_seconds"`    // the part of WatchedSeconds without a stall

	// Undisturbed and Disturbed count the answered requests of the window whose history no stall, or a stall, overlapped.
	// Unwatched counts answered requests whose history began before the watch or ended after it.
	Undisturbed int64 `json:"undisturbed"`
	Disturbed   int64 `json:"disturbed"`
	Unwatched   int64 `json:"unwatched"`
	DoneQuiet   int64 `json:"done_quiet"` // answers that came in the quiet seconds

	// Effective is the number of requests of equal weight that would carry as much information as the undisturbed ones.
	Effective     float64 `json:"effective"`
	LargestWeight float64 `json:"largest_weight"` // the largest weight of an undisturbed request; 1: none was corrected
	// LostShare estimates the fraction of all requests that wait in queues so long that no request with such a history
	// stayed untouched.
	LostShare float64 `json:"lost_share"`

	// Scale is the total count of a *_running histogram divided by the number of answered requests of the window, for
	// which the undisturbed ones stand. It is large, because counts are integers and weights are not.
	Scale int64 `json:"scale,omitempty"`
	// Beyond is, by histogram and quantile, the effective number of requests of equal weight beyond the quantile, and
	// Bursts the effective number of independent histories to which those requests belong. Older records have no Bursts.
	Beyond map[string]map[string]float64 `json:"beyond,omitempty"`
	Bursts map[string]map[string]float64 `json:"bursts,omitempty"`

	Withheld string `json:"withheld,omitempty"` // why there is no undisturbed distribution
}

// Share returns the fraction of the watched requests that a stall touched, and false if none were watched.
func (r *Running) Share() (float64, bool) {
	if r == nil || r.Undisturbed+r.Disturbed == 0 {
		return 0, false
	}
	return float64(r.Disturbed) / float64(r.Undisturbed+r.Disturbed), true
}

// Rank returns the quantile of the *_running histograms that corresponds to the quantile q of all requests. Lost
// requests wait in queues that outlast the quiet times, and count as slower than all others. The result is 1 or more
// if q lies among them.
func (r *Running) Rank(q float64) float64 {
	if r.LostShare >= 1 {
		return 1
	}
	return q / (1 - r.LostShare)
}

// Tells reports whether the undisturbed requests support a quantile of one of the *_running histograms, and why not.
// least is the number of requests that must lie beyond the quantile. If hardly any stayed undisturbed, the few that did
// came from moments too short for a long queue to build; a median tolerates more of that than a tail.
func (r *Running) Tells(histogram, quantile string, q, least float64) (bool, string) {
	if r == nil {
		return false, "the load does not distinguish disturbed requests"
	}
	if r.Withheld != "" {
		return false, r.Withheld
	}
	share, _ := r.Share()
	allowed := 0.9
	if q <= 0.5 {
		allowed = 0.97
	}
	const rounding = 1e-9
	switch beyond := r.Beyond[histogram][quantile]; {
	case share > allowed:
		return false, fmt.Sprintf("%.0f %% of the requests were disturbed, and the others are not a fair sample", 100*share)
	case r.Rank(q) >= 1:
		return false, fmt.Sprintf("about %.2g %% of the requests wait in queues that outlast the machine's quiet times",
			100*r.LostShare)
	case beyond*(1+rounding) < least:
		return false, fmt.Sprintf("%.0f undisturbed requests lie beyond it, and %g are needed", beyond, least)
	}
	return true, ""
}

// leastBursts is the least mean number of independent bursts of slow requests beyond a quantile in a trial. With fewer,
// most trials miss the bursts that stalls hit, and the median of trials is too low: in simulations (package
// load/running) by up to 50 % at one or two, and by no more than its own error at five.
const leastBursts = 5

// mostLost returns the fraction of all requests that may be lost on average for the quantile q to be reported. Lost
// requests count as slower than all others, because they wait in the longest queues. That is nearly right for p99 and
// above, and less certain for lower quantiles.
func mostLost(q float64) float64 {
	if q < 0.99 {
		return (1 - q) / 10
	}
	return (1 - q) / 2
}

// TellsOf reports whether the trials of an arm support a quantile of a *_running histogram, and why not. least is how
// many requests must lie beyond the quantile in each trial. Trials that do not support it are not missing at random,
// because a slow trial loses more requests, so limit is the largest fraction that may be missing. Bursts and lost
// requests depend on how slow a trial was by chance, so they are judged by their mean over all trials of the level,
// whatever the arm. If no trial's record has bursts, the quantile counts as supported.
func TellsOf(level, arm []*Running, histogram, quantile string, q, least, limit float64) (bool, string) {
	var bursts, lost, n float64
	for _, r := range level {
		if of, known := r.Bursts[histogram][quantile]; known {
			bursts, n = bursts+of, n+1
		}
		lost += min(r.LostShare, 1) / float64(len(level))
	}
	if n == 0 {
		return true, ""
	}
	silent, why := 0, ""
	for _, r := range arm {
		if ok, because := r.Tells(histogram, quantile, q, least); !ok {
			silent, why = silent+1, because
		}
	}
	switch {
	case float64(silent) > limit*float64(len(arm)):
		return false, fmt.Sprintf("%d of %d trials do not support it, such as one in which %s", silent, len(arm), why)
	case lost > mostLost(q):
		return false, fmt.Sprintf("about %.2g %% of the requests wait in queues that outlast the machine's quiet times",
			100*lost)
	case bursts < leastBursts*n:
		return false, fmt.Sprintf("the slow requests of a trial come in %.1f bursts, which a stall hits or misses as a "+
			"whole, and %d are needed", math.Floor(10*bursts/n)/10, leastBursts)
	}
	return true, ""
}

// RunningOf merges the Running of the loads to which a *_running histogram applies: the loads that have the
// corresponding histogram of all requests. It returns nil if one of these loads has no Running.
func RunningOf(loads map[string]Result, histogram string) *Running {
	var parts []*Running
	for _, r := range loads {
		if _, has := r.Histograms[strings.TrimSuffix(histogram, "_running")]; has {
			parts = append(parts, r.Running)
		}
	}
	return MergeRunning(parts)
}

// MergeRunning merges the Running of several loads, or of one load at several nodes. It returns nil if one of them is
// nil, or if there are none.
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
		addTails(&sum.Beyond, r.Beyond)
		addTails(&sum.Bursts, r.Bursts)
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

// addTails adds numbers by histogram and quantile.
func addTails(sum *map[string]map[string]float64, more map[string]map[string]float64) {
	for h, quantiles := range more {
		if *sum == nil {
			*sum = map[string]map[string]float64{}
		}
		if (*sum)[h] == nil {
			(*sum)[h] = map[string]float64{}
		}
		for q, n := range quantiles {
			(*sum)[h][q] = plus((*sum)[h][q], n)
		}
	}
}
