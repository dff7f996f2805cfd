package analysis

import (
	"strings"
	"testing"

	"tare/internal/experiment/record"
)

// estimateOf returns an estimate with an interval of 2 % to both sides.
func estimateOf(metric, arm, unit string, value float64, d *Difference) Estimate {
	lo, hi := value*0.98, value*1.02
	return Estimate{Metric: metric, Arm: arm, Unit: unit, Factors: map[string]string{},
		Interval:   Interval{value, &lo, &hi},
		Difference: d}
}

func difference(v float64, resolved bool) *Difference {
	lo, hi := min(v*0.9, v*1.1), max(v*0.9, v*1.1)
	d := &Difference{Interval: Interval{v, &lo, &hi}, Resolved: resolved}
	if !resolved {
		d.Unresolved = "its interval contains 0"
	}
	return d
}

// limitedRun returns a run in which a heavy program takes 0.2 CPU of a limit of 0.25.
func limitedRun() (*Summary, *Table) {
	s := &Summary{Experiment: "mine", Question: "Q", Valid: true}
	for arm, bpf := range map[string]float64{"kernelmesh": 0.004, "heavy": 0.2} {
		s.Estimates = append(s.Estimates,
			estimateOf("limit_cpus", arm, "CPUs", 0.25, nil), estimateOf("limited_cpus", arm, "CPUs", 0.2495, nil),
			estimateOf("limited_share", arm, "part", 0.998, nil),
			estimateOf("limited_most_share", arm, "part", 1.001, nil),
			estimateOf("limited_throttled_share", arm, "part", 0.97, nil),
			estimateOf("limited_cpu_seconds_per_connection", arm, "seconds per connection", 500e-6, difference(400e-6, true)),
			estimateOf("throughput_per_second", arm, "per second", 500, difference(-2000, true)), estimateOf("limited_bpf_cpus",
				arm, "CPUs", bpf, nil), estimateOf("bpf_seconds_per_connection", arm, "seconds per connection", bpf/500, nil),
			estimateOf("bpf_limited_task_share", arm, "part", 0.95, nil), estimateOf("bpf_limited_softirq_share", arm, "part",
				0.03, nil), estimateOf("bpf_limited_inside_share", arm, "part", 0.98, nil))
	}
	return s, tableOf(s, []factors{{}}, "direct", "aa", "heavy", "kernelmesh")
}

// tableOf returns a table with one trial of each arm at each level, which has the values of the estimates.
func tableOf(s *Summary, levels []factors, arms ...string) *Table {
	t := &Table{Levels: levels, Arms: arms, known: map[string]bool{}, cells: map[cell]*values{}, in: map[levelArm][]int{}}
	for _, e := range s.Estimates {
		c := cell{record.LevelKey(e.Factors), e.Arm, 0}
		if t.cells[c] == nil {
			t.cells[c], t.in[levelArm{c.level, c.arm}] = &values{metrics: map[string]float64{}}, []int{0}
		}
		t.known[e.Metric], t.cells[c].metrics[e.Metric] = true, e.Value
	}
	return t
}

func (s *Summary) set(metric string, change func(*Estimate)) {
	for i := range s.Estimates {
		if s.Estimates[i].Metric == metric && s.Estimates[i].Arm == "heavy" {
			change(&s.Estimates[i])
		}
	}
}

func scale(f float64) func(*Estimate) {
	return func(e *Estimate) { lo, hi := *e.Lo*f, *e.Hi*f; e.Value, e.Lo, e.Hi = e.Value*f, &lo, &hi }
}

func TestLimitAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Summary)
		want   []string
	}{
		{"shared", func(*Summary) {}, []string{"Application and programs share the limit: with heavy, at a limit of 0.25 CPU",
			"100 % [98, 102] of it", "throttled in 97 %", "0.20 CPU of the limit", "eBPF took 0.200 CPU",
			"2000 /s [1800, 2200] lower", "softirq above them, inside it too", "2.0 % in other groups",
			"with kernelmesh it is 400 us [360, 440] higher", "With kernelmesh: of the programs"}},
		{"softirq apart", func(s *Summary) { s.set("bpf_limited_inside_share", scale(0.95/0.98)) },
			[]string{"share the limit: with", "outside it, because this kernel charges interrupts to no group"}},
		{"no softirq", func(s *Summary) { s.set("bpf_limited_softirq_share", scale(0)) },
			[]string{"so softirq makes no difference here"}},
		{"exceeded", func(s *Summary) { s.set("limited_share", scale(1.2)) }, []string{"The limit was exceeded: "}},
		{"not held", func(s *Summary) { s.set("limited_throttled_share", scale(0.3)) },
			[]string{"No group was held back by its limit, so the run does not show what the limit covers: "}},
		{"nothing charged", func(s *Summary) {
			s.set("limited_cpu_seconds_per_connection", func(e *Estimate) { e.Difference = difference(1e-9, false) })
		}, []string{"Whether application and programs share the limit is not resolved: "}},
		{"without intervals", func(s *Summary) { s.set("limited_share", func(e *Estimate) { e.Lo, e.Hi = nil, nil }) },
			[]string{"It is unknown whether application"}},
		{"the share is withheld", func(s *Summary) {
			s.set("limited_share", func(e *Estimate) { e.Withheld = "3 of 8 trials were lost" })
		}, []string{
			"It is unknown whether application and programs share the limit: with heavy, at a limit of 0.25 CPU, " +
				"the part of it that the limited groups used is unknown, throttled in 97 %",
			"Against the baseline, the CPU time that they are charged for each connection is 400 us [360, 440] higher: at",
		}},
		{"the throttling is withheld", func(s *Summary) {
			s.set("limited_throttled_share", func(e *Estimate) { e.Withheld = "3 of 8 trials were lost" })
		}, []string{
			"It is unknown", "(the fullest group 100 %", "of its limit). Against the baseline, the CPU time that",
		}},
		{"a baseline without throughput", func(s *Summary) {
			s.set("throughput_per_second", func(e *Estimate) { e.Difference = nil })
		}, []string{"of the limit; throughput cannot be compared, because the baseline has none"}},
		{"held up", func(s *Summary) { s.set("limited_bpf_cpus", scale(2)) },
			[]string{"more than they were charged: something else held the programs up"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, table := limitedRun()
			c.change(s)
			s.answer(record.Run{}, table)
			if len(s.Answers) != 1 || s.Answers[0].Question != "Q" || len(s.Answers[0].Evidence) < 8 {
				t.Fatalf("answers: %+v", s.Answers)
			}
			for _, want := range c.want {
				if !strings.Contains(s.Answers[0].Answer, want) {
					t.Errorf("lacks %q: %s", want, s.Answers[0].Answer)
				}
			}
		})
	}
	s, table := limitedRun()
	s.Estimates = nil
	if s.answer(record.Run{}, table); len(s.Answers) != 0 {
		t.Errorf("answered from nothing: %+v", s.Answers)
	}
}

func TestSaturationAnswers(t *testing.T) {
	s := &Summary{Experiment: "mine", Question: "Q", Valid: true}
	levels := []factors{{"connections": "100"}, {"connections": "3000"}}
	for i, at := range levels {
		for metric, e := range map[string]Estimate{
			"bpf_cpu_share":              estimateOf("", "", "part", 0.02+0.02*float64(i), difference(0.02, true)),
			"cpu_busy_share":             estimateOf("", "", "part", 0.97, difference(0.001, false)),
			"app_cpu_share":              estimateOf("", "", "part", 0.5, difference(0.001, false)),
			"load_cpu_share":             estimateOf("", "", "part", 0.4, difference(0.001, false)),
			"bpf_seconds_per_connection": estimateOf("", "", "seconds per connection", 3e-6, difference(3e-6, true)),
			"throughput_per_second":      estimateOf("", "", "per second", 9000, difference(-450, true)),
		} {
			e.Metric, e.Arm, e.Factors, e.Ratio = metric, "kernelmesh", at, &Interval{Value: 0.95}
			s.Estimates = append(s.Estimates, e)
			e.Arm, e.Difference = "direct", nil
			s.Estimates = append(s.Estimates, e)
		}
	}
	table := tableOf(s, levels, "direct", "aa", "kernelmesh")
	table.closed = true
	s.answer(record.Run{}, table)
	if len(s.Answers) != 3 {
		t.Fatalf("%d answers: %+v", len(s.Answers), s.Answers)
	}
	for i, want := range []string{"The part of the machine that the programs of kernelmesh take goes from 2.00 % [1.96, " +
		"2.04] at connections 100 to 4.00 % [3.92, 4.08] at connections 3000; of the machine 97 % [95, 99] and 97 % [95, " +
		"99] are busy.", "At connections 100: the programs", "450 /s"} {
		if a := s.Answers[min(i, 1)].Answer; !strings.Contains(a, want) {
			t.Errorf("lacks %q: %s", want, a)
		}
	}
}
