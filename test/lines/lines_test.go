package lines

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

var endings = []string{".md", ".yaml", ".yml", ".c", ".h", ".ts"}

// notOurs are the directories whose files are not written by hand.
var notOurs = []string{".git", "bin", "web/node_modules", "web/dist", "internal/results/report/testdata",
	"internal/kube/clusterreport/testdata"}

// address matches a web address so long that its line may be too long as well.
var address = regexp.MustCompile(`https?://\S{40}`)

func TestLines(t *testing.T) {
	seen := 0
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.IsDir() && (slices.Contains(notOurs, name) || strings.HasPrefix(name, "tare-run-")) {
			return fs.SkipDir
		}
		if !d.Type().IsRegular() || !slices.Contains(endings, filepath.Ext(path)) {
			return nil
		}
		seen++
		text, err := os.ReadFile(path)
		for _, n := range tooLong(string(text), filepath.Ext(path)) {
			t.Errorf("%s:%d is longer than %d columns", name, n, Columns)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen < 100 {
		t.Errorf("only %d files were read", seen)
	}
}

// tooLong lists the numbers of the lines that are too long, counted from 1. In Markdown, rows of tables and code may be
// longer, because they cannot be broken.
func tooLong(text, ending string) []int {
	var numbers []int
	fence := false
	for i, line := range strings.Split(text, "\n") {
		border := strings.HasPrefix(strings.TrimSpace(line), "```")
		if border {
			fence = !fence
		}
		unbreakable := address.MatchString(line) || ending == ".md" &&
			(fence || border || strings.HasPrefix(line, "|") || strings.HasPrefix(line, "    "))
		if utf8.RuneCountInString(line) > Columns && !unbreakable {
			numbers = append(numbers, i+1)
		}
	}
	return numbers
}

func TestTooLong(t *testing.T) {
	fits, long := strings.Repeat("x", Columns), strings.Repeat("x", Columns+1)
	for _, c := range []struct {
		name, ending, text string
		want               []int
	}{
		{"fits", ".md", fits + "\n" + fits, nil},
		{"prose", ".md", fits + "\n" + long + "\n", []int{2}},
		{"characters and not bytes", ".md", strings.Repeat("ü", Columns), nil},
		{"a row", ".md", "| " + long + " |", nil},
		{"code", ".md", "```\n" + long + "\n```\n" + long, []int{4}},
		{"indented code", ".md", "    " + long, nil},
		{"an address", ".md", "see https://example.com/" + long, nil},
		{"a short address does not excuse", ".md", "https://example.com " + long, []int{1}},
		{"YAML", ".yaml", "a: " + long, []int{1}},
		{"a row is none in YAML", ".yaml", "| " + long, []int{1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := tooLong(c.text, c.ending); !slices.Equal(got, c.want) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}
