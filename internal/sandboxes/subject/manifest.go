package subject

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"path"
	"regexp"
	"slices"
	"strings"

	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/lib/quantity"
)

// The names of the metrics from which an overhead is computed.
const (
	memoryMetric     = "sandbox_hard_bytes"
	podCPUMetric     = "sandbox_pod_cpus"
	outsideCPUMetric = "sandbox_outside_cpus"
)

// excess holds, for one arm, the memory and CPUs that a sandbox used beyond the baseline of its block, one value for
// each trial, sorted.
type excess struct {
	runtime string
	memory  []float64 // bytes per sandbox
	cpus    []float64
}

// Produce makes a RuntimeClass for each arm whose sandboxes run applications, if there is a baseline of the same
// applications without a sandbox. It makes none for a run with factors, which has no single overhead.
func (guest) Produce(run record.Run, trials []record.Trial) []measured.Product {
	var all []measured.Product
	found := excesses(trials)
	for _, arm := range slices.Sorted(maps.Keys(found)) {
		e := found[arm]
		part, percentile := bound(len(e.memory))
		if part == 0 || len(e.cpus) != len(e.memory) {
			continue
		}
		file := "runtimeclass-" + className(arm) + ".yaml"
		all = append(all, measured.Product{
			File: file, Text: e.manifest(run, arm, percentile),
			Says: fmt.Sprintf("RuntimeClass of %s with a podFixed of %s and %s, which %s of sandboxes as these need at most",
				arm, memoryQuantity(top(e.memory)), cpuQuantity(top(e.cpus)), percentile),
		})
	}
	return all
}

// excesses returns the excess of each arm, from the trials that have the metrics and no factors. Each trial is compared
// with the baseline of its block.
func excesses(trials []record.Trial) map[string]*excess {
	type pair struct{ memory, cpus float64 }
	value := func(t *record.Trial, metric string) (float64, bool) {
		v, has := t.Metrics[metric]
		_, void := t.Validity.VoidedBy(metric)
		return v, has && !void
	}
	tell := func(t *record.Trial) (p pair, e Evidence, ok bool) {
		if t.Validity.Failed != "" || len(t.Factors) > 0 || json.Unmarshal(t.Evidence[name], &e) != nil ||
			e.ReadySeconds == 0 {
			return p, e, false
		}
		var has [3]bool
		var pod, outside float64
		p.memory, has[0] = value(t, memoryMetric)
		pod, has[1] = value(t, podCPUMetric)
		outside, has[2] = value(t, outsideCPUMetric)
		n := float64(len(e.Sandboxes))
		p.memory, p.cpus = p.memory/n, (pod+outside)/n
		return p, e, n > 0 && has == [3]bool{true, true, true}
	}
	base := map[int][]pair{}
	for i := range trials {
		if p, e, ok := tell(&trials[i]); ok && e.Runtime == none && isBaseline(trials[i].Arm) {
			base[trials[i].Block] = append(base[trials[i].Block], p)
		}
	}
	found := map[string]*excess{}
	for i := range trials {
		t := &trials[i]
		p, e, ok := tell(t)
		if !ok || isBaseline(t.Arm) || len(base[t.Block]) == 0 {
			continue
		}
		if found[t.Arm] == nil {
			found[t.Arm] = &excess{runtime: e.Runtime}
		}
		var mean pair
		for _, b := range base[t.Block] {
			mean.memory += b.memory / float64(len(base[t.Block]))
			mean.cpus += b.cpus / float64(len(base[t.Block]))
		}
		x := found[t.Arm]
		x.memory, x.cpus = append(x.memory, p.memory-mean.memory), append(x.cpus, p.cpus-mean.cpus)
	}
	for _, x := range found {
		slices.Sort(x.memory)
		slices.Sort(x.cpus)
	}
	return found
}

func isBaseline(arm string) bool { return arm == record.Direct || arm == record.AA }

// confidence is the confidence with which the percentile of an overhead is at most the declared value.
const confidence = 0.95

// bound returns the largest fraction of a distribution of which, with the confidence above, the largest of n
// measurements is an upper bound. A fraction p lies below the largest of n with probability 1 - p^n, whatever the
// distribution (Wilks, Annals of Mathematical Statistics 12, 1941). If n is too small even for one half, bound returns
// 0.
func bound(n int) (part float64, percentile string) {
	for _, p := range []float64{0.95, 0.9, 0.75, 0.5} {
		if 1-math.Pow(p, float64(n)) >= confidence {
			return p, fmt.Sprintf("%g %%", 100*p)
		}
	}
	return 0, ""
}

// top returns the largest of sorted values.
func top(ordered []float64) float64 { return ordered[len(ordered)-1] }

// quantileOf returns a quantile of sorted values, without interpolation.
func quantileOf(ordered []float64, p float64) float64 {
	return ordered[min(len(ordered)-1, int(p*float64(len(ordered))))]
}

// memoryQuantity formats bytes in Kubernetes' notation, rounded up to MiB.
func memoryQuantity(bytes float64) string {
	return fmt.Sprintf("%dMi", int64(math.Max(0, math.Ceil(bytes/(1<<20)))))
}

func cpuQuantity(cpus float64) string {
	return fmt.Sprintf("%dm", int64(math.Max(0, math.Ceil(cpus*1000))))
}

var notInNames = regexp.MustCompile(`[^a-z0-9-]+`)

// className converts the name of an arm to one that Kubernetes accepts.
func className(arm string) string {
	return strings.Trim(notInNames.ReplaceAllString(strings.ToLower(arm), "-"), "-")
}

// manifest returns the RuntimeClass as YAML, with comments about the origin of its numbers.
func (e *excess) manifest(run record.Run, arm, percentile string) string {
	part, _ := bound(len(e.memory))
	line := func(what string, of []float64, unit string) string {
		return fmt.Sprintf("# %s: median %s, %s quantile %s, largest %s\n", what,
			quantity.Value(quantileOf(of, 0.5), unit), percentile, quantity.Value(quantileOf(of, part), unit),
			quantity.Value(top(of), unit))
	}
	return fmt.Sprintf(`# Made by tare %s from the run %s:
# %d trials of %s, each against the same applications without a sandbox in its block. Memory is hard memory
# (anon + shmem + kernel - reclaimable slab) of all control groups of a sandbox, the shim's among them, which is Tare's
# and stands for that of a container manager. Page cache, which the kernel takes back, is not in it. CPU is what was used
# more under the load of that run.
%s%s# %s of sandboxes like these need at most what is declared, at %g %% confidence: the largest of %d.
apiVersion: node.k8s.io/v1
kind: RuntimeClass
metadata:
  name: %s
handler: %s
overhead:
  podFixed:
    memory: %q
    cpu: %q
`, run.Version, run.ID, len(e.memory), arm, line("memory", e.memory, quantity.Bytes),
		line("CPU", e.cpus, quantity.CPUs),
		percentile, 100*confidence, len(e.memory), className(arm), className(path.Base(e.runtime)),
		memoryQuantity(top(e.memory)),
		cpuQuantity(top(e.cpus)))
}
