// Package ledger accounts for one machine over one window: who used what, and what remains unexplained. It holds types
// and arithmetic only. Its JSON form is a contract (schema tare.ledger/v1) that other tools parse.
//
// Units are seconds and bytes. A pointer field is nil, and null in JSON, if this kernel lacks the counter; nil does
// not mean 0.
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

// Ledger accounts for one machine over one window.
type Ledger struct {
	Schema string `json:"schema"`
	Host   Host   `json:"host"`
	Window Window `json:"window"`
	CPU    CPU    `json:"cpu"`
	// Programs and Maps are nil if they could not be read, and empty if there are none.
	Programs []Program `json:"programs"`
	Maps     []Map     `json:"maps"`
	Cgroups  []Cgroup  `json:"cgroups"`
	// Workloads holds what each workload used, and what tare used on its behalf; empty if nothing is charged. Settle fills
	// it.
	Workloads []Workload `json:"workloads"`
	Tare      *Tare      `json:"tare"` // nil if nothing is charged to a workload or to tare
	// Components holds what each component used; nil, and left out, if AddComponents was not called.
	Components []Component `json:"components,omitzero"`
	// Sandboxes holds the machine's containers, pods and virtual machines; nil, and left out, if they were not measured.
	Sandboxes []Sandbox `json:"sandboxes,omitzero"`
	Noise     *Noise    `json:"noise"` // nil without a witness
	Self      Self      `json:"self"`
	Warnings  []Warning `json:"warnings"`
}

// Host describes the machine and the means of measurement.
type Host struct {
	Hostname string `json:"hostname"`
	Kernel   string `json:"kernel"`
	CPUs     int    `json:"cpus"` // online
	// PossibleCPUs are those that may come online: per-CPU maps have a value for each of them. 0 if unknown, and in
	// ledgers without the field.
	PossibleCPUs  int      `json:"possible_cpus,omitempty"`
	CPUModel      string   `json:"cpu_model"`
	CgroupMode    string   `json:"cgroup_mode"` // v1, v2 or hybrid
	Clocksource   string   `json:"clocksource"`
	Sampler       string   `json:"sampler"`                // cycles or cpu-clock; empty without samples
	SamplerPeriod *float64 `json:"sampler_period_seconds"` // time between two samples of one CPU
	// IRQTime reports whether the kernel keeps interrupts out of the CPU time of tasks and cgroups; nil if unknown.
	IRQTime *bool `json:"irq_time_accounting"`
	// IRQTimeOn names the machines of a joined ledger on which the kernel does so; empty if IRQTime is known for all.
	IRQTimeOn []string `json:"irq_time_accounting_on,omitempty"`
	Tare      string   `json:"tare"` // version of Tare
	// CgroupCPU is the version of the hierarchy that counts CPU time: v1, v2 or none. It is empty in ledgers without the
	// field.
	CgroupCPU string `json:"cgroup_cpu,omitempty"`
}

// Window is the measured span of time. Every counter was read at its start and at its end.
type Window struct {
	Start   time.Time `json:"start"`
	End     time.Time `json:"end"`
	Seconds float64   `json:"seconds"` // by CLOCK_MONOTONIC

	// EdgeSeconds is the duration of one reading of all counters, at the start or the end, whichever took longer. The
	// counters of one reading are up to EdgeSeconds apart in time, so the unexplained time may be off by that much on
	// every CPU. 0 in ledgers without the field.
	EdgeSeconds float64 `json:"edge_seconds,omitempty"`
}

// CPU is the budget. It divides the same capacity in two ways:
//
//	idle - idle_stolen + steal + attributed + unexplained = capacity                               (who)
//	idle - idle_stolen + steal + user + system + softirq + irq ~ capacity, by the kernel's tick    (mode)
//
// The first is exact by construction. Unexplained may be negative because counters are coarse.
type CPU struct {
	Capacity    float64   `json:"capacity_seconds"`
	Idle        float64   `json:"idle_seconds"` // idle and iowait
	User        float64   `json:"user_seconds"` // user and nice
	System      float64   `json:"system_seconds"`
	Softirq     float64   `json:"softirq_seconds"`
	IRQ         float64   `json:"irq_seconds"`
	Steal       float64   `json:"steal_seconds"`       // from the witness if there is one, else from the kernel's counter
	Attributed  float64   `json:"attributed_seconds"`  // the sum of Lines
	Unexplained float64   `json:"unexplained_seconds"` // capacity - (idle - idle_stolen) - steal - attributed
	Lines       []CPULine `json:"lines"`
	// BPFUnsplit is run time of eBPF programs that could not be split. It is contained in the other lines (groups, root,
	// kernel threads, interrupts), in unknown proportions, so it must not be added to them. The ebpf line does not contain
	// it, and it leaves out the measuring process's own programs. nil if run time was not counted.
	BPFUnsplit *float64 `json:"bpf_unsplit_seconds"`
	// IdleStolen is the part of Steal that the kernel also counts as idle: the CPU was idle when it was taken away. It is
	// the middle of the possible range, and off by at most IdleStolenError. Without a witness it is nil, and Unexplained
	// is too low by the unknown part.
	IdleStolen      *float64 `json:"idle_stolen_seconds"`
	IdleStolenError *float64 `json:"idle_stolen_error_seconds"`
	// ChargedStolen bounds how much of a negative Unexplained can be stolen time that the kernel also charged to tasks.
	// Since Linux 6.14 (5.15.179 of the stable kernels) the clock of tasks forgets stolen time that it sees late
	// (update_rq_clock_task in kernel/sched/core.c). The kernel's ticks do not forget it (account_steal_time in
	// kernel/sched/cputime.c), so ChargedStolen is at most the excess of Attributed over the ticks, and at most the time
	// stolen from busy CPUs. Ticks are coarse, so this is a bound and not a summand. nil without a witness.
	ChargedStolen *float64 `json:"charged_stolen_seconds"`
	// Root is the CPU time of the root group without the groups below it: of its processes and of kernel threads, before
	// eBPF time is moved to its line. nil if unknown.
	Root *float64 `json:"root_seconds,omitempty"`
	// Part is the CPU time of all visible control groups if others are not visible, as in a node that is a container. What
	// ran outside the visible groups is unexplained. nil if all are visible, or if the CPU time is unknown.
	Part *float64 `json:"part_seconds,omitempty"`
}

// CPULine is one part of the attributed CPU time. No second is on two lines. What could not be read has no line and is
// unexplained.
type CPULine struct {
	Name    string  `json:"name"` // LineGroups, LineRoot, ...
	Seconds float64 `json:"seconds"`
	Method  string  `json:"method"` // MethodCounted, MethodSampled, ...
}

// Context is the kernel context in which a program ran.
type Context string

// The contexts.
const (
	Task    Context = "task"
	Softirq Context = "softirq"
	Hardirq Context = "hardirq"
)

// Method is how a share was determined.
type Method string

// The methods. Exact is reserved for trampolines around a program.
const (
	Sole    Method = "sole"    // the program can only have run there
	Sampled Method = "sampled" // total run time x fraction of the samples
	Exact   Method = "exact"
)

// The methods of a program's stolen time.
const (
	// StolenWitnessed adds up the stalls after which a sample, taken as the CPU came back, found the program running.
	StolenWitnessed = "witnessed"
	// StolenProportion is for programs that samples rarely see because they run with interrupts off. It assumes that
	// stalls hit the unseen part of the run time as often as everything else that ran.
	StolenProportion = "proportion"
)

// Program is one eBPF program that was loaded during the window. Times are wall-clock time inside the program as the
// kernel's statistics count it, including interrupts and stolen time; RanSeconds excludes stolen time.
type Program struct {
	Charged                    // the owner's charge, wherever the program runs
	Rule            string     `json:"rule,omitempty"` // as in Cgroup
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
	// Shares add up to RunSeconds. A share without a cgroup is the part that could not be split.
	Shares []Share `json:"shares"`
	// Seen holds raw counts of samples by place, however few, to be pooled over windows.
	Seen           []Seen    `json:"seen"`
	SampledSeconds *Interval `json:"sampled_seconds"` // run time by the sampler alone: a check on RunSeconds
	// StolenSeconds is the estimated part of RunSeconds during which the CPU was taken away, with its 95 % interval. nil
	// if RunSeconds is nil, and without a witness or samples.
	StolenSeconds *Interval `json:"stolen_seconds"`
	StolenMethod  string    `json:"stolen_method"` // StolenWitnessed or StolenProportion; empty if StolenSeconds is nil
	MapIDs        []uint32  `json:"map_ids"`
	Own           bool      `json:"own"` // it belongs to the measuring process, and its cost is in Self
	// Unloaded reports whether the program was unloaded during the window. RunCount and RunSeconds are then nil if they
	// were read only at the start.
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

// Share is the part of a program's run time in one cgroup and one context, with a 95 % interval. Cgroup is nil for the
// part that could not be split; Note says why.
type Share struct {
	Cgroup  *string `json:"cgroup"`
	Context Context `json:"context,omitempty"`
	Seconds float64 `json:"seconds"`
	Lo      float64 `json:"lo"`
	Hi      float64 `json:"hi"`
	Samples int     `json:"samples"`
	Method  Method  `json:"method"`
	Note    string  `json:"note,omitempty"` // why it could not be split; empty otherwise
}

// split returns the run time of the program in nanoseconds, without stolen time. It calls part with each share, from
// which stolen time has been removed as well. The bounds of a share allow for the errors of both samples and stolen
// time; the upper bound of a share without a cgroup is the whole share. known is false if the run time is unknown.
func (p *Program) split(part func(s Share, ns int64)) (ran int64, known bool) {
	seconds, known := p.RanSeconds()
	if !known {
		return 0, false
	}
	var stolen Interval
	if p.StolenSeconds != nil {
		stolen = *p.StolenSeconds
	}
	kept := func(stolen float64) float64 { // fraction of the run time
		if *p.RunSeconds <= 0 {
			return 1
		}
		return max(*p.RunSeconds-stolen, 0) / *p.RunSeconds
	}
	for _, s := range p.Shares {
		if s.Cgroup == nil {
			s.Hi = s.Seconds
		}
		s.Seconds, s.Lo, s.Hi = s.Seconds*kept(stolen.Value), s.Lo*kept(stolen.Hi), s.Hi*kept(stolen.Lo)
		part(s, *nanoseconds(&s.Seconds))
	}
	return *nanoseconds(&seconds), true
}

// RanSeconds returns how long the program ran on a CPU: its run time minus stolen time, if that is known. The second
// result is false if the run time is unknown.
func (p *Program) RanSeconds() (float64, bool) {
	if p.RunSeconds == nil {
		return 0, false
	}
	if p.StolenSeconds == nil {
		return *p.RunSeconds, true
	}
	return max(*p.RunSeconds-p.StolenSeconds.Value, 0), true
}

// Seen holds the number of samples that saw a program in one place. Cgroup is nil if the thread ended before its group
// could be read.
type Seen struct {
	Cgroup  *string `json:"cgroup"`
	Context Context `json:"context"`
	Samples int     `json:"samples"`
}

// Map is one eBPF map.
type Map struct {
	Charged              // the owner's charge, whichever group the memory is charged to
	Rule        string   `json:"rule,omitempty"` // as in Cgroup
	ID          uint32   `json:"id"`
	Name        string   `json:"name"`
	Type        string   `json:"type"`
	KeyBytes    uint32   `json:"key_bytes"`
	ValueBytes  uint32   `json:"value_bytes"`
	MaxEntries  uint32   `json:"max_entries"`
	Bytes       *uint64  `json:"bytes"`
	BytesMethod string   `json:"bytes_method"` // exact (since Linux 6.4), estimate (since 5.11) or charged-pages (older)
	ChargedTo   *string  `json:"charged_to"`   // path of a cgroup; nil if the kernel does not expose it
	HeldBy      []Owner  `json:"held_by"`
	Inner       []uint32 `json:"inner"`   // ids of the maps inside a map of maps
	UsedBy      []uint32 `json:"used_by"` // program ids
}

// Cgroup is one control group. CPU and memory include all its descendants, as the kernel counts them.
type Cgroup struct {
	Path    string `json:"path"`
	Name    *Name  `json:"name,omitempty"` // nil, and left out, if nothing is known
	Charged        // the charge of the group and of those descendants that have no separate one
	// Rule identifies the rule that charged the group or, if the group inherits its charge, its ancestor. It consists of
	// the flag or the position in a file where the rule is written, and of what the rule selects. It is empty, and left
	// out, if no rule charged the group, as in experiments.
	Rule string `json:"rule,omitempty"`

	Role string `json:"role"` // app, load, subject, self, or empty
	// CPUSeconds is nil, as are the throttling counters, if the group was made before the window but found only during it.
	// For the root where v2 counts CPU time it is the CPUs' user, system and interrupt time, not the CPU time of tasks.
	CPUSeconds *float64 `json:"cpu_seconds"`
	// CPUReset reports whether the group's CPU counter went backwards during the window; CPUSeconds is then nil.
	CPUReset bool `json:"cpu_reset,omitempty"`
	// BPFSeconds is eBPF run time in this group and its descendants, in every context, as far as it could be split. The
	// true value is at most CPU.BPFUnsplit higher. nil if programs ran and none of their time could be split.
	BPFSeconds       *float64 `json:"bpf_seconds"`
	BPFInsideSeconds *float64 `json:"bpf_inside_seconds"` // the part of BPFSeconds that CPUSeconds contains
	ThrottledSeconds *float64 `json:"throttled_seconds"`
	ThrottledPeriods *uint64  `json:"throttled_periods"`
	Periods          *uint64  `json:"periods"`
	Memory           *Memory  `json:"memory"`
	// Vanished reports whether the group was removed during the window. Counters are then nil if they were read only at
	// the start.
	Vanished bool `json:"vanished,omitempty"`
	// Began is the latest time at which the group can have been created, in seconds from the start of the window; nil if
	// it is older than the window.
	Began *float64 `json:"began"`
}

// Name identifies what a control group belongs to: a pod and container, or a systemd unit. It comes from the files of
// container runtimes and from the group's path, not from the Kubernetes API. Unknown parts are empty, and left out.
type Name struct {
	Namespace   string            `json:"namespace,omitempty"` // in Kubernetes
	Pod         string            `json:"pod,omitempty"`
	PodUID      string            `json:"pod_uid,omitempty"`
	Container   string            `json:"container,omitempty"` // "(sandbox)" for the one that holds a pod open
	ContainerID string            `json:"container_id,omitempty"`
	Unit        string            `json:"unit,omitempty"` // systemd unit
	Image       string            `json:"image,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"` // of the container and its pod, if the runtime keeps them
	// Top is the path of the group of the whole container, pod or unit: this group or one above it.
	Top string `json:"top"`
}

// Title returns the display name of the group: namespace/pod/container followed by the path below the container, as
// far as known. It returns the path for groups outside pods and containers, and for groups without a name.
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

// shortID is the length of the abbreviated id that container engines print.
const shortID = 12

// Titles maps the path of a group to its title. Groups whose title is their path are left out.
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

// Memory is the memory that a cgroup holds at the end of the window, in bytes. It has no single total:
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

// Self holds the cost of the measurement itself.
type Self struct {
	Cgroup     *string  `json:"cgroup"`      // the group that the measuring process is in; nil if unknown
	CPUSeconds float64  `json:"cpu_seconds"` // user and system time of the measuring process in the window
	RSSBytes   uint64   `json:"rss_bytes"`
	BPFSeconds *float64 `json:"bpf_seconds"` // run time of the measuring process's own programs (iterators)
	BPFBytes   *uint64  `json:"bpf_bytes"`
	// StatsSeconds estimates what the kernel's run statistics cost the machine: runs x calibrated cost.
	StatsSeconds *float64 `json:"stats_seconds"`
	// SamplerSeconds estimates the cost of taking samples: samples x calibrated cost.
	SamplerSeconds *float64 `json:"sampler_seconds"`
	// WitnessSeconds estimates the cost of the witness, including its program's run time: looks x calibrated cost.
	WitnessSeconds *float64 `json:"witness_seconds"`
	// SandboxSeconds is the part of CPUSeconds spent on finding and reading sandboxes, and SmapsSeconds the part of that
	// in which the kernel walked their page tables. Both are nil, and left out, if sandboxes were not measured.
	SandboxSeconds *float64 `json:"sandbox_seconds,omitempty"`
	SmapsSeconds   *float64 `json:"smaps_seconds,omitempty"`
	Samples        int      `json:"samples"` // only those in kernel mode, where eBPF programs run
	SamplesLost    uint64   `json:"samples_lost"`
}

// Warning describes a limitation of a ledger to those who use its values.
type Warning struct {
	Code    string `json:"code"` // short and stable, e.g. "samples-lost"
	Message string `json:"message"`
}

// CounterReset is the code of the warning that a control group's CPU counter went backwards during the window.
const CounterReset = "counter-reset"

// Warn adds a warning.
func (l *Ledger) Warn(code, format string, args ...any) {
	l.Warnings = append(l.Warnings, Warning{Code: code, Message: fmt.Sprintf(format, args...)})
}
