package calibrate

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/lib/delay"
	"tare/internal/lib/fault"
	"tare/internal/scale/ledger"
)

func TestJudge(t *testing.T) {
	tail := func(q float64) func(float64, stood) bool {
		return func(_ float64, s stood) bool { return s.overTail(q) }
	}
	long := func(_ float64, s stood) bool { return s.asLong(0.005) }
	each := func(off float64, s stood) bool { return s.inEach(4, 499, off) } // 100 ms every 500 ms, for 2 s
	v := func(x float64) *float64 { return &x }
	for _, tt := range []struct {
		name string
		w    Weight
		want Verdict
		seen stood
	}{
		{"within a part", Weight{True: v(100), Measured: v(100.9), Tolerance: Tolerance{Part: 0.01}}, Pass, stood{}},
		{"beyond a part", Weight{True: v(100), Measured: v(101.1), Tolerance: Tolerance{Part: 0.01}}, Fail, stood{}},
		{"below as well as above", Weight{True: v(100), Measured: v(98.9), Tolerance: Tolerance{Part: 0.01}}, Fail, stood{}},
		{"the larger of two", Weight{True: v(100), Measured: v(104), Tolerance: Tolerance{Absolute: 5, Part: 0.01}}, Pass,
			stood{}},
		{"an estimate may be one", Weight{True: v(0.75), Measured: v(0.70), Lo: v(0.66), Hi: v(0.74),
			Tolerance: Tolerance{Absolute: 0.01, HalfWidths: 2}}, Pass, stood{}},
		{"but not anything", Weight{True: v(0.75), Measured: v(0.60), Lo: v(0.56), Hi: v(0.64),
			Tolerance: Tolerance{Absolute: 0.01, HalfWidths: 2}}, Fail, stood{}},
		{"an interval alone allows nothing", Weight{True: v(1), Measured: v(2), Lo: v(0), Hi: v(4),
			Tolerance: Tolerance{Absolute: 0.1}}, Fail, stood{}},
		{"not a number", Weight{True: v(1), Measured: v(math.NaN()), Tolerance: Tolerance{Absolute: 10}}, Fail, stood{}},
		{"disturbed", Weight{True: v(0), Measured: v(1), Tolerance: Tolerance{Absolute: 0.5}, sensitive: true, Others: 0.2},
			Disturbed, stood{}},
		{"in tolerance although disturbed", Weight{True: v(0), Measured: v(0.1), Tolerance: Tolerance{Absolute: 0.5},
			sensitive: true, Others: 0.2}, Pass, stood{}},
		{"nothing to blame others for", Weight{True: v(0), Measured: v(1), Tolerance: Tolerance{Absolute: 0.5}, Others: 0.9},
			Fail, stood{}},
		{"nobody to blame", Weight{True: v(0), Measured: v(1), Tolerance: Tolerance{Absolute: 0.5}, sensitive: true,
			Others: 0.01}, Fail, stood{}},
		{"the machine stood still", Weight{True: v(0), Measured: v(1), Tolerance: Tolerance{Absolute: 0.5}, sensitive: true,
			spoiled: tail(0.99)}, Disturbed, stood{part: 0.002}},
		{"the machine stood still, too little", Weight{True: v(0), Measured: v(1), Tolerance: Tolerance{Absolute: 0.5},
			sensitive: true, spoiled: tail(0.9)}, Fail, stood{part: 0.002}},
		{"stolen", Weight{True: v(0), Measured: v(1), Tolerance: Tolerance{Absolute: 0.5}, sensitive: true, Stolen: 0.2},
			Disturbed, stood{}},
		{"only what it names", Weight{True: v(0), Measured: v(1), Tolerance: Tolerance{Absolute: 0.5}, spoiled: long,
			Others: 0.9}, Fail, stood{}},
		{"what it names", Weight{True: v(0), Measured: v(1), Tolerance: Tolerance{Absolute: 0.5}, spoiled: long}, Disturbed,
			stood{longest: 0.003}},
		{"more than at least", Weight{True: v(1), Measured: v(9), Tolerance: Tolerance{Absolute: 0.5}, atLeast: true}, Pass,
			stood{}},
		{"less than at least", Weight{True: v(9), Measured: v(1), Tolerance: Tolerance{Absolute: 0.5}, atLeast: true}, Fail,
			stood{}},
		{"as long as what was counted", Weight{True: v(0), Measured: v(1), Tolerance: Tolerance{Absolute: 0.5},
			sensitive: true, spoiled: long}, Disturbed, stood{longest: 0.003}},
		{"some in each stall", Weight{True: v(100), Measured: v(115), Tolerance: Tolerance{Absolute: 5}, sensitive: true,
			spoiled: each}, Disturbed, stood{longest: 0.009}},
		{"too few in each stall", Weight{True: v(100), Measured: v(115), Tolerance: Tolerance{Absolute: 5}, sensitive: true,
			spoiled: each}, Fail, stood{longest: 0.003}},
		{"without a truth", Weight{Measured: v(1)}, Told, stood{}},
		{"without a reading", Weight{True: v(1), Tolerance: Tolerance{Absolute: 1}}, Missing, stood{}},
	} {
		if tt.w.judge(tt.seen); tt.w.Verdict != tt.want {
			t.Errorf("%s: %s, want %s", tt.name, tt.w.Verdict, tt.want)
		}
	}
}

// TestVerdict: a failed weight shows that the scale is wrong, even if other weights were disturbed. If no weight of a
// section could be judged, the calibration is invalid.
func TestVerdict(t *testing.T) {
	type row struct {
		section string
		verdict Verdict
	}
	for _, tt := range []struct {
		rows []row
		code fault.Code
	}{
		{[]row{{"clock", Pass}, {"clock", Missing}, {"noise", Told}}, fault.OK},
		{[]row{{"clock", Pass}, {"memory", Missing}, {"memory", Missing}}, fault.Invalid},
		{[]row{{"clock", Pass}, {"clock", Disturbed}, {"clock", Disturbed}}, fault.OK},
		{[]row{{"clock", Pass}, {"latency", Disturbed}}, fault.Invalid},
		{[]row{{"clock", Pass}, {"latency", Disturbed}, {"latency", Told}, {"latency", Missing}}, fault.Invalid},
		{[]row{{"clock", Pass}, {"latency", Disturbed}, {"cpu", Fail}}, fault.Exceeded},
		{[]row{{"cpu", Fail}, {"cpu", Disturbed}}, fault.Exceeded},
	} {
		var r Report
		for _, x := range tt.rows {
			r.add(Weight{Section: x.section, Verdict: x.verdict})
		}
		if err := r.Verdict(); fault.CodeOf(err) != tt.code || err != nil && fault.HintOf(err) == "" {
			t.Errorf("%v: code %d, want %d", tt.rows, fault.CodeOf(err), tt.code)
		}
	}
}

// TestMajority: a sensitive weight passes if it passed in most of the tries in which it was judged. One that noise
// cannot spoil fails if it ever failed.
func TestMajority(t *testing.T) {
	for _, tt := range []struct {
		tries     []Verdict
		sensitive bool
		want      Verdict
	}{
		{[]Verdict{Pass}, true, Pass},
		{[]Verdict{Fail, Pass}, true, Fail},
		{[]Verdict{Fail, Pass, Pass}, true, Pass},
		{[]Verdict{Pass, Fail, Fail}, true, Fail},
		{[]Verdict{Pass, Fail, Disturbed}, true, Disturbed},
		{[]Verdict{Disturbed, Pass, Disturbed}, true, Pass},
		{[]Verdict{Fail, Fail, Fail}, true, Fail},
		{[]Verdict{Fail, Disturbed, Fail}, true, Fail},
		{[]Verdict{Fail, Disturbed, Disturbed}, true, Disturbed},
		{[]Verdict{Disturbed, Fail}, true, Disturbed},
		{[]Verdict{Disturbed}, true, Disturbed},
		{[]Verdict{Fail, Pass, Pass}, false, Fail},
		{[]Verdict{Disturbed, Disturbed, Pass}, false, Pass},
		{[]Verdict{Told, Told}, false, Told},
		{[]Verdict{Missing, Missing}, true, Missing},
	} {
		var all [][]Weight
		for i, v := range tt.tries {
			all = append(all, []Weight{{Name: "a", Verdict: v, sensitive: tt.sensitive, Others: float64(i)},
				{Name: "b", Verdict: Pass}})
		}
		got := majority(all)
		if len(got) != 2 || got[0].Verdict != tt.want || got[0].Tries != len(tt.tries) || got[1].Verdict != Pass {
			t.Errorf("%v, sensitive %v: %+v, want %s", tt.tries, tt.sensitive, got, tt.want)
		} else if v := tt.tries[int(got[0].Others)]; v != tt.want {
			t.Errorf("%v: the reading is of a try that was %s, and the verdict %s", tt.tries, v, tt.want)
		}
	}
	chancy := func(v Verdict) []Weight { return []Weight{{Name: "a", Verdict: v, chancy: true}} }
	if got := majority([][]Weight{chancy(Fail), chancy(Pass), chancy(Pass)}); got[0].Verdict != Pass {
		t.Errorf("an estimate that chance put out of tolerance once: %s", got[0].Verdict)
	}
	if got := majority([][]Weight{chancy(Fail), chancy(Fail), chancy(Fail)}); got[0].Verdict != Fail {
		t.Errorf("an estimate that is always out of tolerance: %s", got[0].Verdict)
	}
	// A try without answers has another weight in place of the others.
	got := majority([][]Weight{{{Name: "p50", Verdict: Disturbed}}, {{Name: "answered", Verdict: Disturbed}}})
	if len(got) != 1 || got[0].Name != "answered" {
		t.Errorf("%+v", got)
	}
}

// TestUnanswered: requests that stay unanswered are a fault of the scale unless the machine stood still for a long
// time.
func TestUnanswered(t *testing.T) {
	for _, tt := range []struct {
		s    stood
		want Verdict
	}{{stood{longest: 0.01}, Fail}, {stood{longest: 0.2}, Disturbed}} {
		w := unanswered{intended: 998, done: 946}.weight("stalls")
		if w.judge(tt.s); w.Verdict != tt.want {
			t.Errorf("%+v: %s, want %s", tt.s, w.Verdict, tt.want)
		}
	}
}

// TestLost: a group or program that the ledger lost is a failure, and a number that the kernel does not count is
// missing.
func TestLost(t *testing.T) {
	runs, cpu := uint64(4000), 1.5
	weigh := func(p *ledger.Program) Weight { return weighed{runs: 4000, program: p}.counted("program") }
	for name, tt := range map[string]struct {
		w    Weight
		want Verdict
	}{
		"a program":                         {weigh(&ledger.Program{RunCount: &runs}), Pass},
		"a program that is not counted":     {weigh(&ledger.Program{}), Missing},
		"a program that is not there":       {weigh(nil), Fail},
		"a program that seems not to run":   {weigh(&ledger.Program{RunCount: new(uint64)}), Fail},
		"a group":                           {burnt("group", &ledger.Cgroup{CPUSeconds: &cpu}, cpu, ""), Pass},
		"a group whose time is not counted": {burnt("group", &ledger.Cgroup{}, cpu, ""), Missing},
		"a group that is not there":         {burnt("group", nil, cpu, ""), Fail},
	} {
		if tt.w.judge(stood{}); tt.w.Verdict != tt.want {
			t.Errorf("%s: %s, want %s", name, tt.w.Verdict, tt.want)
		}
	}
}

// TestShare: the share of one group is compared with its share of the CPU time of the calls. Only stolen time and CPUs
// of different speeds excuse a difference.
func TestShare(t *testing.T) {
	group := "/a"
	for _, tt := range []struct {
		name     string
		measured float64
		cpu      [2]float64
		s        stood
		want     Verdict
	}{
		{"3:1", 0.751, [2]float64{3, 1}, stood{}, Pass},
		{"the second CPU was slower, and the share says so", 0.60, [2]float64{3, 2}, stood{}, Pass},
		{"the calls were slower there and the program was not", 0.74, [2]float64{3, 2}, stood{}, Disturbed},
		{"a CPU without samples", 1, [2]float64{3, 1}, stood{away: 0.9, awaySeconds: 9}, Fail},
		{"a CPU without samples, beside slow calls", 1, [2]float64{3, 1.2}, stood{away: 0.9, awaySeconds: 9}, Fail},
		{"stolen for longer than that", 0.9, [2]float64{3, 1}, stood{stolen: 0.3, stolenSeconds: 1}, Disturbed},
	} {
		seconds := 1.0
		w := weighed{
			paths: []string{group, "/b"}, results: []plantedResult{{CPUSeconds: tt.cpu[0]}, {CPUSeconds: tt.cpu[1]}},
			program: &ledger.Program{RunSeconds: &seconds, Shares: []ledger.Share{{
				Cgroup: &group, Context: ledger.Task, Seconds: tt.measured, Lo: tt.measured - 0.02, Hi: min(tt.measured+0.02, 1),
			}}},
		}
		x := share("program", w, "")
		x.Others = tt.s.away
		if x.judge(tt.s); x.Verdict != tt.want {
			t.Errorf("%s: %s, want %s: true %g, measured %g", tt.name, x.Verdict, tt.want, *x.True, *x.Measured)
		}
	}
}

// TestSeen: a CPU whose samples are not read is found despite noise. A larger number of samples than expected is not a
// failure.
func TestSeen(t *testing.T) {
	group, other := "/a", "/b"
	for _, tt := range []struct {
		name     string
		n        int
		withheld bool
		want     Verdict
	}{
		{"as many as are due", 240, false, Pass},
		{"twice as many", 480, false, Pass},
		{"half", 125, false, Pass},
		{"none", 0, false, Fail},
		{"few, for the kernel held them back", 60, true, Disturbed},
		{"few", 60, false, Fail},
		{"none, and the kernel held others back", 0, true, Fail},
	} {
		r := plantedResult{Times: 4901, Fastest: 50e-6}
		w := weighed{paths: []string{group, other}, results: []plantedResult{r, r}, hz: 997, withheld: tt.withheld,
			program: &ledger.Program{
				Seen: []ledger.Seen{{Cgroup: &group, Context: ledger.Task, Samples: 240},
					{Cgroup: &other, Context: ledger.Task, Samples: tt.n}},
			}}
		ws := seen("program", w, empty{call: 1e-6})
		if len(ws) != 2 {
			t.Fatalf("%d weights", len(ws))
		}
		for i, want := range []Verdict{Pass, tt.want} {
			ws[i].Others = 0.9
			if ws[i].judge(stood{away: 0.9, awaySeconds: 10}); ws[i].Verdict != want {
				t.Errorf("%s: process %d: %s, want %s: %+v", tt.name, i+1, ws[i].Verdict, want, ws[i])
			}
		}
		// A program with too few samples gives no weight, and neither does one whose time is small compared with that of the
		// call.
		for _, r := range []plantedResult{{Times: 4901, Fastest: 10e-6}, {Times: 952_380, Fastest: 1.2e-6}} {
			w.results = []plantedResult{r, r}
			if ws := seen("program", w, empty{call: 1e-6}); len(ws) != 0 {
				t.Errorf("%s: weighed by %g samples", tt.name, *ws[0].True)
			}
		}
	}
}

func TestHistogram(t *testing.T) {
	h := hdrhistogram.New(1, 1e12, 3)
	for i := int64(1); i <= 1000; i++ {
		_ = h.RecordValue(i * 1e6) // 1 ms to 1 s
	}
	got := fromHDR(h)
	for q, want := range map[float64]float64{0.001: 0.001, 0.5: 0.5, 0.99: 0.99, 1: 1} {
		if x := got.quantile(q); math.Abs(x-want) > 0.001*want {
			t.Errorf("quantile %g is %g s, want %g", q, x, want)
		}
	}
	if n := got.atLeast(0.9); n < 100 || n > 102 {
		t.Errorf("%d values from 0.9 s on, want about 101", n)
	}
	if x := got.scaled(1.05).longest(); math.Abs(x-1.05) > 0.002 {
		t.Errorf("longest by a fast clock is %g s", x)
	}
	if !math.IsNaN(histogram(nil).quantile(0.5)) || !math.IsNaN(histogram(nil).longest()) {
		t.Error("nothing has a quantile")
	}
}

// TestPlus: the sum of two times that are uniform between 0 and 1 s has its quantile q at sqrt(2q) seconds, up to the
// median.
func TestPlus(t *testing.T) {
	var even histogram
	for i := range 1000 {
		even = append(even, bar{(float64(i) + 0.5) / 1000, 1})
	}
	sum := even.plus(even, 400, 400)
	for _, q := range []float64{0.02, 0.1, 0.5} {
		if got, want := sum.quantile(q), math.Sqrt(2*q); math.Abs(got-want) > 0.004 {
			t.Errorf("quantile %g of the sum is %g, want %g", q, got, want)
		}
	}
}

func TestStallTruth(t *testing.T) {
	const second = int64(time.Second)
	s := delay.Stall{For: 100 * time.Millisecond, Every: 500 * time.Millisecond}
	// Two stalls lie in the second that begins at 200 ms: at 500 and at 1000 ms. At 499 requests per second, request 150
	// is the first that is due in a stall, 0.6 ms after the stall begins. In each stall, 25 requests wait for at least
	// half of it.
	longest, slow := stallTruth(s, 0, second/5, time.Second, 50*time.Millisecond)
	if want := 0.4 - 150.0/latencyRate; math.Abs(longest-want) > 1e-8 || slow != 2*25 {
		t.Errorf("longest %g s, %d slow; want %g s and 50", longest, slow, want)
	}
	if longest, slow := stallTruth(s, 10*second, 0, time.Second, 0); longest != 0 || slow != 0 {
		t.Errorf("before the first stall: longest %g s, %d slow", longest, slow)
	}
}

func TestOncePerProgram(t *testing.T) {
	maps := []ledger.Map{{ID: 1}, {ID: 2, UsedBy: []uint32{7}}, {ID: 3, UsedBy: []uint32{7, 8}}}
	var ids []uint32
	for _, m := range oncePerProgram(maps) {
		ids = append(ids, m.ID)
	}
	if !slices.Equal(ids, []uint32{1, 2, 3, 3}) {
		t.Errorf("maps %v", ids)
	}
}

func TestWrongUse(t *testing.T) {
	if _, err := Run(t.Context(), Options{Only: []string{"clocks"}}); fault.CodeOf(err) != fault.Usage {
		t.Errorf("an unknown section: %v", err)
	}
	if _, err := ParseFault("clock"); fault.CodeOf(err) != fault.Usage {
		t.Errorf("an unknown fault: %v", err)
	}
}

func TestFastClock(t *testing.T) {
	b := &bench{o: Options{Fault: FastClock}}
	w, err := b.rate(t.Context(), 100*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if w.judge(stood{}); w.Verdict != Fail || math.Abs(*w.Error-0.05) > 0.001 {
		t.Errorf("a clock that is 5 %% fast: %s, error %g", w.Verdict, *w.Error)
	}
	b.o.Fault = NoFault
	if w, err = b.rate(t.Context(), 100*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if w.judge(stood{}); w.Verdict != Pass {
		t.Errorf("the clock: %s, error %g", w.Verdict, *w.Error)
	}
}

// TestBody: the planted program takes time in proportion to its steps, and the verifier accepts the longest program.
func TestBody(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a real processor: it compares two run times")
	}
	short, err := runTime(body(1000), 2*time.Microsecond)
	if err != nil {
		t.Fatal(err)
	}
	long, err := runTime(body(20000), 40*time.Microsecond)
	if err != nil {
		t.Fatal(err)
	}
	if ratio := long / short; ratio < 10 || ratio > 40 {
		t.Errorf("20 times the steps take %.1f times as long: %.3g and %.3g s", ratio, short, long)
	}
}

// TestSleeps: no sleep ends a second before it is due or a minute after it, and sleeps end with the context.
func TestSleeps(t *testing.T) {
	k, err := sleeps(t.Context(), 2000, 50)
	if err != nil || len(k.starts) != 50 {
		t.Fatalf("%d sleeps, %v", len(k.starts), err)
	}
	for _, c := range []struct {
		tooLate  time.Duration
		from, to float64
	}{{-time.Second, 1, 1}, {time.Minute, 0, 0}} {
		if part := lateBy(k.starts, c.tooLate); part < c.from || part > c.to {
			t.Errorf("later than %v: %g", c.tooLate, part)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := sleeps(ctx, 1000, 50); err == nil {
		t.Error("it goes on when it is to end")
	}
}

func TestMissed(t *testing.T) {
	if part := missed(20 * time.Millisecond); part < 0 || part >= 1 {
		t.Errorf("it misses %g of its time", part)
	}
}

func TestStood(t *testing.T) {
	s := stood{delays: []int64{1000, 2000, 2000, 5000}}
	for seconds, want := range map[float64]float64{0: 1, 1e-6: 0.75, 2e-6: 0.25, 4e-6: 0.25, 5e-6: 0} {
		if got := s.later(seconds); got != want {
			t.Errorf("%g are later than %g s, want %g", got, seconds, want)
		}
	}
	if got := (stood{}).later(0); got != 0 {
		t.Errorf("of none %g are late", got)
	}
	end := wakeUps(t.Context())
	time.Sleep(30 * time.Millisecond)
	if s, err := end(); err != nil || len(s.delays) == 0 || s.later(-1) != 1 {
		t.Errorf("%d waits were seen, %v", len(s.delays), err)
	}
}
