package session

import (
	"strconv"

	"github.com/spf13/pflag"

	"tare/internal/experiment/spec"
	"tare/internal/lib/fault"
)

// Flags holds the flags that all runs have in common: the run's directory, length and seed, and what is printed of its
// result.
type Flags struct {
	Out       string
	Seed      uint64
	Overrides spec.Overrides
	Show      Show
	// Unrecorded names the flags that are left out of the command in the record. Each of them must take a value.
	Unrecorded []string
	seeded     bool
}

// Show selects the parts of a result that are printed.
type Show struct {
	Format string
	All    bool // print everything instead of the answer and the headlines
}

// JSON reports whether the output is one JSON document and nothing else.
func (s *Show) JSON() bool { return s.Format == "json" }

// RegisterJSON adds --json.
func (s *Show) RegisterJSON(fs *pflag.FlagSet, usage string) {
	fs.BoolFunc("json", usage, func(value string) error {
		is, err := strconv.ParseBool(value)
		if is {
			s.Format = "json"
		}
		return err
	})
}

// RegisterAll adds --all.
func (s *Show) RegisterAll(fs *pflag.FlagSet) {
	fs.BoolVar(&s.All, "all", false, "print every metric, note and model, not only the answer and its evidence")
}

// Register adds the flags.
func (f *Flags) Register(fs *pflag.FlagSet) {
	f.Show.RegisterJSON(fs, "print the summary as one JSON document instead of the report")
	f.Show.RegisterAll(fs)
	fs.StringVar(&f.Out, "out", "", "run directory; default tare-run-NAME-TIME here")
	fs.IntVar(&f.Overrides.Blocks, "blocks", 0, "number of blocks, instead of the spec's")
	fs.StringVar(&f.Overrides.Precision, "precision", "",
		"run until intervals are this narrow, such as 5%, instead of the number of blocks in the spec")
	fs.DurationVar(&f.Overrides.Until, "until", 0,
		"begin no block after this time, such as 10m; with --precision the default is 30m")
	fs.StringArrayVar(&f.Overrides.Assert, "assert", nil,
		"budget that decides the exit code, such as 'memory_hard_bytes <= 50MB' or 'latency_p99_seconds <= +10%'; may "+
			"be repeated")
	fs.Uint64Var(&f.Seed, "seed", 0,
		"seed of the order of trials and of the arrivals; default: a new one, which is recorded")
}

// RegisterSpec adds the flags that change a named experiment.
func (f *Flags) RegisterSpec(fs *pflag.FlagSet) {
	fs.BoolVar(&f.Overrides.Quick, "quick", false, "the short form of the experiment")
	fs.StringArrayVar(&f.Overrides.Set, "set", nil, "setting=value, or setting=a,b to sweep; may be repeated")
}

// Check rejects zeros that the user gave, because spec.Overrides takes a zero to mean the value in the spec. It also
// records whether a seed was given.
func (f *Flags) Check(fs *pflag.FlagSet) error {
	f.seeded = fs.Changed("seed")
	o := f.Overrides
	switch {
	case o.Blocks <= 0 && fs.Changed("blocks"):
		return fault.New(fault.Usage, "--blocks", "intervals need 6 blocks", "must be at least 1, got %d", o.Blocks)
	case o.SampleHz == 0 && fs.Changed("hz"):
		return fault.New(fault.Usage, "--hz", "only 'tare weigh' and 'tare top' can do without samples",
			"must be at least 1, got 0")
	case o.Until == 0 && fs.Changed("until"):
		return fault.New(fault.Usage, "--until", "such as --until 10m", "must be at least 1s, got 0s")
	}
	return nil
}
