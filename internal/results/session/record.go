package session

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"tare/internal/experiment/engine"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/self"
)

// Record returns the content of run.json. program and args are the words of the command line that started the run.
func (f Flags) Record(s *spec.Spec, program, args []string, in record.Environment) (record.Run, error) {
	resolved, err := json.Marshal(s)
	if err != nil {
		return record.Run{}, fmt.Errorf("encoding the spec: %w", err)
	}
	now := time.Now()
	if !f.seeded {
		f.Seed = uint64(rand.Uint32()) // small enough for every JSON reader
	}
	r := record.Run{
		Schema: record.RunSchema, ID: fmt.Sprintf("%s-%s-%d", s.Name, now.UTC().Format("20060102T150405Z"), os.Getpid()),
		Experiment: s.Name, Question: s.Question, Spec: resolved, Baseline: s.BaselineName(), Seed: f.Seed, Blocks: s.Blocks,
		Plan:    engine.Plan(s, f.Seed),
		Started: now, Version: self.Version, Build: self.Build(), Environment: in,
		Command: again(program, args, append([]string{"out"}, f.Unrecorded...)),
	}
	r.Headline, r.Metrics, r.Until = s.Headlines(), measured.Definitions(), s.Until.Seconds()
	r.Phrases, r.Traits, r.Lacks = s.Phrases(), s.Traits(), s.Lacks()
	r.Assert = s.Assertions()
	if s.Precision != nil {
		r.Precision = &record.Precision{Target: s.Precision.Target, Metrics: s.PreciseMetrics()}
	}
	if s.Open() {
		first := *s
		first.Blocks = 1 // the run adds further blocks as it goes
		r.Blocks, r.Plan = 1, engine.Plan(&first, f.Seed)
	}
	if !f.seeded {
		r.Command = withFlag(r.Command, "--seed="+strconv.FormatUint(f.Seed, 10))
	}
	return r, nil
}

// withFlag adds a flag to a command, before "--" and the arguments after it.
func withFlag(command []string, flag string) []string {
	at := slices.Index(command, "--")
	if at < 0 {
		at = len(command)
	}
	return slices.Insert(command, at, flag)
}

// again returns the command that repeats an experiment, without some flags: --out, because a run never overwrites
// another, and those with credentials, because others read the record.
func again(program, args, without []string) []string {
	command := slices.Clone(program)
	for i := 0; i < len(args); i++ {
		if args[i] == "--" {
			return append(command, args[i:]...)
		}
		flag, isLong := strings.CutPrefix(args[i], "--")
		name, _, hasValue := strings.Cut(flag, "=")
		switch {
		case !isLong || !slices.Contains(without, name):
			command = append(command, args[i])
		case !hasValue:
			i++ // the value
		}
	}
	return command
}
