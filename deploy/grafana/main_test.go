package main

import (
	"bytes"
	"encoding/json"
	"os"
	"testing"
)

// TestCommitted: tare.json is what this program makes.
func TestCommitted(t *testing.T) {
	want, err := os.ReadFile("tare.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := document()
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("tare.json is not what this program makes: run go generate ./deploy/grafana")
	}
}

// TestPanels: each panel has a title, a description and a unit, and queries the data source that the reader selects.
// Panels do not overlap.
func TestPanels(t *testing.T) {
	text, err := document()
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		Panels []struct {
			Type, Title, Description string
			Datasource               struct{ UID string }
			Targets                  []struct{ Expr string }
			GridPos                  struct{ X, Y, W, H int }
			FieldConfig              struct {
				Defaults  struct{ Unit string }
				Overrides []struct{ Properties []struct{ ID string } }
			}
		}
	}
	if err := json.Unmarshal(text, &d); err != nil {
		t.Fatal(err)
	}
	taken := map[[2]int]string{}
	panels := 0
	for _, p := range d.Panels {
		for x := p.GridPos.X; x < p.GridPos.X+p.GridPos.W; x++ {
			for y := p.GridPos.Y; y < p.GridPos.Y+p.GridPos.H; y++ {
				if by, ok := taken[[2]int{x, y}]; ok || x >= 24 {
					t.Fatalf("%q is over %q or beyond the edge", p.Title, by)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
		if p.Type == "row" {
			continue
		}
		panels++
		if len(p.Description) < 40 || p.Title == "" {
			t.Errorf("%q does not say what it shows", p.Title)
		}
		if p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			t.Errorf("%q has data source %q and %d queries", p.Title, p.Datasource.UID, len(p.Targets))
		}
		units := p.FieldConfig.Defaults.Unit != ""
		for _, o := range p.FieldConfig.Overrides {
			for _, property := range o.Properties {
				units = units || property.ID == "unit"
			}
		}
		if !units {
			t.Errorf("%q has no unit", p.Title)
		}
	}
	if panels < 15 {
		t.Errorf("there are %d panels", panels)
	}
}
