package spec

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tare/internal/results/analysis"
)

// TestPhrases: the levels of built-in experiments are described in words.
func TestPhrases(t *testing.T) {
	for name, want := range map[string]string{
		"config-flush": "for a cluster deleted from bytes on the wire",
		"config-path":  "with one service", "config-scale": "with one service", "ebpf-memory": "with one service",
		"config-push":     "of all services at once in a mesh of one service",
		"ebpf-saturation": "with 100 connections", "ebpf-stress": "with 1000000 extra steps in each program",
		"ebpf-cpu-limit": "at client.count 1",
		"trace-exec":     "at 100 execs/s", "trace-scaling": "on 12 nodes", "trace-starved": "without a busy neighbour",
	} {
		text, err := os.ReadFile(filepath.Join("..", "..", "..", "experiments", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		spec := mustParse(t, string(text))
		s := &analysis.Summary{Phrases: spec.Phrases()}
		var read []string
		for _, level := range spec.Levels() {
			read = append(read, s.At(level))
		}
		if !slices.Contains(read, want) {
			t.Errorf("%s: no level reads %q, but %q", name, want, read)
		}
	}
}

// TestPhrasesOfShortForm: the phrases are the same if the short form leaves out arms.
func TestPhrasesOfShortForm(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "..", "..", "experiments", "mesh-size.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	spec := mustParse(t, string(text))
	spec.applyQuick()
	s := &analysis.Summary{Phrases: spec.Phrases()}
	if got := s.At(spec.Levels()[0]); got != "with 10 services" {
		t.Errorf("%q", got)
	}
}

// TestPhrasesTellApart: two factors whose phrases would be the same are given by name.
func TestPhrasesTellApart(t *testing.T) {
	spec := mustParse(t, `
name: two
question: Which?
applications:
  app: {kind: http}
loads:
  a: {kind: http, to: app, rate: 10}
  b: {kind: http, to: app, rate: 10}
arms:
  mesh: {subject: kernelmesh}
factors:
  a.rate: [10, 20]
  b.rate: [10, 20]
  a.connections: [1, 2]
`)
	s := &analysis.Summary{Phrases: spec.Phrases()}
	got := s.At(map[string]string{"a.rate": "10", "b.rate": "20", "a.connections": "2"})
	if want := "with 2 connections at a.rate 10, b.rate 20"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestTraits: a store's trait says how much of a change becomes visible at once, unless the design is a factor.
func TestTraits(t *testing.T) {
	text := `
name: stores
question: Which?
baseline: {subject: store, store: pooled}
arms:
  one: {subject: store, store: snapshot}
  other: {subject: store, store: "sized:replace"}
factors:
  arms.other.store: [value, sized]
`
	if got, want := mustParse(t, text).Traits(), map[string]string{"direct": "whole per record",
		"one": "whole per change"}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// TestLacks: compared with proxies, an experiment says what kernelmesh lacks; otherwise it says nothing.
func TestLacks(t *testing.T) {
	const text = `
name: kernel
question: Which?
applications:
  server: {kind: http}
loads:
  client: {kind: http, to: server, rate: 10}
arms:
  mine: {subject: kernelmesh}
  OTHER
`
	for other, want := range map[string]bool{
		"haproxy: {subject: haproxy}": true, "other: {subject: kernelmesh, steps: 1}": false,
	} {
		lacks := mustParse(t, strings.Replace(text, "OTHER", other, 1)).Lacks()
		if said := strings.Contains(lacks["mine"], "no mutual TLS") && strings.Contains(lacks["mine"], "L7"); said != want ||
			lacks["haproxy"] != "" {
			t.Errorf("beside %s: %q", other, lacks)
		}
	}
}
