// Package words keeps a private dialect from growing back: it counts words and phrases that a native engineer would
// stop at (docs/development.md, "Writing tests"), and fails where there are more of them than there were. Each limit
// only goes down:
//
//	go test ./test/words -update    lower the limits to what the tree has now
package words

import (
	"bytes"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "lower the limits in limits.json to what the tree has now")

// instead says, for each word or phrase, what to write instead. The pattern is matched against each line, ignoring
// case.
var instead = map[string]string{
	`\btold\b`:                      "gets, receives, prints, its arguments",
	`\btells? (\w+ )?apart\b`:       "distinguishes",
	`\bcame of\b|\bcomes of\b`:      "the result of",
	`\bmend(s|ed|ing)?\b`:           "fix, hint",
	`\bnobody\b`:                    "no one, or name who it is: no process, no other user",
	`\bwhoever\b|\bwhomever\b`:      "name who it is",
	`\bso many\b`:                   "n, how many",
	`\bof (its|their|his) own\b`:    "separate, private, its",
	`\bno more than so\b`:           "at most",
	`// .*\bnull\b`:                 "nil, of Go values; null, in quotes, of JSON",
	`, for (it|they|there|which)\b`: "because",
}

// limitsFile holds how many of each pattern the tree has at most.
const limitsFile = "limits.json"

// skipped matches the files that are not searched: records, others' text, and this list.
var skipped = regexp.MustCompile(`(^|/)testdata/|^test/runs/|^test/words/|^CHANGELOG\.md$|^LICENSE$|_bpfel\.go$|\.(json|jsonl|o|elf|png|sum|lock)$`)

// searched are the endings of the files that people read.
var searched = []string{".go", ".md", ".c", ".h", ".ts", ".sh", ".yaml", ".tmpl"}

func TestWords(t *testing.T) {
	limits := map[string]int{}
	text, err := os.ReadFile(limitsFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	if err == nil {
		if err := json.Unmarshal(text, &limits); err != nil {
			t.Fatal(err)
		}
	}
	found := search(t, filepath.Join("..", ".."))
	for _, pattern := range slices.Sorted(maps.Keys(instead)) {
		lines := found[pattern]
		limit, known := limits[pattern]
		if *update {
			if !known || len(lines) < limit {
				limits[pattern] = len(lines)
			}
			continue
		}
		if len(lines) > limit {
			t.Errorf("%d lines match %q, and at most %d may; write instead: %s.\nThose of this change:\n%s",
				len(lines), pattern, limit, instead[pattern], strings.Join(added(t, lines), "\n"))
		}
	}
	if *update {
		text, err := json.MarshalIndent(limits, "", "  ")
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(limitsFile, append(text, '\n'), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// search returns the lines that match each pattern, as "path: line".
func search(t *testing.T, root string) map[string][]string {
	t.Helper()
	patterns := map[string]*regexp.Regexp{}
	for p := range instead {
		patterns[p] = regexp.MustCompile("(?i)" + p)
	}
	found := map[string][]string{}
	for _, path := range tracked(t, root) {
		if skipped.MatchString(path) || !slices.Contains(searched, filepath.Ext(path)) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, path))
		if os.IsNotExist(err) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			for p, re := range patterns {
				if re.MatchString(line) {
					found[p] = append(found[p], path+": "+strings.TrimSpace(line))
				}
			}
		}
	}
	return found
}

// tracked lists the files that git tracks, and the new files that it does not ignore.
func tracked(t *testing.T, root string) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Skipf("needs a git checkout: %v", err)
	}
	return strings.Fields(string(out))
}

// added narrows lines to those that the working tree has and the last commit does not; all of them, up to 20, if the
// last commit has them already.
func added(t *testing.T, lines []string) []string {
	t.Helper()
	cmd := exec.Command("git", "diff", "-U0", "HEAD")
	cmd.Dir = filepath.Join("..", "..")
	diff, err := cmd.Output()
	if err != nil {
		return lines[:min(len(lines), 20)]
	}
	is := func(line string) bool {
		_, text, _ := strings.Cut(line, ": ")
		return bytes.Contains(diff, []byte(text))
	}
	if now := slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return !is(l) }); len(now) > 0 {
		return now
	}
	return lines[:min(len(lines), 20)]
}
