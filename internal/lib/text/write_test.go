package text

import (
	"bytes"
	"encoding/json"
	"testing"
)

// TestWriteJSON: the document is what encoding/json makes of it, which leaves out unexported fields.
func TestWriteJSON(t *testing.T) {
	type part struct {
		Name string `json:"name"`
		n    int
	}
	document := struct {
		Schema string         `json:"schema"`
		hidden map[string]int // encoding/json cannot see it
		Parts  []part         `json:"parts"`
		None   []part         `json:"none"`
		Left   []part         `json:"left,omitempty"`
		Out    string         `json:"-"`
		Map    map[string]int `json:"map"`
		last   *part
	}{"s/v1", map[string]int{"a": 1}, []part{{"a", 1}, {"<b>", 2}}, nil, nil, "out", map[string]int{"x": 1}, &part{"c", 3}}
	var got, want bytes.Buffer
	e := json.NewEncoder(&want)
	e.SetIndent("", "  ")
	if err := e.Encode(document); err != nil {
		t.Fatal(err)
	}
	if err := WriteJSON(&got, &document); err != nil || got.String() != want.String() {
		t.Errorf("%v\n%s\nwant\n%s", err, got.String(), want.String())
	}
}
