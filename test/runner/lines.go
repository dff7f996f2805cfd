package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"unicode/utf8"
)

// maxColumns is how long a line may be, in characters; a tab counts as one.
const maxColumns = 120

// lineRule says how lines of one type of file are judged.
type lineRule struct {
	name    string
	endings []string
	on      bool                                 // too long a line is a failure; else it is only counted
	exempt  func(line string, inFence bool) bool // whether a long line is allowed; may be nil
}

var lineRules = []lineRule{
	{name: "Markdown", endings: []string{".md"}, on: true, exempt: longMarkdown},
	{name: "YAML", endings: []string{".yaml", ".yml"}, on: true, exempt: longURL},
	{name: "C", endings: []string{".c", ".h"}, on: true, exempt: longURL},
	{name: "TypeScript", endings: []string{".ts"}, on: true, exempt: longURL},
	{name: "Go comments", endings: []string{".go"}, on: true, exempt: longGo},
}

// longURL allows a line that holds an address which cannot be broken.
func longURL(line string, _ bool) bool { return address.MatchString(line) }

var address = regexp.MustCompile(`https?://\S{40}`)

// longGo allows what is no comment in prose: code, directives, and what comments set off from the margin, such as
// tables and examples.
func longGo(line string, _ bool) bool {
	text, comment := strings.CutPrefix(strings.TrimLeft(line, "\t"), "// ")
	return !comment || strings.HasPrefix(text, " ") || longURL(line, false)
}

// longMarkdown allows what Markdown cannot break: rows of tables, code, and addresses.
func longMarkdown(line string, inFence bool) bool {
	return inFence || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    ") || longURL(line, inFence)
}

// Files whose lines others make. Generated Go files are told by their first lines.
var madeElsewhere = []string{
	"internal/results/report/testdata/", // what a report looks like, byte for byte
}

var generatedGo = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)

// longLines checks that lines are at most maxColumns long, and says how many are longer of types that are not checked.
func longLines(context.Context) error {
	found := map[string][]string{} // by name of the rule
	err := walk(".", func(path string) error {
		rule := ruleOf(path)
		if rule == nil {
			return nil
		}
		data, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if filepath.Ext(path) == ".go" && generatedGo.Match(data) {
			return nil
		}
		for _, n := range tooLong(string(data), rule) {
			found[rule.name] = append(found[rule.name], fmt.Sprintf("%s:%d", filepath.ToSlash(path), n))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("looking for long lines: %w", err)
	}
	var failed []string
	for _, rule := range lineRules {
		switch lines := found[rule.name]; {
		case len(lines) == 0:
		case rule.on:
			failed = append(failed, lines...)
		default:
			fmt.Printf("   %d lines of %s are longer than %d columns (not checked yet)\n", len(lines), rule.name, maxColumns)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("these lines are longer than %d columns:\n%s", maxColumns, strings.Join(failed, "\n"))
	}
	return nil
}

func ruleOf(path string) *lineRule {
	slashed := filepath.ToSlash(path)
	for _, prefix := range madeElsewhere {
		if strings.HasPrefix(slashed, prefix) {
			return nil
		}
	}
	for i := range lineRules {
		for _, ending := range lineRules[i].endings {
			if strings.HasSuffix(slashed, ending) {
				return &lineRules[i]
			}
		}
	}
	return nil
}

// tooLong lists the numbers of the lines that are too long, counted from 1.
func tooLong(text string, rule *lineRule) []int {
	var numbers []int
	fence := false
	for i, line := range strings.Split(text, "\n") {
		border := strings.HasPrefix(strings.TrimSpace(line), "```")
		if border {
			fence = !fence
		}
		if utf8.RuneCountInString(line) > maxColumns && (rule.exempt == nil || !rule.exempt(line, fence || border)) {
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}
