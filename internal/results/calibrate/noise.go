package calibrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"tare/internal/experiment/engine"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/metric"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/lib/files"
	"tare/internal/lib/quantity"
	"tare/internal/lib/self"
	"tare/internal/results/analysis"
	"tare/internal/scale/meter"
)

// noiseSpec compares a server and a load with themselves: any difference is noise.
const noiseSpec = `name: noise
question: What separates two things that are the same?
blocks: %d
warmup: 200ms
duration: %s
repeat: %d%%
applications:
  server: {kind: http, limits: {pin: 1}}
loads:
  client: {kind: http, to: server, mode: open, rate: 2000, arrivals: poisson, connections: 16, keepalive: false, limits: {pin: 2}}
`

// noise runs an experiment of only the baseline and its twin, and reports the smallest difference that it could see.
func (b *bench) noise() ([]planting, error) {
	blocks, d := 10, 2*time.Second
	if b.o.Quick {
		blocks, d = 6, 400*time.Millisecond
	}
	repeat := 50 // % of the plan's time, the default of specs
	if b.late() {
		repeat = 0
	}
	return []planting{{fmt.Sprintf("the baseline against itself, %d blocks", blocks),
		func(ctx context.Context) (ws []Weight, err error) {
			s, err := spec.Parse("noise.yaml", fmt.Appendf(nil, noiseSpec, blocks, d, repeat), nil)
			if err != nil {
				return nil, err
			}
			summary, err := b.experiment(ctx, s)
			if err != nil {
				return nil, err
			}
			if !summary.Valid {
				b.report.Warnings = append(b.report.Warnings, fmt.Sprintf("the noise run is invalid: %v", summary.InvalidReasons))
			}
			planted := fmt.Sprintf("2000 connections/s on a server, against the same again: %d blocks of %v; the largest "+
				"difference that is not ruled out", summary.Blocks, d)
			defined := metric.NewSet(measured.Definitions())
			for _, m := range summary.MDE {
				ws = append(ws, told("smallest visible difference, "+quantity.Label(m.Metric), defined.Of(m.Metric).Unit, m.Value,
					planted))
			}
			return ws, nil
		}}}, nil
}

// experiment runs a spec in a temporary run directory.
func (b *bench) experiment(ctx context.Context, s *spec.Spec) (_ *analysis.Summary, err error) {
	dir, err := files.NewScratch("", "calibrate")
	if err != nil {
		return nil, fmt.Errorf("making a run directory: %w", err)
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	m, err := meter.New(ctx, meter.Options{SampleHz: s.SampleHz, Whole: true})
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	resolved, err := json.Marshal(s)
	if err != nil {
		return nil, fmt.Errorf("encoding the spec: %w", err)
	}
	const seed = 1
	run := record.Run{
		Schema: record.RunSchema, ID: "calibrate", Experiment: s.Name, Question: s.Question, Spec: resolved, Seed: seed,
		Blocks: s.Blocks,
		Plan:   engine.Plan(s, seed), Started: time.Now(), Version: self.Version, Metrics: measured.Definitions(),
	}
	w, err := record.Create(filepath.Join(dir.Path(), "run"), run)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.Close()) }()
	machine := engine.Machine{Self: b.o.Self, Cgroups: b.layout,
		OpenWindow: func(ctx context.Context, at int64) (engine.Window, error) {
			return m.OpenAt(ctx, at)
		}}
	runner := &engine.Runner{Machine: machine, Spec: s, Record: &run, Writer: w, Progress: func(engine.Progress) {}}
	trials, err := runner.Run(ctx)
	if err != nil {
		return nil, err
	}
	return analysis.Summarize(run, trials)
}
