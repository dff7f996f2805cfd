package subject

import (
	"cmp"
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
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/scale/ledger"
)

// The names of the metrics from which an overhead is computed.
const (
	memoryMetric     = "sandbox_hard_bytes"
	podCPUMetric     = "sandbox_pod_cpus"
	outsideCPUMetric = "sandbox_outside_cpus"
)

// overheadMetrics lists these names.
var overheadMetrics = []string{memoryMetric, podCPUMetric, outsideCPUMetric}

// excess holds, for one arm, the memory and CPUs that a sandbox used beyond the baseline of its block: one value for
// each planned trial, in ascending order.
type excess struct {
	runtime   string // empty unless applications ran in sandboxes
	sandboxes int    // the largest number of sandboxes in one trial
	memory    []float64
	cpus      []float64
	spared    int      // number of trials lost to other programs or the hypervisor, or without a baseline
	lost      []string // why other trials have no value
}

// Produce makes a RuntimeClass for each arm whose sandboxes run applications, if there is a baseline of the same
// applications without a sandbox. Clusters add the overhead in a RuntimeClass to each pod, so if the trials do not
// support a value, the product contains only the reason. A run with factors has no single overhead, and no products.
func (guest) Produce(run record.Run, trials []record.Trial) []measured.Product {
	var all []measured.Product
	found := excesses(trials)
	for _, arm := range slices.Sorted(maps.Keys(found)) {
		e := found[arm]
		if e.runtime == "" {
			continue
		}
		made := measured.Product{File: "runtimeclass-" + className(arm) + ".yaml", Says: e.unfit()}
		if made.Says == "" {
			_, percentile := bound(len(e.memory))
			made.Text = e.manifest(run, arm, percentile)
			made.Says = fmt.Sprintf("RuntimeClass of %s with a podFixed of %s and %s: %s of sandboxes like these need at "+
				"most this memory, and %s at most this CPU time", arm, memoryQuantity(top(e.memory)), cpuQuantity(top(e.cpus)),
				percentile, percentile)
		}
		all = append(all, made)
	}
	return all
}

// unfit returns why the values do not bound what a sandbox needs; empty if they do.
func (e *excess) unfit() string {
	n := len(e.memory)
	part, _ := bound(n)
	switch {
	case e.sandboxes > 1:
		return fmt.Sprintf("a trial has %d sandboxes and measures their mean, which bounds none of them; weigh one "+
			"application at a time", e.sandboxes)
	case len(e.lost) > 0: // any of them may have needed more than all others
		return fmt.Sprintf("there is no value of %d of %d trials, which may have needed the most: %s", len(e.lost),
			n+e.spared+len(e.lost), e.lost[0])
	case part == 0:
		return fmt.Sprintf("%s are too few to bound what half of all sandboxes need, at %g %% confidence",
			quantity.Counted(n, "trial"), 100*confidence)
	}
	return ""
}

// excesses returns the excess of each arm, from the trials without factors, if there is a baseline.
func excesses(trials []record.Trial) map[string]*excess {
	type planned struct {
		arm   string
		block int
	}
	var all lists.Groups[planned, *record.Trial]
	for i := range trials {
		if t := &trials[i]; len(t.Factors) == 0 && t.Validity.Failed != record.Interrupted {
			all.Add(planned{t.Arm, t.Block}, t)
		}
	}
	base := map[int][]need{}
	for at, attempts := range all.All() {
		for _, t := range attempts {
			if n, e, why := needOf(t); why == "" && e.Runtime == none && isBaseline(at.arm) {
				base[at.block] = append(base[at.block], n)
				break
			}
		}
	}
	found := map[string]*excess{}
	for at, attempts := range all.All() {
		if len(base) > 0 && !isBaseline(at.arm) {
			x := cmp.Or(found[at.arm], new(excess))
			x.add(attempts, base[at.block])
			found[at.arm] = x
		}
	}
	for _, x := range found {
		slices.Sort(x.memory)
		slices.Sort(x.cpus)
	}
	return found
}

// add adds a planned trial: the first of its attempts that has a value, less the mean of the baseline in its block.
func (x *excess) add(attempts []*record.Trial, base []need) {
	lost := ""
	for _, t := range attempts {
		n, e, why := needOf(t)
		if e.ReadySeconds > 0 && e.Runtime != none {
			x.runtime, x.sandboxes = e.Runtime, max(x.sandboxes, len(e.Sandboxes))
		}
		if why == "" && len(base) > 0 {
			for _, b := range base {
				n.memory -= b.memory / float64(len(base))
				n.cpus -= b.cpus / float64(len(base))
			}
			x.memory, x.cpus = append(x.memory, n.memory), append(x.cpus, n.cpus)
			return
		}
		if why != "" && !byOthers(t) {
			lost = cmp.Or(lost, why)
		}
	}
	if lost == "" {
		x.spared++
		return
	}
	x.lost = append(x.lost, lost)
}

// need holds the memory, in bytes, and the CPUs that a sandbox used.
type need struct{ memory, cpus float64 }

// needOf returns what a sandbox of the trial used on average, and the trial's evidence. If the usage is unknown, why is
// the reason; otherwise why is empty.
func needOf(t *record.Trial) (n need, e Evidence, why string) {
	if err := json.Unmarshal(t.Evidence[name], &e); err != nil || e.ReadySeconds == 0 || len(e.Sandboxes) == 0 {
		why = "no application was ready"
	}
	for _, m := range overheadMetrics {
		_, has := t.Metrics[m]
		r, void := t.Validity.VoidedBy(m)
		switch {
		case t.Validity.Failed != "":
			why = "failed: " + t.Validity.Failed
		case void:
			why = r.Gate + ": " + r.Message
		case !has || !t.Validity.Stands(m):
			why = cmp.Or(why, m+" is not known")
		}
	}
	for _, w := range t.Warned() {
		if w.Code == "out-of-memory" { // with enough memory, the sandbox would have used more
			why = cmp.Or(why, w.Message)
		}
	}
	of := float64(len(e.Sandboxes))
	return need{t.Metrics[memoryMetric] / of, (t.Metrics[podCPUMetric] + t.Metrics[outsideCPUMetric]) / of}, e, why
}

// byOthers reports whether a trial was lost to the hypervisor or to other programs alone.
func byOthers(t *record.Trial) bool {
	others := func(c ledger.Cause) bool { return c == ledger.Hypervisor || c == ledger.Neighbour }
	voiding := slices.DeleteFunc(slices.Clone(t.Validity.Reasons), func(r record.Reason) bool {
		return !slices.ContainsFunc(overheadMetrics, r.VoidsMetric)
	})
	if t.Validity.Failed != "" || len(voiding) == 0 {
		return others(t.Validity.Cause)
	}
	return !slices.ContainsFunc(voiding, func(r record.Reason) bool { return !others(r.Cause) })
}

func isBaseline(arm string) bool { return arm == record.Direct || arm == record.AA }

// confidence is the confidence with which the percentile of an overhead is at most the declared value.
const confidence = 0.95

// bound returns the largest p of 95 %, 90 %, 75 % and 50 % for which the largest of n measurements is, with the
// confidence above, an upper bound of a fraction p of the distribution. It is such a bound with probability 1 - p^n,
// whatever the distribution (Wilks, Annals of Mathematical Statistics 12, 1941). If n is too small even for one half,
// bound returns 0.
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
	spared := ""
	if e.spared > 0 {
		spared = fmt.Sprintf("# Left out: %s lost to other programs or the hypervisor, or without a baseline in the block.\n",
			quantity.Counted(e.spared, "trial"))
	}
	return fmt.Sprintf(`# Made by tare %s from the run %s:
# %d trials of %s, each against the same application without a sandbox in its block. Memory is hard memory
# (anon + shmem + kernel - reclaimable slab) of all control groups of a sandbox, the shim's among them, which is Tare's
# and stands for that of a container manager. Page cache, which the kernel takes back, is not in it. CPU is what was used
# more under the load of that run.
%s%s%s# %s of sandboxes like these need at most the memory that is declared, and %s at most the CPU time, each at %g %%
# confidence: the largest of %d.
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
		line("CPU", e.cpus, quantity.CPUs), spared,
		percentile, percentile, 100*confidence, len(e.memory), className(arm), className(path.Base(e.runtime)),
		memoryQuantity(top(e.memory)),
		cpuQuantity(top(e.cpus)))
}
