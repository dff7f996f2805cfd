// Package ledger is the account of one machine over one window: who used what, and the remainder that nobody explains.
// It holds types and arithmetic only. Its JSON form is a contract (schema tare.ledger/v1): other tools parse it.
//
// Units are seconds and bytes. A pointer field is null where this kernel lacks the counter; null is not zero.
package ledger

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Schema names the JSON form.
const Schema = "tare.ledger/v1"

// Ledger is the account.
type Ledger struct {
	Schema string `json:"schema"`
	Host   Host   `json:"host"`
	Window Window `json:"window"`
	CPU    CPU    `json:"cpu"`
	// Programs and Maps are nil where they could not be read, and empty where there are none.
	Programs []Program `json:"programs"`
	Maps     []Map     `json:"maps"`
	Cgroups  []Cgroup  `json:"cgroups"`
	// Workloads are what has been charged to workloads, with the tare on their behalf; empty where nothing has. Settle
	// makes them.
	Workloads []Workload `json:"workloads"`
	Tare      *Tare      `json:"tare"` // nil where nothing is charged to a workload or to tare
	// Components are what each component used; nil, and left out, where AddComponents was not called.
	Components []Component `json:"components,omitzero"`
	// Sandboxes are the containers, pods and virtual machines of the machine; nil, and left out, where nobody looked.
	Sandboxes []Sandbox `json:"sandboxes,omitzero"`
	Noise     *Noise    `json:"noise"` // null where there was no witness
	Self      Self      `json:"self"`
	Warnings  []Warning `json:"warnings"`
}

// Host says which machine, and with what it was measured.
type Host struct {
	Hostname      string   `json:"hostname"`
	Kernel        string   `json:"kernel"`
	CPUs          int      `json:"cpus"` // online
	CPUModel      string   `json:"cpu_model"`
	CgroupMode    string   `json:"cgroup_mode"` // v1, v2 or hybrid
	Clocksource   string   `json:"clocksource"`
	Sampler       string   `json:"sampler"`                // cycles, cpu-clock; empty when there were no samples
	SamplerPeriod *float64 `json:"sampler_period_seconds"` // time between two samples of one CPU
	// whether interrupts are taken out of tasks' and cgroups' CPU time; null where that cannot be known
	IRQTime *bool  `json:"irq_time_accounting"`
	Tare    string `json:"tare"` // version of the scale
}

// Window is the span of time; every counter was read at its two edges.
type Window struct {
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	Seconds float64   `json:"seconds"` // by CLOCK_MONOTONIC

	// EdgeSeconds is how long it took to read the counters of an edge, of the slower one: they are of times that far
	// apart, so what is unexplained may be off by it on every CPU. 0 in ledgers that do not say.
	EdgeSeconds float64 `json:"edge_seconds,omitempty"`
}

// CPU is the budget. Two views of the same capacity:
//
//	idle - idle_stolen + steal + attributed + unexplained = capacity                               (who)
//	idle - idle_stolen + steal + user + system + softirq + irq ~ capacity, by the kernel's tick    (mode)
//
// The first is exact by construction and is the one that closes; unexplained may be negative, by the grain of the
// counters.
type CPU struct {
	Capacity    float64   `json:"capacity_seconds"`
	Idle        float64   `json:"idle_seconds"` // idle and iowait
	User        float64   `json:"user_seconds"` // user and nice
	System      float64   `json:"system_seconds"`
	Softirq     float64   `json:"softirq_seconds"`
	IRQ         float64   `json:"irq_seconds"`
	Steal       float64   `json:"steal_seconds"`       // by the witness where there is one, else by the kernel's counter
	Attributed  float64   `json:"attributed_seconds"`  // on a line of Lines
	Unexplained float64   `json:"unexplained_seconds"` // capacity - (idle - idle_stolen) - steal - attributed
	Lines       []CPULine `json:"lines"`               // the parts of attributed
	// BPFUnsplit is run time of eBPF programs that could not be split. It ran inside the other lines (groups, root,
	// kernel threads, interrupts), nobody knows in which, so it stands there and is no summand of its own: the ebpf
	// line does not hold it. The scale's own programs are not in it. null where run time was not counted.
	BPFUnsplit *float64 `json:"bpf_unsplit_seconds"`
	// IdleStolen is the part of steal that the kernel counts as idle as well: the CPU was idle when it was taken away.
	// It is the middle of what is possible, and off by at most IdleStolenError. Null without a witness: it is then not
	// known, and unexplained is too low by it.
	IdleStolen      *float64 `json:"idle_stolen_seconds"`
	IdleStolenError *float64 `json:"idle_stolen_error_seconds"`
	// ChargedStolen is the most of a negative remainder that stolen time can be which the kernel charged to tasks as
	// well: since Linux 6.14 (5.15.179 of the stable kernels) the clock of tasks forgets stolen time that it sees late
	// (update_rq_clock_task in kernel/sched/core.c). The kernel's ticks do not (account_steal_time in
	// kernel/sched/cputime.c), so it is at most what attributed exceeds them by, and what was stolen from busy CPUs.
	// Ticks are coarse, so that this is a bound and no measurement: it is no summand. Null without a witness.
	ChargedStolen *float64 `json:"charged_stolen_seconds"`
	// Part is what the control groups that can be seen used together, where they are only a part of the machine's, as in
	// a node that is a container. What ran outside of them is unexplained. Nil where they are all, and where not known.
	Part *float64 `json:"part_seconds,omitempty"`
}

// CPULine is one part of the attributed CPU time. No second stands on two lines. What could not be read has no line,
// and is in what is unexplained.
type CPULine struct {
	Name    string  `json:"name"` // application, bpf, kernel threads, interrupts, self, ...
	Seconds float64 `json:"seconds"`
	Method  string  `json:"method"` // counted (a kernel counter) or sampled
}

// Context is where a program ran.
type Context string

// The contexts.
const (
	Task    Context = "task"
	Softirq Context = "softirq"
	Hardirq Context = "hardirq"
)

// Method is how a share was got.
type Method string

// The methods. Exact is for trampolines around a program (later).
const (
	Sole    Method = "sole"    // the program can only have run there
	Sampled Method = "sampled" // total x part of the samples
	Exact   Method = "exact"
)

// The methods of a program's stolen time.
const (
	// StolenWitnessed: by the samples that were taken as the CPU came back and found the program running.
	StolenWitnessed = "witnessed"
	// StolenProportion: samples see the program too seldom, for it runs with interrupts off. What they do not see was
	// hit by stalls as often as everything else that ran.
	StolenProportion = "proportion"
)

// Program is one eBPF program that was loaded during the window. Times are wall-clock time inside the program,
// interrupts and stolen time included, as the kernel's statistics count it; RanSeconds is without what was stolen.
type Program struct {
	Charged                    // its owner's, wherever it runs
	Rule            string     `json:"rule,omitempty"` // as of Cgroup
	ID              uint32     `json:"id"`
	Name            string     `json:"name"` // empty where the loader gave none
	Type            string     `json:"type"`
	Tag             string     `json:"tag"`
	LoadedAt        *time.Time `json:"loaded_at"`
	Owners          []Owner    `json:"owners"`
	Attached        []string   `json:"attached"` // "cgroup:/path connect4", "tc:eth0 ingress", "link 7 ..."
	RunCount        *uint64    `json:"run_count"`
	RunSeconds      *float64   `json:"run_seconds"`
	NsPerRun        *float64   `json:"ns_per_run"`
	RecursionMisses *uint64    `json:"recursion_misses"`
	MemoryBytes     *uint64    `json:"memory_bytes"`
	// sum to run_seconds; one share without cgroup is what could not be split
	Shares []Share `json:"shares"`
	// raw counts of samples by place, however few: to be pooled over windows
	Seen           []Seen    `json:"seen"`
	SampledSeconds *Interval `json:"sampled_seconds"` // its run time by the sampler alone: a check on run_seconds
	// StolenSeconds is the part of run_seconds in which the CPU was taken away, estimated with its 95 % interval. Null
	// where run_seconds is, and without a witness or samples.
	StolenSeconds *Interval `json:"stolen_seconds"`
	StolenMethod  string    `json:"stolen_method"` // of it, empty where it is null: see the constants
	MapIDs        []uint32  `json:"map_ids"`
	Own           bool      `json:"own"` // it is the scale's own; what it costs is in self
	// it went away during the window; run_count and run_seconds are null where they could not be read after the start
	Unloaded bool `json:"unloaded"`
}

// Interval is a value with its 95 % interval.
type Interval struct {
	Value float64 `json:"value"`
	Lo    float64 `json:"lo"`
	Hi    float64 `json:"hi"`
}

// Owner is a process that holds a program or a map.
type Owner struct {
	PID  int    `json:"pid"`
	Comm string `json:"comm"`
}

// Share is the part of a program's run time that ran in one cgroup and one context, with a 95 % interval. Cgroup is
// null for the part that could not be split: too few samples, or none.
type Share struct {
	Cgroup  *string `json:"cgroup"`
	Context Context `json:"context,omitempty"`
	Seconds float64 `json:"seconds"`
	Lo      float64 `json:"lo"`
	Hi      float64 `json:"hi"`
	Samples int     `json:"samples"`
	Method  Method  `json:"method"`
	Note    string  `json:"note,omitempty"` // why it could not be split
}

// split gives the run time of the program, and calls with each share of it, in nanoseconds and without what was
// stolen. It is false where the run time is not known.
func (p *Program) split(part func(s Share, ns int64)) (ran int64, known bool) {
	seconds, known := p.RanSeconds()
	if !known {
		return 0, false
	}
	kept := 1.0
	if *p.RunSeconds > 0 {
		kept = seconds / *p.RunSeconds
	}
	for _, s := range p.Shares {
		s.Seconds, s.Lo, s.Hi = s.Seconds*kept, s.Lo*kept, s.Hi*kept
		part(s, *nanoseconds(&s.Seconds))
	}
	return *nanoseconds(&seconds), true
}

// RanSeconds is for how long the program ran on a CPU: its run time without what was stolen inside of it, if that is
// known. It is false where the run time is not known.
func (p *Program) RanSeconds() (float64, bool) {
	if p.RunSeconds == nil {
		return 0, false
	}
	if p.StolenSeconds == nil {
		return *p.RunSeconds, true
	}
	return max(*p.RunSeconds-p.StolenSeconds.Value, 0), true
}

// Seen is how many samples saw a program in one place. Cgroup is null where the thread ended before its group could be
// read.
type Seen struct {
	Cgroup  *string `json:"cgroup"`
	Context Context `json:"context"`
	Samples int     `json:"samples"`
}

// Map is one eBPF map.
type Map struct {
	Charged              // its owner's, whoever pays for it
	Rule        string   `json:"rule,omitempty"` // as of Cgroup
	ID          uint32   `json:"id"`
	Name        string   `json:"name"`
	Type        string   `json:"type"`
	KeyBytes    uint32   `json:"key_bytes"`
	ValueBytes  uint32   `json:"value_bytes"`
	MaxEntries  uint32   `json:"max_entries"`
	Bytes       *uint64  `json:"bytes"`
	BytesMethod string   `json:"bytes_method"` // exact (kernel 6.4), estimate (5.11), charged-pages (before)
	ChargedTo   *string  `json:"charged_to"`   // cgroup path; null where the kernel does not tell
	HeldBy      []Owner  `json:"held_by"`
	Inner       []uint32 `json:"inner"`   // ids of the maps inside, for a map of maps
	UsedBy      []uint32 `json:"used_by"` // program ids
}

// Cgroup is one control group. CPU and memory are of the group with all its descendants, as the kernel counts them.
type Cgroup struct {
	Path    string `json:"path"`
	Name    *Name  `json:"name,omitempty"` // what people call it; nil, and left out, where nothing is known
	Charged        // of the group and what is below it, down to groups that have another
	// Rule is the rule that charged the group or the one above it whose charge it has: where the rule stands, and what it
	// selects. It is empty, and left out, where no rule did, as in experiments.
	Rule string `json:"rule,omitempty"`

	Role       string   `json:"role"` // app, load, subject, self, or empty
	CPUSeconds *float64 `json:"cpu_seconds"`
	// CPUReset: its CPU counter was set back inside the window, so cpu_seconds is not known.
	CPUReset bool `json:"cpu_reset,omitempty"`
	// BPFSeconds is eBPF run time of its tasks in every context, descendants included, as far as it could be split:
	// at least that, and at most cpu.bpf_unsplit_seconds more. null where programs ran and no second of theirs
	// could be split.
	BPFSeconds       *float64 `json:"bpf_seconds"`
	BPFInsideSeconds *float64 `json:"bpf_inside_seconds"` // the part of bpf_seconds that cpu_seconds contains
	ThrottledSeconds *float64 `json:"throttled_seconds"`
	ThrottledPeriods *uint64  `json:"throttled_periods"`
	Periods          *uint64  `json:"periods"`
	Memory           *Memory  `json:"memory"`
	// it went away during the window; counters are null where they could not be read after its start
	Vanished bool `json:"vanished,omitempty"`
	// Began is when in the window it was made, in seconds and at the latest; null where it is older than the window.
	Began *float64 `json:"began"`
}

// Name is what people call a control group: the pod and the container, or the unit of systemd, that it belongs to. The
// files of container runtimes and the path of the group have it; Kubernetes' API was not asked. What is not known is
// empty, and left out.
type Name struct {
	Namespace   string            `json:"namespace,omitempty"` // of Kubernetes
	Pod         string            `json:"pod,omitempty"`
	PodUID      string            `json:"pod_uid,omitempty"`
	Container   string            `json:"container,omitempty"` // "(sandbox)" for what holds a pod open
	ContainerID string            `json:"container_id,omitempty"`
	Unit        string            `json:"unit,omitempty"` // of systemd
	Image       string            `json:"image,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"` // of the container and its pod, where the runtime keeps them
	// Top is the path of the group of the whole container, pod or unit: of this group or of one above it.
	Top string `json:"top"`
}

// Title is what people call the group: namespace/pod/container and the path below the container, or what of that is
// known. It is the path of a group outside of pods and containers, of which the path says best what it is, and of one
// whose name is not known.
func (g *Cgroup) Title() string {
	n := g.Name
	if n == nil || n.Pod == "" && n.Container == "" || n.Unit != "" || !strings.HasPrefix(g.Path, n.Top) {
		return g.Path
	}
	container := n.Container
	if container == "" && n.ContainerID != "" {
		container = n.ContainerID[:min(len(n.ContainerID), shortID)]
	}
	parts := slices.DeleteFunc([]string{n.Namespace, n.Pod, container}, func(s string) bool { return s == "" })
	return strings.Join(parts, "/") + g.Path[len(n.Top):]
}

// shortID is how many digits of an id engines print.
const shortID = 12

// Titles are what people call groups, by path, of those that are not called by their paths.
type Titles map[string]string

// Of returns the title of the group at path.
func (t Titles) Of(path string) string { return cmp.Or(t[path], path) }

// Titles returns the titles of the groups.
func (l *Ledger) Titles() Titles {
	titles := Titles{}
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		if title := g.Title(); title != g.Path {
			titles[g.Path] = title
		}
	}
	return titles
}

// Memory is what a cgroup holds at the end of the window. Memory is never one number:
//
//	hard = anon + shmem + kernel - slab_reclaimable     soft = file - shmem + slab_reclaimable
type Memory struct {
	Current         *uint64 `json:"current"`
	Peak            *uint64 `json:"peak"`
	Anon            *uint64 `json:"anon"`
	File            *uint64 `json:"file"`
	Shmem           *uint64 `json:"shmem"`
	Kernel          *uint64 `json:"kernel"`
	SlabReclaimable *uint64 `json:"slab_reclaimable"`
	Sock            *uint64 `json:"sock"`
	InactiveFile    *uint64 `json:"inactive_file"`
	Hard            *int64  `json:"hard"`
	Soft            *int64  `json:"soft"`
	WorkingSet      *uint64 `json:"working_set"` // current - inactive_file, as the kubelet reports it
}

// Self is what the scale cost.
type Self struct {
	Cgroup     *string  `json:"cgroup"`      // the group that the scale runs in; nil where it is not known
	CPUSeconds float64  `json:"cpu_seconds"` // user and system time of this process in the window
	RSSBytes   uint64   `json:"rss_bytes"`
	BPFSeconds *float64 `json:"bpf_seconds"` // programs of the scale's own (iterators)
	BPFBytes   *uint64  `json:"bpf_bytes"`
	// estimate: what the kernel's run statistics cost the machine: runs x calibrated cost
	StatsSeconds   *float64 `json:"stats_seconds"`
	SamplerSeconds *float64 `json:"sampler_seconds"` // estimate: what taking the samples cost: samples x calibrated cost
	// estimate: what the witness cost: looks x calibrated cost, its program's run time included
	WitnessSeconds *float64 `json:"witness_seconds"`
	// SandboxSeconds is CPU time of finding and reading sandboxes, a part of CPUSeconds; SmapsSeconds the part of it in
	// which the kernel walked their page tables. nil, and left out, where nobody looked.
	SandboxSeconds *float64 `json:"sandbox_seconds,omitempty"`
	SmapsSeconds   *float64 `json:"smaps_seconds,omitempty"`
	Samples        int      `json:"samples"` // of kernel mode: no program runs in user mode
	SamplesLost    uint64   `json:"samples_lost"`
}

// Warning is something the reader of the ledger must know before quoting it.
type Warning struct {
	Code    string `json:"code"` // short and stable, e.g. "samples-lost"
	Message string `json:"message"`
}

// CounterReset is the code of the warning that the CPU counter of a control group was set back inside the window.
const CounterReset = "counter-reset"

// Warn adds a warning.
func (l *Ledger) Warn(code, format string, args ...any) {
	l.Warnings = append(l.Warnings, Warning{Code: code, Message: fmt.Sprintf(format, args...)})
}
