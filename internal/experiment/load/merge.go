package load

import (
	"math"

	"tare/internal/lib/stats"
)

// Merge merges the results of the same load at different nodes, of which there must be at least one. It leaves out
// Slices, because each node was judged by its own slices. It keeps Own only of a single result, because only the guest
// knows the form of Own.
func Merge(all []Result) Result {
	sum := Result{
		Generator: all[0].Generator, Mode: all[0].Mode, Arrivals: all[0].Arrivals,
		Errors: map[string]int64{}, Histograms: map[string]string{},
	}
	if len(all) == 1 {
		sum.Own = all[0].Own
	}
	encoded := map[string][]string{}
	finished, counted := int64(0), true
	var running []*Running
	for _, r := range all {
		running = append(running, r.Running)
		sum.Seconds = plus(sum.Seconds, r.Seconds/float64(len(all)))
		sum.TargetRate = plus(sum.TargetRate, r.TargetRate)
		sum.Rate = plus(sum.Rate, r.Rate)
		sum.Intended += r.Intended
		sum.Sent += r.Sent
		sum.Done += r.Done
		sum.Late += r.Late
		if counted = counted && r.Finished != nil; counted {
			finished += *r.Finished
		}
		sum.Unfinished += r.Unfinished
		sum.Connections += r.Connections
		sum.MaxConnections += r.MaxConnections
		sum.MeanConnections = plus(sum.MeanConnections, r.MeanConnections)
		sum.Opened += r.Opened
		sum.Streams = max(sum.Streams, r.Streams)
		sum.CPUSeconds = plus(sum.CPUSeconds, r.CPUSeconds)
		sum.CPUs = plus(sum.CPUs, r.CPUs)
		for kind, n := range r.Errors {
			sum.Errors[kind] += n
		}
		for name, text := range r.Histograms {
			encoded[name] = append(encoded[name], text)
		}
		for name, v := range r.Counts {
			if sum.Counts == nil {
				sum.Counts = map[string]float64{}
			}
			sum.Counts[name] = plus(sum.Counts[name], v)
		}
	}
	if counted {
		sum.Finished = &finished
	}
	sum.Running = MergeRunning(running)
	for name, texts := range encoded {
		if h, err := stats.MergeEncoded(texts...); err == nil && h != nil {
			_ = sum.SetHistogram(name, h) // a histogram that cannot be encoded is missing, with its quantiles
		}
	}
	return sum
}

// plus adds and clips to finite numbers, which JSON can hold: a node can send any number.
func plus(a, b float64) float64 { return max(-math.MaxFloat64, min(a+b, math.MaxFloat64)) }
