package report

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// likeEncoder compares AsJSON with a json.Encoder.
func likeEncoder(t *testing.T, document any) {
	t.Helper()
	var got, want bytes.Buffer
	e := json.NewEncoder(&want)
	e.SetIndent("", "  ")
	if err := e.Encode(document); err != nil {
		t.Fatal(err)
	}
	if err := AsJSON(&got, document); err != nil {
		t.Fatal(err)
	}
	if got.String() != want.String() {
		t.Errorf("it is\n%s, want\n%s", got.String(), want.String())
	}
}

func TestAsJSON(t *testing.T) {
	type inner struct {
		A string   `json:"a"`
		B []string `json:"b"`
	}
	type document struct {
		Text    string            `json:"text"`
		Not     string            `json:"not,omitempty"`
		Number  *float64          `json:"number,omitempty"`
		Null    *float64          `json:"null"`
		List    []inner           `json:"list"`
		NoList  []inner           `json:"no_list,omitempty"`
		Words   []string          `json:"words"`
		Map     map[string]string `json:"map,omitempty"`
		Struct  inner             `json:"struct,omitempty"`
		Flag    bool              `json:"flag,omitempty"`
		Anyhow  any               `json:"anyhow,omitempty"`
		Last    []int             `json:"last,omitempty"`
		Pairs   [2]int            `json:"pairs"`
		Another [][]int           `json:"another"`
	}
	one := 1.5
	likeEncoder(t, &document{})
	likeEncoder(t, &document{Text: "<a>\"\x01\xff\u2028", Not: "x", Number: &one,
		List:   []inner{{}, {A: "y", B: []string{}}, {B: []string{"z", ""}}},
		NoList: []inner{}, Words: []string{}, Map: map[string]string{"b": "1", "a": "2"}, Flag: true, Anyhow: inner{},
		Last: []int{1}})
	likeEncoder(t, &document{NoList: make([]inner, 2), Words: []string{"w"}, Map: map[string]string{},
		Another: [][]int{{}, nil, {1, 2}}})
	likeEncoder(t, inner{B: []string{"last", "of all"}})

	unknown := errors.New("unknown")
	if err := AsJSON(failing{unknown}, &inner{}); !errors.Is(err, unknown) {
		t.Error(err)
	}
	if err := AsJSON(&bytes.Buffer{}, &struct {
		F []any `json:"f"`
	}{[]any{func() {}}}); err == nil || !strings.Contains(err.Error(), "writing JSON: ") {
		t.Error(err)
	}
}

type failing struct{ err error }

func (f failing) Write([]byte) (int, error) { return 0, f.err }
