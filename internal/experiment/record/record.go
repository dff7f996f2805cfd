// Package record defines the run directory: run.json describes the run and its machine, and trials.jsonl has one line
// for each trial, appended as the trial ends. The trials are the data; a summary can always be computed from them
// again.
package record

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"tare/internal/experiment/load"
	"tare/internal/experiment/metric"
	"tare/internal/lib/known"
	"tare/internal/lib/lists"
	"tare/internal/scale/ledger"
)

// The names inside a run directory.
const (
	RunFile     = "run.json"
	TrialsFile  = "trials.jsonl"
	SummaryFile = "summary.json"
	ReportFile  = "report.html"
)

// RunSchema and TrialSchema name the JSON forms.
const (
	RunSchema   = "tare.run/v1"
	TrialSchema = "tare.trial/v1"
)

// The names of the two baseline arms in every experiment.
const (
	Direct = "direct" // the baseline
	AA     = "aa"     // the baseline again, under another name
)

// Run is the contents of run.json.
type Run struct {
	Schema     string          `json:"schema"`
	ID         string          `json:"id"`
	Experiment string          `json:"experiment"`
	Question   string          `json:"question"`
	Spec       json.RawMessage `json:"spec"` // as resolved, with every default filled in
	// Baseline is the name of the subject in the arms Direct and AA, if they have one.
	Baseline    string         `json:"baseline,omitempty"`
	Seed        uint64         `json:"seed"`
	Blocks      int            `json:"blocks"`
	Plan        []PlannedTrial `json:"plan"`
	Started     time.Time      `json:"started"`
	Version     string         `json:"version"`
	Build       string         `json:"build"` // Go version and VCS revision
	Environment Environment    `json:"environment"`
	// Absent has the arms of the spec that did not run because their program is not installed, with the reason.
	Absent  map[string]string `json:"absent,omitempty"`
	Command []string          `json:"command"`         // how to run it again
	Nodes   *Nodes            `json:"nodes,omitempty"` // the machines, if the run used more than the coordinator's

	// Headline lists the metrics of the answer: the run is invalid if none of them is known.
	Headline []string `json:"headline,omitempty"`
	// Metrics defines the metrics that trials of the run can have. Records of Tare before 0.3 have none.
	Metrics []metric.Definition `json:"metrics,omitempty"`

	// Phrases say how levels read in sentences, in reading order. Factors without a phrase are given by name.
	Phrases []Phrase `json:"phrases,omitempty"`

	// Traits are remarks that accompany the names of arms.
	Traits map[string]string `json:"traits,omitempty"`
	// Lacks describes, by arm, work that the arm does not do and other arms do. Each text is the end of a sentence that
	// begins with "is not the same service: ".
	Lacks map[string]string `json:"lacks,omitempty"`

	// Precision and Until say when a run without a fixed number of blocks ends. Plan and Blocks then cover what it has
	// done so far, and Stopped says why it ended; it is empty while the run is under way and after an interrupt.
	Precision *Precision `json:"precision,omitempty"`
	Until     float64    `json:"until_seconds,omitempty"`
	Stopped   string     `json:"stopped,omitempty"`

	// Assert lists the assertions about the run, in canonical form.
	Assert []string `json:"assert,omitempty"`

	// NotRepeated says how many spoiled trials were not repeated because repeats had been futile; empty if none.
	NotRepeated string `json:"not_repeated,omitempty"`

	// Warnings are about the run as a whole, from before its trials.
	Warnings []string `json:"warnings,omitempty"`
}

// Phrase holds the words with which sentences state the levels of one factor: "with 64 connections".
type Phrase struct {
	Factor string            `json:"factor"`
	Words  map[string]string `json:"words"` // by level; "" is for all other levels, and {} stands for the level
}

// Of returns the phrase of one level, or "".
func (p Phrase) Of(level string) string {
	if words, is := p.Words[level]; is {
		return words
	}
	return strings.Replace(p.Words[""], "{}", level, 1)
}

// Precision says how narrow the intervals of some metrics must be for a run to end.
type Precision struct {
	Target  float64  `json:"target"` // half-width, as a fraction of the value; for a difference, of the baseline's value
	Metrics []string `json:"metrics"`
}

// Open reports whether the run ends by its precision or by the clock.
func (r *Run) Open() bool { return r.Precision != nil || r.Until > 0 }

// Partial reports whether the run is incomplete: a planned trial never ran, or the run was ended early.
func (r *Run) Partial(trials []Trial) bool {
	ran := map[int]bool{}
	for _, t := range trials {
		if t.Validity.Failed != Interrupted {
			ran[t.Index] = true
		}
	}
	return len(ran) < len(r.Plan) || r.Open() && r.Stopped == ""
}

// PlannedTrial is one trial as the plan orders it. Index counts from 0 over the run, Position within the block.
type PlannedTrial struct {
	Index    int               `json:"index"`
	Block    int               `json:"block"`
	Position int               `json:"position"`
	Arm      string            `json:"arm"`
	Factors  map[string]string `json:"factors,omitempty"`
}

// Environment holds the properties of the machine that could change the answer. A field that could not be read is
// empty.
type Environment struct {
	Hostname    string `json:"hostname"`
	Kernel      string `json:"kernel"`
	Distro      string `json:"distro"`
	CPUModel    string `json:"cpu_model"`
	CPUs        int    `json:"cpus"`
	MemoryBytes uint64 `json:"memory_bytes"`
	Governor    string `json:"governor"`
	CgroupMode  string `json:"cgroup_mode"`
	Lockdown    string `json:"lockdown"`
	Clocksource string `json:"clocksource"`
	SwapBytes   uint64 `json:"swap_bytes"`
	Virtual     string `json:"virtualization"`
	// ClusterNodes has, for a run in a cluster, all nodes of the cluster by name, each with an identifier of its machine
	// that survives a reboot, or "" if it has none. Earlier records lack it.
	ClusterNodes map[string]string `json:"cluster_nodes,omitempty"`
	// Subjects has the versions of the programs that were weighed, by the name of the program. For a subject that was
	// installed in a cluster, it has the images of its containers, by the name of the container, once trials have shown
	// them.
	Subjects map[string]string `json:"subjects"`
}

// ClusterOf is the beginning of Environment.Hostname for a run in a cluster: "cluster of 3 nodes".
const ClusterOf = "cluster of "

// InCluster reports whether the run was in a cluster.
func (e *Environment) InCluster() bool { return strings.HasPrefix(e.Hostname, ClusterOf) }

// Installed is Trial.Subject of a subject that was installed in a cluster.
type Installed struct {
	Images map[string]string `json:"images"` // by the name of the container; several images are separated by commas
}

// AddVersion adds a version, or several separated by commas, to the versions of a program. They are sorted, without
// duplicates, and limited to maxVersions.
func AddVersion(versions map[string]string, program, version string) {
	all := strings.Split(version, versionSeparator)
	if known, is := versions[program]; is {
		all = append(all, strings.Split(known, versionSeparator)...)
	}
	slices.Sort(all)
	all = slices.Compact(all)
	versions[program] = strings.Join(all[:min(len(all), maxVersions)], versionSeparator)
}

const (
	versionSeparator = ", "
	maxVersions      = 8 // versions that are kept of one program
)

// Trial is one line of trials.jsonl: one arm at one level of each factor, run once, with fresh processes.
type Trial struct {
	Schema string `json:"schema"`
	Run    string `json:"run,omitempty"` // the ID of its run; records of Tare before 0.4 have none
	PlannedTrial
	// Attempt is 0 for the first. A spoiled trial is repeated in its block, and every attempt is a line.
	Attempt int                    `json:"attempt,omitempty"`
	Started time.Time              `json:"started"`
	Ended   time.Time              `json:"ended"`
	Loads   map[string]load.Result `json:"loads"`            // by the name of the load in the spec
	Work    *load.Result           `json:"work,omitempty"`   // result of a subject that works by itself
	Events  *Events                `json:"events,omitempty"` // if the load makes events that are counted
	// Ledger is the ledger of the measured window; nil if the trial failed before the window.
	Ledger  *ledger.Ledger            `json:"ledger"`
	Further map[string]*ledger.Ledger `json:"further,omitempty"` // further readings, by name: before, after
	// Warnings holds the warnings that were raised while there was no ledger; the ledger has all others. See Warned.
	Warnings []ledger.Warning `json:"warnings,omitempty"`
	Subject  json.RawMessage  `json:"subject,omitempty"` // ready message of the subject
	// Evidence holds facts about the trial that only a guest knows, by the guest's name.
	Evidence map[string]json.RawMessage `json:"evidence,omitempty"`
	Clocks   map[string]time.Duration   `json:"clocks_ns"` // durations of phases, such as set-up and warm-up
	Metrics  map[string]float64         `json:"metrics"`   // single values of this trial, by metric name
	// Counts holds counts of this trial, by metric name, that are pooled over trials.
	Counts map[string]Count `json:"counts,omitempty"`
	// Components holds values of each component of a subject with several, by component and metric: the component's share
	// of the metric in Metrics, or a metric that only components have. They are void if the metric is.
	Components map[string]map[string]float64 `json:"components,omitempty"`

	Profile *Profile `json:"profile,omitempty"` // where its CPU time went, if stacks were sampled

	Validity Validity `json:"validity"`
	// Nodes has the result of each node, if the trial ran on nodes: metrics and loads are then of all nodes together.
	Nodes []NodeTrial `json:"nodes,omitempty"`
}

// Warned returns all warnings of the trial: the warnings from before its window closed, then those in its ledger.
func (t *Trial) Warned() []ledger.Warning {
	if t.Ledger == nil {
		return t.Warnings
	}
	return slices.Concat(t.Warnings, t.Ledger.Warnings)
}

// Events holds the counts of the events (execs) of one trial. The load, the kernel and the tracer count them
// independently. The losses that the tracer reports are a fourth count, which the others do not rely on. Expected,
// AtMost, Delivered, Late, AtExit and SaidLost are nil if there is no tracer.
type Events struct {
	Generated int64 `json:"generated"` // execs of the load that succeeded, from its first to its last
	Failed    int64 `json:"failed"`    // execs of the load that failed
	*KernelCount
	Scope string `json:"scope,omitempty"` // whether the tracer delivers the events of the group or of the machine
	// Expected is the number of events that the tracer should deliver: Counted, plus Elsewhere if its scope is the
	// machine. In pods it is Generated.
	Expected *int64 `json:"expected,omitempty"`
	// AtMost is the most that the tracer can have delivered. It can exceed Expected if the scope is the machine, because
	// other programs exec while the counts are read.
	AtMost    *int64  `json:"at_most,omitempty"`
	Delivered *int64  `json:"delivered,omitempty"` // events that it delivered before it ended
	Late      *int64  `json:"late,omitempty"`      // the part of Delivered that came too long after the load's end
	AtExit    *int64  `json:"at_exit,omitempty"`   // the part of Delivered that came after the tracer was asked to end
	SaidLost  *int64  `json:"said_lost,omitempty"` // events that it reported as lost; nil if it never reports losses
	Offset    *Offset `json:"offset,omitempty"`    // nil in pods
}

// KernelCount is the kernel's count of events. In pods there is none.
type KernelCount struct {
	Counted int64 `json:"counted"` // in the load's control group, since the offset was read
	// Elsewhere is the count outside that group, since the offset was read and until the tracer was asked to end.
	Elsewhere int64 `json:"elsewhere"`
	// Missed is the number of times that the eBPF program that counts was not run, because of recursion. A trial with any
	// is invalid.
	Missed int64 `json:"missed"`
}

// Offset holds counts from after the set-up and before the load's first event: events of Tare itself. They are
// subtracted from all counts in Events.
type Offset struct {
	Counted   int64  `json:"counted"` // by the kernel, in the load's control group
	Delivered *int64 `json:"delivered,omitempty"`
}

// MergeEvents adds up the events of several trials of one arm. The result is nil unless all trials have events; a
// count is nil unless all trials have it.
func MergeEvents(all []*Events) *Events {
	if len(all) == 0 || slices.Contains(all, nil) {
		return nil
	}
	sum := *all[0]
	for _, e := range all[1:] {
		sum.Generated += e.Generated
		sum.Failed += e.Failed
	}
	sum.KernelCount, sum.Offset = nil, nil
	if !slices.ContainsFunc(all, func(e *Events) bool { return e.KernelCount == nil || e.Offset == nil }) {
		sum.KernelCount, sum.Offset = &KernelCount{}, &Offset{}
		for _, e := range all {
			sum.Counted += e.Counted
			sum.Elsewhere += e.Elsewhere
			sum.Missed += e.Missed
			sum.Offset.Counted += e.Offset.Counted
		}
		sum.Offset.Delivered = known.Sum(lists.Map(all, func(e *Events) *int64 { return e.Offset.Delivered })...)
	}
	added := func(of func(*Events) *int64) *int64 { return known.Sum(lists.Map(all, of)...) }
	sum.Expected = added(func(e *Events) *int64 { return e.Expected })
	sum.AtMost = added(func(e *Events) *int64 { return e.AtMost })
	sum.Delivered = added(func(e *Events) *int64 { return e.Delivered })
	sum.Late = added(func(e *Events) *int64 { return e.Late })
	sum.AtExit = added(func(e *Events) *int64 { return e.AtExit })
	sum.SaidLost = added(func(e *Events) *int64 { return e.SaidLost })
	return &sum
}

// Count is a fraction of samples: of all samples Of, the number In were in some part. A single trial may have too few
// samples to be useful, while all trials together have enough.
type Count struct {
	In int `json:"in"`
	Of int `json:"of"`
}

// Interrupted is Validity.Failed of the trial that was running when the run was interrupted: it says nothing about the
// machine.
const Interrupted = "interrupted"

// OtherRun is the code of the ledger's warning that another run of tare was active during the trial.
const OtherRun = "other-run"

// MadeBeside is the code of the ledger's warning that control groups were made outside the trial while it was running.
// Its message lists them.
const MadeBeside = "made-beside"

// NoProfile is the code of the warning that stacks could not be sampled, named or kept.
const NoProfile = "no-profile"

// LeftBehind is the code of the ledger's warning that something of the trial is still on the machine.
const LeftBehind = "left-behind"

// ProgramsLeft is the code of the ledger's warning that eBPF programs that were loaded during the trial are still there
// after it. Its message lists them.
const ProgramsLeft = "programs-left"

// Validity says whether the trial is valid, and why not.
type Validity struct {
	Valid  bool   `json:"valid"`
	Failed string `json:"failed,omitempty"` // the error that ended it; such a trial has no metrics

	// Cause says what disturbed the machine during a trial that failed; empty if unknown.
	Cause   ledger.Cause `json:"cause,omitempty"`
	Reasons []Reason     `json:"reasons,omitempty"` // gates that it tripped
}

// Reason describes one gate that tripped. Message says what was seen and what to change.
type Reason struct {
	// Gate is the name of a measured.Gate, such as rate, errors, lag, generator-cpu, throttled, drift or window.
	Gate    string  `json:"gate"`
	Seen    float64 `json:"seen"`
	Allowed float64 `json:"allowed"`
	Message string  `json:"message"`

	// Voids lists the metrics of this trial that are invalid for this reason. Null, in records of Tare before 0.2, means
	// all of them; an empty list means none: what was seen is a result.
	Voids []string     `json:"voids"`
	Cause ledger.Cause `json:"cause,omitempty"` // what tripped the gate, as far as the witness can tell

	// CauseShare is the fraction of the machine's CPU time that a cause outside the trial took, and Culprits its
	// processes or groups, the largest first.
	CauseShare *float64 `json:"cause_share,omitempty"`
	Culprits   []string `json:"culprits,omitempty"`
}

// Defined returns the definitions of the run's metrics.
func (r *Run) Defined() metric.Set { return metric.NewSet(r.Metrics) }

// FailedNodes lists the first few nodes at which the trial failed, with the reasons, and the number of others. It
// returns "" if the trial failed at none.
func (t *Trial) FailedNodes(most int) string {
	var failed []string
	for _, n := range t.Nodes {
		if n.Failed != "" {
			failed = append(failed, n.Name+": "+n.Failed)
		}
	}
	if more := len(failed) - most; more > 0 {
		failed = append(failed[:most], fmt.Sprintf("and at %d more", more))
	}
	return strings.Join(failed, "; ")
}
