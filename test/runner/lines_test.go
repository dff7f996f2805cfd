package main

import (
	"slices"
	"strings"
	"testing"
)

func TestTooLong(t *testing.T) {
	fits, long := strings.Repeat("x", maxColumns), strings.Repeat("x", maxColumns+1)
	for _, c := range []struct {
		name, path, text string
		want             []int
	}{
		{"fits", "a.md", fits + "\n" + fits, nil},
		{"prose", "a.md", fits + "\n" + long + "\n", []int{2}},
		{"characters and not bytes", "a.md", strings.Repeat("ü", maxColumns), nil},
		{"a row", "docs/a.md", "| " + long + " |", nil},
		{"code", "a.md", "```\n" + long + "\n```\n" + long, []int{4}},
		{"indented code", "a.md", "    " + long, nil},
		{"an address", "a.md", "see https://example.com/" + long, nil},
		{"a short address does not excuse", "a.md", "https://example.com " + long, []int{1}},
		{"YAML", "a.yaml", "a: " + long, []int{1}},
		{"a row is none in YAML", "a.yaml", "| " + long, []int{1}},
		{"a comment in Go", "a.go", "// " + long + "\n\t// " + long, []int{1, 2}},
		{"Go, and a table in a comment", "a.go", long + "\n//\t" + long + "\n//go:generate " + long, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := tooLong(c.text, ruleOf(c.path)); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
	for _, path := range []string{"internal/results/report/testdata/plain.md", "a.elf"} {
		if ruleOf(path) != nil {
			t.Errorf("%s is not written by hand, and is checked", path)
		}
	}
}
