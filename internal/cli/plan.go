package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"tare/experiments"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
	"tare/internal/results/plan"
	"tare/internal/results/report"
	"tare/internal/results/session"
)

func init() { register(newPlan) }

// maxLevels is the maximum number of factors that a plan can set.
const maxLevels = 64

// The settings of --node and --prices.
var (
	nodeSettings = []param.Setting{
		{Name: "cpus", Type: param.TypeNumber, Min: 0.001, Max: 1e5, Doc: "the CPUs of a node that are free"},
		{Name: "memory", Type: param.TypeBytes, Min: 1 << 20, Max: 1 << 50, Doc: "the memory of a node that is free"},
	}
	priceSettings = []param.Setting{
		{Name: "cpu", Type: param.TypeNumber, Max: 1e9, Doc: "the price of one CPU for one hour"},
		{Name: "memory", Type: param.TypeNumber, Max: 1e9, Doc: "the price of one GiB of memory for one hour"},
	}
)

func newPlan() *cobra.Command {
	var levels, node, prices string
	var copies uint32
	var ask plan.Ask
	var show session.Show
	c := &cobra.Command{
		Use:   "plan RUN...",
		Short: "Predict CPUs, memory and nodes for a load, from the models of recorded runs",
		Long: `Predict what a load that was not run needs, from recorded runs that swept it: CPUs and memory by component with
prediction intervals, what to request, and the number of nodes of a size. Figures are from the lines that runs fit
through their levels (see 'tare report --all'). A metric that fits no line is named, and has a figure within its levels
only, or none.

A level outside of the measured range is refused unless --beyond is given. A factor that no run swept is named, with the
command that would measure it. Of several runs that have the same cost, one is used, and the others are named.

RUN is a run directory, or a directory that holds some.`,
		Example: `  tare plan tare-run-mesh-rate-20260102-030405 --for rate=2000
  tare plan DIR --for rate=100 --copies 200 --node cpus=4,memory=16GiB
  tare plan rate/ services/ --for rate=2000,services=500 --arm envoy --node cpus=4,memory=16GiB
  tare plan DIR --for services=5000 --prices cpu=0.03,memory=0.004 --format json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fault.New(fault.Usage, cmd.CommandPath(), "name the directories that 'tare run' wrote",
					"want one run or more, got none")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			write, err := report.Plans.Writer(show.Format)
			if err != nil {
				return err
			}
			if ask.For, err = levelsOf(levels); err != nil {
				return err
			}
			if node != "" {
				v, err := settingsOf("--node", node, nodeSettings)
				if err != nil {
					return err
				}
				ask.Node = &plan.Size{CPUs: v.Float("cpus"), MemoryBytes: v.Float("memory")}
			}
			if prices != "" {
				v, err := settingsOf("--prices", prices, priceSettings)
				if err != nil {
					return err
				}
				ask.Prices = &plan.Prices{CPU: v.Float("cpu"), Memory: v.Float("memory")}
			}
			if copies == 0 {
				return fault.New(fault.Usage, "--copies", "such as --copies 200", "it must be at least 1")
			}
			ask.Copies, ask.Measure = float64(copies), measureCommand
			return promptly(cmd.Context(), func() error {
				var sources []comparison.Source
				for _, dir := range args {
					some, err := sourcesIn(dir, nil)
					if err != nil {
						return err
					}
					sources = append(sources, some...)
				}
				p, err := plan.Make(sources, ask)
				if err != nil {
					return err
				}
				out := cmd.OutOrStdout()
				return write(out, p, textOptions(out, "", show.All))
			})
		},
	}
	c.Flags().StringVar(&levels, "for", "", "levels of factors to plan for, such as rate=2000,services=500")
	c.Flags().Uint32Var(&copies, "copies", 1, "number of copies, such as pods, each with the load of --for")
	c.Flags().StringVar(&ask.Arm, "arm", "", "arm to plan; default: all that have a subject")
	c.Flags().StringVar(&node, "node", "",
		"free capacity of a node, such as cpus=4,memory=16GiB; prints how many are needed")
	c.Flags().StringVar(&prices, "prices", "",
		"money per hour for one CPU and one GiB of memory, such as cpu=0.03,memory=0.004")
	c.Flags().BoolVar(&ask.Beyond, "beyond", false, "plan outside of the measured range as well")
	registerFormat(c, &show, report.Plans)
	return c
}

// pairsOf parses a list of name=value in which each name must be unique.
func pairsOf(flag, list, hint string) (map[string]string, error) {
	pairs := map[string]string{}
	for _, one := range strings.Split(list, ",") {
		name, value, is := strings.Cut(one, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		_, twice := pairs[name]
		switch {
		case !is || name == "" || value == "":
			return nil, fault.New(fault.Usage, flag, hint, "%q is not NAME=VALUE", text.Clip(one))
		case twice:
			return nil, fault.New(fault.Usage, flag, hint, "%q is there twice", text.Clip(name))
		}
		if pairs[name] = value; len(pairs) > maxLevels {
			return nil, fault.New(fault.Usage, flag, hint, "it has more than %d names", maxLevels)
		}
	}
	return pairs, nil
}

// levelsOf parses the levels to plan for: numbers, durations or sizes, 0 or more.
func levelsOf(list string) (map[string]float64, error) {
	const flag, hint = "--for", "such as rate=2000,services=500"
	pairs, err := pairsOf(flag, list, hint)
	if err != nil {
		return nil, err
	}
	levels := map[string]float64{}
	for name, value := range lists.ByKey(pairs) {
		v, is := analysis.LevelNumber(value)
		if !is {
			canonical, err := param.Setting{Type: param.TypeBytes}.Canonical(value)
			if err != nil {
				return nil, fault.New(fault.Usage, flag, hint, "%q must be a number, a duration or a size, not %q",
					text.Clip(name), text.Clip(value))
			}
			v, _ = analysis.LevelNumber(canonical)
		}
		if v < 0 || v > 1e15 {
			return nil, fault.New(fault.Usage, flag, hint, "%q must be 0 to 1e15, not %q", text.Clip(name), text.Clip(value))
		}
		levels[name] = v
	}
	return levels, nil
}

// settingsOf parses a list of NAME=VALUE, which must have a value for each of the settings, and no others.
func settingsOf(flag, list string, settings []param.Setting) (param.Values, error) {
	hint := strings.Join(lists.Map(settings, param.Setting.Hint), "; ")
	pairs, err := pairsOf(flag, list, hint)
	if err != nil {
		return nil, err
	}
	values := param.Values{}
	for _, s := range settings {
		raw, is := pairs[s.Name]
		if !is {
			return nil, fault.New(fault.Usage, flag, hint, "%q is missing", s.Name)
		}
		delete(pairs, s.Name)
		canonical, err := s.Canonical(raw)
		if err != nil {
			return nil, fault.New(fault.Usage, flag, hint, "%q %s", s.Name, err)
		}
		values[s.Name] = canonical
	}
	for name := range lists.ByKey(pairs) {
		return nil, fault.New(fault.Usage, flag, hint, "there is no %q", text.Clip(name))
	}
	return values, nil
}

// measureCommand returns the 'tare run' command that measures the given levels of a factor, or "" if there is none. It
// runs the experiment of the given run if that accepts the levels, or else the first built-in one that accepts them and
// has one of the arms.
func measureCommand(run record.Run, arms []string, factor string, levels []float64) string {
	seconds := func(v float64) string { return param.Number(v) + "s" }
	texts := []string{
		strings.Join(lists.Map(levels, param.Number), ","), strings.Join(lists.Map(levels, seconds), ","),
	}
	for _, name := range lists.Include([]string{run.Experiment}, experiments.Names()...) {
		s, err := builtIn(name)
		has := func(arm string) bool { return s.Arms[arm] != nil }
		if err != nil || name != run.Experiment && !slices.ContainsFunc(arms, has) {
			continue
		}
		names := []string{factor}
		if !strings.Contains(factor, ".") { // it may be a setting of a load or of several guests, rather than of the arms
			for load := range lists.ByKey(s.Loads) {
				names = append(names, load+"."+factor)
			}
			names = append(names, "*."+factor)
		}
		for _, full := range names {
			for _, text := range texts {
				set := full + "=" + text
				if s, err = builtIn(name); err == nil && s.Apply(spec.Overrides{Set: []string{set}}) == nil {
					form := ""
					if name == run.Experiment && slices.Contains(run.Command, "--quick") {
						form = " --quick"
					}
					return fmt.Sprintf("tare run %s%s --set '%s'", name, form, set)
				}
			}
		}
	}
	return ""
}

// builtIn returns the built-in experiment with a name from a record. Any other name, such as that of a user's spec, is
// an error.
func builtIn(name string) (*spec.Spec, error) {
	if !slices.Contains(experiments.Names(), name) {
		return nil, session.NoSuchExperiment("tare run", text.Clip(name), "")
	}
	return loadSpec(name)
}
