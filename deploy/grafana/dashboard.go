package main

import (
	"fmt"
	"strings"

	"github.com/grafana/grafana-foundation-sdk/go/cog"
	"github.com/grafana/grafana-foundation-sdk/go/common"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"
)

// build returns the dashboard. It has a row of panels for each topic: the machine, eBPF, components, groups and the
// agent on one machine, and then all machines together.
//
//nolint:staticcheck // The successor of this schema is for Grafana 12 and later; this one is for all.
func build() (dashboard.Dashboard, error) {
	b := dashboard.NewDashboardBuilder("Tare: what infrastructure costs").
		Uid("tare-agent").
		Description("The CPU budget of a machine, who pays for its eBPF programs, and what each component costs, as "+
			"tare-agent measures it.").
		Tags([]string{"tare", "ebpf"}).
		Time("now-1h", "now").Refresh("1m").
		Tooltip(dashboard.DashboardCursorSyncCrosshair)
	variables(b)
	for _, row := range []struct {
		title  string
		panels []cog.Builder[dashboard.Panel]
	}{
		{"Machine $instance", machine()},
		{"Who pays for eBPF on $instance", ebpf()},
		{"Components on $instance", components()},
		{"Namespaces, pods and containers on $instance", groups()},
		{"The agent on $instance", agent()},
		{"All machines of job $job", cluster()},
	} {
		b.WithRow(dashboard.NewRowBuilder(row.title))
		for _, p := range row.panels {
			b.WithPanel(p)
		}
	}
	d, err := b.Build()
	if err != nil {
		return d, fmt.Errorf("building the dashboard: %w", err)
	}
	return d, nil
}

// variables adds the variables that the reader can set: the data source, the job, the machine, and namespaces.
//
//nolint:staticcheck // as for build
func variables(b *dashboard.DashboardBuilder) {
	query := func(name, title, of string) *dashboard.QueryVariableBuilder {
		return dashboard.NewQueryVariableBuilder(name).Label(title).Datasource(source()).
			Query(dashboard.StringOrMap{String: &of}).Refresh(dashboard.VariableRefreshOnTimeRangeChanged).
			Sort(dashboard.VariableSortAlphabeticalAsc)
	}
	b.WithVariable(dashboard.NewDatasourceVariableBuilder("datasource").Label("Data source").Type("prometheus"))
	b.WithVariable(query("job", "Job", "label_values(tare_node_cpus, job)"))
	b.WithVariable(query("instance", "Machine", `label_values(tare_node_cpus{job="$job"}, instance)`))
	// "All" stands for .*, which also matches a missing label, so it includes what is in no namespace, such as systemd's
	// units.
	b.WithVariable(query("namespace", "Namespace",
		`label_values(tare_namespace_cpu_seconds_total{job="$job", instance="$instance"}, namespace)`).
		Multi(true).IncludeAll(true).AllValue(".*").
		Current(dashboard.VariableOption{Selected: cog.ToPtr(true),
			Text:  dashboard.StringOrArrayOfString{String: cog.ToPtr("All")},
			Value: dashboard.StringOrArrayOfString{String: cog.ToPtr("$__all")}}))
}

// on fills the variables into a query: tare_x{@} selects the chosen machine, and tare_x{*} all machines of its job. A
// rate over [] follows the step of the graph, and one over [r] covers the time range that is shown.
func on(expr string) string {
	return strings.NewReplacer(
		"{@", `{job="$job", instance="$instance"`,
		"{*", `{job="$job"`,
		"[]", "[$__rate_interval]",
		"[r]", "[$__range]",
	).Replace(expr)
}

func machine() []cog.Builder[dashboard.Panel] {
	budget := stacked("CPU budget", cpus,
		"Every CPU second of the machine is on one line: idle, stolen by the hypervisor, in control groups, in processes "+
			"outside of them, in kernel threads, in eBPF programs, in interrupts, in the agent (self), or unexplained. The "+
			"dashed line is the capacity. CPU time that the kernel counts on two lines is shown below zero: the sum of the "+
			"lines, less that time, is the capacity.",
		over(on(`rate(tare_node_cpu_seconds_total{@}[])`), "{{line}}"),
		over(on(`-rate(tare_node_cpu_counted_twice_seconds_total{@}[])`), "counted twice"),
		over(on(`rate(tare_node_cpu_capacity_seconds_total{@}[])`), "capacity")).Span(whole).Height(high)
	line(budget, "capacity", dashed)
	line(budget, "idle", map[string]any{"color": fixed("dark-green"), "custom.fillOpacity": 10})
	line(budget, "unexplained", map[string]any{"color": fixed("red")})
	line(budget, "steal", map[string]any{"color": fixed("purple")})
	steal := graph("Steal and longest stall", part,
		"The part of the capacity that the hypervisor took away, and (right axis) the longest time in the last minute for "+
			"which it took a CPU away. Stalls of milliseconds lengthen the tail of every latency on the machine, however "+
			"small the part is.",
		over(on(`rate(tare_node_cpu_seconds_total{@, line="steal"}[])`+
			` / ignoring (line) rate(tare_node_cpu_capacity_seconds_total{@}[])`), "stolen"),
		over(on(`tare_node_cpu_longest_stall_seconds{@}`), "longest stall"))
	line(steal, "longest stall", map[string]any{"custom.axisPlacement": "right", "unit": seconds})
	unexplained := graph("Unexplained", part,
		"The part of the capacity that was not idle and is on no line of the budget, and the part that is on two lines. Up "+
			"to a few percent come from the resolution of the kernel's counters. More than 5 % for a long time means that the "+
			"agent sees only a part of the machine: look at its collectors and warnings below.",
		over(on(`rate(tare_node_cpu_seconds_total{@, line="unexplained"}[])`+
			` / ignoring (line) rate(tare_node_cpu_capacity_seconds_total{@}[])`), "unexplained"),
		over(on(`rate(tare_node_cpu_counted_twice_seconds_total{@}[]) / rate(tare_node_cpu_capacity_seconds_total{@}[])`),
			"counted twice")).
		Thresholds(dashboard.NewThresholdsConfigBuilder().Mode(dashboard.ThresholdsModeAbsolute).
			Steps([]dashboard.Threshold{{Color: "green"}, {Value: cog.ToPtr(0.05), Color: "red"}})).
		ThresholdsStyle(common.NewGraphThresholdsStyleConfigBuilder().Mode(common.GraphThresholdsStyleModeDashed))
	return []cog.Builder[dashboard.Panel]{budget, steal, unexplained}
}

// payer lists the labels that say who pays for a program. program lists the labels that identify a program even after
// it was loaded again with another ID.
const (
	payer   = "namespace, pod, container, unit, cgroup"
	program = "program, component, charge"
)

func ebpf() []cog.Builder[dashboard.Panel] {
	pays := stacked("Who pays for eBPF", cpus,
		"Run time of all eBPF programs by the container, pod, systemd unit or control group in whose system calls and "+
			"interrupts they ran: the ten largest. \"Not split\" is run time of which the agent does not know who pays for "+
			"it, because it has too few samples. (idle) is time in interrupts above an idle CPU.",
		over(on(`topk(10, sum by (`+payer+`) (rate(tare_bpf_payer_seconds_total{@, namespace=~"$namespace"}[])))`),
			"{{namespace}} {{pod}} {{container}} {{unit}} {{cgroup}}"),
		over(on(`sum(rate(tare_bpf_unsplit_seconds_total{@}[])) or vector(0)`), "not split")).Height(high)
	table := rows("Who pays for which program", "The same by program, over the time range that is shown: the 50 largest. "+
		"The part is the fraction of the run time of all eBPF programs on the machine.",
		[]column{label("program"), label("namespace"), label("pod"), label("container"), label("unit"), label("cgroup"),
			value("A", "CPUs", cpus), value("B", "part", part)},
		now("A", on(`topk(50, sum by (program, `+payer+`) (rate(tare_bpf_payer_seconds_total{@, namespace=~"$namespace"}[r])))`)),
		now("B", on(`topk(50, sum by (program, `+payer+`) (rate(tare_bpf_payer_seconds_total{@, namespace=~"$namespace"}[r])))`+
			` / scalar(sum(rate(tare_bpf_program_run_seconds_total{@}[r])))`)))
	top := rows("Programs", "Programs that ran in the time range, by their run time, with the time that one run took and "+
		"how often they ran. A program that is loaded again has another id, so programs with the same name and component "+
		"are added up.",
		[]column{label("program"), label("component"), label("charge"),
			value("A", "CPUs", cpus), value("B", "per run", seconds), value("C", "runs", perSec)},
		now("A", on(`sum by (`+program+`) (rate(tare_bpf_program_run_seconds_total{@}[r])) > 0`)),
		now("B", on(`sum by (`+program+`) (rate(tare_bpf_program_run_seconds_total{@}[r]))`+
			` / (sum by (`+program+`) (rate(tare_bpf_program_runs_total{@}[r])) > 0)`)),
		now("C", on(`sum by (`+program+`) (rate(tare_bpf_program_runs_total{@}[r])) > 0`)))
	perRun := graph("Time per run", seconds,
		"How long one run of each of the ten costliest programs took. It is wall time, which includes interrupts and "+
			"stolen time. A program that takes longer with the same work has fuller maps, colder caches, or a new version.",
		over(on(`sum by (`+program+`) (rate(tare_bpf_program_run_seconds_total{@}[]))`+
			` / (sum by (`+program+`) (rate(tare_bpf_program_runs_total{@}[])) > 0)`+
			` and topk(10, sum by (`+program+`) (rate(tare_bpf_program_run_seconds_total{@}[])))`), "{{program}} {{component}}")).
		Height(high)
	maps := stacked("Memory of maps", bytesIn,
		"Memory of the ten largest eBPF maps, each counted once, however many programs use it, and (dashed) the sum of all "+
			"maps. Maps with the same name, type and component are added up.",
		over(on(`topk(10, sum by (map, type, component) (tare_bpf_map_bytes{@}))`), "{{map}} {{type}} {{component}}"),
		over(on(`sum(tare_bpf_map_bytes{@})`), "all maps"))
	line(maps, "all maps", dashed)
	programs := graph("Run time by component", cpus,
		"Run time of each component's eBPF programs, in whichever control groups they ran.",
		over(on(`sum by (charge, component) (rate(tare_component_bpf_seconds_total{@}[]))`), "{{charge}} {{component}}"))
	return []cog.Builder[dashboard.Panel]{pays, table, top, perRun, maps, programs}
}

func components() []cog.Builder[dashboard.Panel] {
	return []cog.Builder[dashboard.Panel]{
		stacked("CPU time by component", cpus,
			"CPU time of each component's processes, as the rules in the agent's configuration charge it; unknown is what no "+
				"rule names. Each second counts in one component, and the sum is what the budget attributes. The time includes "+
				"eBPF programs of other components that ran while the component's processes were on the CPU.",
			over(on(`sum by (charge, component, workload) (rate(tare_component_cpu_seconds_total{@}[]))`),
				"{{charge}} {{component}} {{workload}}")).Span(third),
		stacked("Share of the machine", part,
			"The part of the machine's capacity that each component of the infrastructure takes (charge tare): its processes, "+
				"and its eBPF programs in whichever control groups they ran. Run time of its programs in its own groups counts "+
				"twice, so this is an upper bound. It is empty without rules that charge something to tare.",
			over(on(`(sum by (component) (rate(tare_component_cpu_seconds_total{@, charge="tare"}[]))`+
				` + sum by (component) (rate(tare_component_bpf_seconds_total{@, charge="tare"}[])))`+
				` / scalar(rate(tare_node_cpu_capacity_seconds_total{@}[]))`), "{{component}}")).Span(third),
		stacked("Memory by component", bytesIn,
			"Hard memory of each component's control groups, which the kernel cannot reclaim. Maps of eBPF programs are "+
				"kernel memory of the group that created them; those of a component are also shown separately, as \"maps\".",
			over(on(`sum by (charge, component, workload) (tare_component_memory_hard_bytes{@})`),
				"{{charge}} {{component}} {{workload}}"),
			over(on(`sum by (charge, component) (tare_component_bpf_map_bytes{@})`), "maps: {{charge}} {{component}}")).
			Stacking(common.NewStackingConfigBuilder().Mode(common.StackingModeNone)).FillOpacity(0).LineWidth(1).Span(third),
	}
}

func groups() []cog.Builder[dashboard.Panel] {
	return []cog.Builder[dashboard.Panel]{
		stacked("CPU time by namespace", cpus,
			"CPU time of all pods of a namespace, including those that are gone. CPU time in no pod has no name.",
			over(on(`sum by (namespace) (rate(tare_namespace_cpu_seconds_total{@, namespace=~"$namespace"}[]))`),
				"{{namespace}}")),
		stacked("CPU time by pod or unit", cpus,
			"CPU time of the 15 busiest pods, with all their containers, and systemd units. Other control groups are listed "+
				"by their path.",
			over(on(`topk(15, sum by (namespace, pod, unit) (rate(tare_group_cpu_seconds_total{@, namespace=~"$namespace"}[])))`),
				"{{namespace}} {{pod}} {{unit}}")),
		rows("Containers, pods, units and groups",
			"CPU time over the time range, and hard memory, of each container, of each pod outside of its containers, of "+
				"systemd units, and of other control groups; and the run time of the eBPF programs that they pay for, which is "+
				"a part of their CPU time.",
			[]column{label("namespace"), label("pod"), label("container"), label("unit"), label("cgroup"),
				value("A", "CPUs", cpus), value("B", "hard memory", bytesIn), value("C", "eBPF", cpus)},
			now("A", on(`topk(100, sum by (`+payer+`) (rate(tare_group_cpu_seconds_total{@, namespace=~"$namespace"}[r])))`)),
			now("B", on(`sum by (`+payer+`) (tare_group_memory_bytes{@, kind="hard", namespace=~"$namespace"})`+
				` and topk(100, sum by (`+payer+`) (rate(tare_group_cpu_seconds_total{@, namespace=~"$namespace"}[r])))`)),
			now("C", on(`sum by (`+payer+`) (rate(tare_bpf_payer_seconds_total{@, namespace=~"$namespace"}[r]))`+
				` and topk(100, sum by (`+payer+`) (rate(tare_group_cpu_seconds_total{@, namespace=~"$namespace"}[r])))`))).
			Span(whole),
	}
}

func agent() []cog.Builder[dashboard.Panel] {
	memory := graph("Memory", bytesIn, "Resident memory of the agent, and memory of its own eBPF programs and maps.",
		over(on(`tare_agent_resident_memory_bytes{@}`), "resident"),
		over(on(`tare_agent_bpf_memory_bytes{@}`), "eBPF")).Span(third)
	lost := graph("Samples", perSec,
		"Samples that the agent takes to split eBPF run time, and those that it lost. Totals come from counters and "+
			"stay right. A split is biased if the lost samples are mostly of certain programs or groups.",
		over(on(`rate(tare_agent_samples_total{@}[])`), "taken"),
		over(on(`rate(tare_agent_samples_lost_total{@}[])`), "lost")).Span(third)
	line(lost, "lost", map[string]any{"color": fixed("red")})
	return []cog.Builder[dashboard.Panel]{
		stacked("What the agent costs", cpus,
			"CPU time of the agent's process and of its eBPF programs, and two estimates of what it costs others: the "+
				"kernel's run statistics, which lengthen each run of every eBPF program, and looking for stolen time.",
			over(on(`rate(tare_agent_cpu_seconds_total{@}[])`), "process"),
			over(on(`rate(tare_agent_bpf_seconds_total{@}[])`), "its eBPF programs"),
			over(on(`rate(tare_agent_bpf_stats_seconds_total{@}[])`), "run statistics (estimate)"),
			over(on(`rate(tare_agent_witness_seconds_total{@}[])`), "stolen time (estimate)")).Span(third),
		memory, lost,
		graph("Duration of collectors", seconds,
			"How long each part of the last reading took. A part takes longer if there are more control groups, programs or "+
				"maps to read.",
			over(on(`tare_agent_collector_duration_seconds{@}`), "{{collector}}")).Span(third),
		graph("Collectors that work", plain,
			"1 if a collector succeeded in the last reading, 0 if it failed. The metrics of a failed collector are missing, "+
				"and all others are right.",
			over(on(`tare_agent_collector_success{@}`), "{{collector}}")).Span(third).Decimals(0),
		rows("Warnings and limits", "Warnings of the last reading by their code (their texts are in the agent's "+
			"/v1/ledger), and the metrics with more series than --max-series. The others of such a metric are added up in "+
			"one series, \"(other)\"; the table has their number.",
			[]column{label("code"), label("metric"), value("A", "warning", plain), value("B", "series omitted", plain)},
			now("A", on(`sum by (code) (tare_agent_warning{@})`)),
			now("B", on(`sum by (metric) (tare_agent_series_omitted{@})`))).Span(third).Height(low),
	}
}

// cluster returns panels of sums over machines. They query the agents' own metrics, so the dashboard needs no recording
// rules.
func cluster() []cog.Builder[dashboard.Panel] {
	return []cog.Builder[dashboard.Panel]{
		stacked("Cost by component", cpus,
			"CPU time of the processes of each component of the infrastructure (charge tare), and run time of its eBPF "+
				"programs, over all machines. It is empty without rules that charge something to tare.",
			over(on(`sum by (component) (rate(tare_component_cpu_seconds_total{*, charge="tare"}[]))`+
				` + sum by (component) (rate(tare_component_bpf_seconds_total{*, charge="tare"}[]))`), "{{component}}")),
		stacked("Who pays for eBPF, by namespace", cpus,
			"Run time of eBPF programs over all machines, by the namespace that pays for it. Run time in no pod has no "+
				"name.",
			over(on(`topk(15, sum by (namespace) (rate(tare_bpf_payer_seconds_total{*, namespace=~"$namespace"}[])))`),
				"{{namespace}}")),
		rows("Machines", "For each machine over the time range, as parts of its capacity: run time of eBPF programs, "+
			"what was stolen, what is unexplained, and what the agent takes.",
			[]column{label("instance"), value("A", "eBPF", part), value("B", "steal", part), value("C", "unexplained", part),
				value("D", "agent", part)},
			now("A", on(`sum by (instance) (rate(tare_bpf_program_run_seconds_total{*}[r]))`+capacity)),
			now("B", on(`sum by (instance) (rate(tare_node_cpu_seconds_total{*, line="steal"}[r]))`+capacity)),
			now("C", on(`sum by (instance) (rate(tare_node_cpu_seconds_total{*, line="unexplained"}[r]))`+capacity)),
			now("D", on(`sum by (instance) (rate(tare_agent_cpu_seconds_total{*}[r]))`+capacity))).Span(whole),
	}
}

// capacity is the end of a query: it divides a sum by instance by the capacity of the machine.
const capacity = ` / sum by (instance) (rate(tare_node_cpu_capacity_seconds_total{*}[r]))`
