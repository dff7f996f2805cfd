package report_test

import (
	"bytes"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tare/internal/results/analysis"
	"tare/internal/results/report"
	"tare/test/analysistest"
)

// TestBriefFits: without levels the brief report has at most 40 lines, including the line with the path of the page,
// however many arms, answers and warnings there are. It says how much it leaves out, and --all leaves nothing out.
func TestBriefFits(t *testing.T) {
	for _, arms := range []int{1, 3, 6} {
		for _, words := range []int{5, 60, 400} {
			run, trials := cases()["plain"]()
			s, err := analysis.Summarize(run, trials)
			if err != nil {
				t.Fatal(err)
			}
			estimates, answer := s.Estimates, s.Answers[0]
			answer.Answer = strings.TrimSpace(strings.Repeat("candidate adds 3.1 us; ", words/4)) + " And this is the end."
			s.Answers = nil
			for arm := range arms {
				s.Answers = append(s.Answers, answer)
				for _, e := range estimates {
					if e.Arm == "candidate" && arm > 0 {
						e.Arm = fmt.Sprintf("candidate-%d", arm)
						s.Estimates = append(s.Estimates, e)
					}
				}
			}
			for i := range 10 {
				s.Warnings = append(s.Warnings, fmt.Sprintf("warning %d: ", i)+strings.Repeat("word ", 30))
			}
			var brief, all bytes.Buffer
			if err := report.Text(&brief, s, run, report.Options{Dir: "runs/quickstart"}); err != nil {
				t.Fatal(err)
			}
			if err := report.Text(&all, s, run, report.Options{Dir: "runs/quickstart", All: true}); err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(brief.String(), "\n"); n >= 40 {
				t.Errorf("%d arms, %d words: %d lines\n%s", arms, words, n, brief.String())
			}
			says := "candidate adds 3.1 us"
			if arms > 2 {
				says = "Compared with direct: eBPF per connection: candidate +3.0 us [+3.0, +3.2], candidate-1 +3.0 us"
			}
			for _, want := range []string{says, "eBPF per connection", "run: valid", "--all",
				"warning 1"} {
				if !strings.Contains(strings.Join(strings.Fields(brief.String()), " "), want) {
					t.Errorf("%d arms, %d words: it lacks %q:\n%s", arms, words, want, brief.String())
				}
			}
			for _, want := range []string{"is the end.", "latency p90", "intervals: ", "warning 9"} {
				if !strings.Contains(all.String(), want) {
					t.Errorf("%d arms, %d words: --all lacks %q:\n%s", arms, words, want, all.String())
				}
			}
		}
	}
}

// TestBracketsAreOfEstimates: the report explains brackets if it shows intervals, whatever brackets answers contain. A
// fitted line has no interval with one block, and has one with two blocks, which is then the only interval. The report
// with --all agrees.
func TestBracketsAreOfEstimates(t *testing.T) {
	for blocks, want := range map[int]string{
		1: "intervals: none scale:",
		2: "intervals: fitted lines by least squares by block, t over blocks, 95.0 %; values by pooled",
		8: "intervals: differences by signed-rank",
	} {
		truth := plain
		truth.Blocks, truth.Rates = blocks, []string{"500", "1000", "2000"}
		run, trials := analysistest.Quickstart(truth)
		s, err := analysis.Summarize(run, trials)
		if err != nil {
			t.Fatal(err)
		}
		var all, brief bytes.Buffer
		if err := report.Text(&all, s, run, report.Options{All: true}); err != nil {
			t.Fatal(err)
		}
		models := regexp.MustCompile(`(?m)^model: .*(\n {7}.*)*`).FindAllString(all.String(), -1)
		bare := func(line string) bool {
			return !strings.Contains(line, " [") || strings.Contains(line, "without intervals")
		}
		said := strings.Join(strings.Fields(all.String()), " ")
		if !strings.Contains(said, want) || len(models) == 0 || slices.ContainsFunc(models, bare) != (blocks == 1) ||
			blocks == 1 && strings.Contains(all.String(), " [") {
			t.Errorf("%d blocks: want %q and its models:\n%s", blocks, want, all.String())
		}
		s.Answers[0].Answer += " It is a candidate [sic]."
		s.Answers = s.Answers[:1]
		if err := report.Text(&brief, s, run, report.Options{}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(brief.String(), "[sic]") || strings.Contains(brief.String(), "brackets are") != (blocks > 1) {
			t.Errorf("%d blocks:\n%s", blocks, brief.String())
		}
	}
}
