package tracer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"tare/test/vm/guest"
)

func TestMatcher(t *testing.T) {
	guest.KernelFree(t)
	for _, c := range []struct {
		pattern string
		all     bool // every line
		yes, no string
	}{
		{"", true, "anything", "-"},
		{"^.*$", true, "", "-"},
		{"^[0-9]", false, "12 a", "a 12"},
		{`^\{`, false, `{"a":1}`, ` {"a":1}`},
		{`"rule":"tare_exec"`, false, `{"rule":"tare_exec"}`, `{"rule":"other"}`},
		{"(?i)exec", false, "an EXEC", "an open"},
		{"^exec$", false, "exec", "execs"},
	} {
		m, err := compile(c.pattern)
		if err != nil {
			t.Errorf("%q: %v", c.pattern, err)
			continue
		}
		if m.all != c.all {
			t.Errorf("%q: all lines: %v", c.pattern, m.all)
		}
		if !m.match([]byte(c.yes)) || c.no != "-" && m.match([]byte(c.no)) {
			t.Errorf("%q matches %q: %v, %q: %v", c.pattern, c.yes, m.match([]byte(c.yes)), c.no, m.match([]byte(c.no)))
		}
	}
	if _, err := compile("("); err == nil {
		t.Error("( is taken for a regular expression")
	}
}

func TestFeed(t *testing.T) {
	guest.KernelFree(t)
	lines := func(pattern string) *tally { return newTally(Source{Lines: mustCompile(pattern)}) }
	sum := func() *tally { return newTally(Source{Sum: mustCompile(`^Lost ([0-9]+) events`)}) }
	total := func(path ...string) *tally { return newTally(Source{JSON: path}) }
	long := strings.Repeat("x", maxLine)
	for _, c := range []struct {
		name  string
		tally *tally
		text  string
		want  int64
		seen  bool
	}{
		{"every line", lines(""), "a\nb\n\nc", 3, true}, // the last line is incomplete
		{"some lines", lines("^b"), "a\nb\nab\nb c\n", 2, true},
		{"no lines", lines(""), "", 0, true},
		{"a line without an end", lines("x$"), long + long, 0, true},
		{"a long line and others", lines("^x"), long + long + "\nx\ny\n" + long + "\n", 3, true},
		{"a line of the most that is looked at", lines("x$"), long + "\n" + long + "y\n" + long[1:] + "y\n", 2, true},
		{"what it lost, added up", sum(), "Lost 12 events\nnothing\nLost 3 events\n", 15, true},
		{"it never says", sum(), "fine\nLost many events\n", 0, false},
		{"the latest total", total("lost"), `{"lost":1}` + "\nno JSON\n" + `{"a":{"lost":9},"lost":3}` + "\n", 3, true},
		{"no total", total("lost"), `{"lots":1}` + "\n", 0, false},
	} {
		for _, size := range []int{1, 7, 4096, 1 << 20} { // the size of the pieces makes no difference
			count := *c.tally
			f := feed{tallies: []*tally{&count}}
			for text := []byte(c.text); len(text) > 0; {
				n := min(size, len(text))
				f.write(text[:n])
				text = text[n:]
			}
			if count.n != c.want || count.seen != c.seen {
				t.Errorf("%s, in pieces of %d: %d (%v), want %d (%v)", c.name, size, count.n, count.seen, c.want, c.seen)
			}
			if f.lines != int64(strings.Count(c.text, "\n")) {
				t.Errorf("%s: %d lines", c.name, f.lines)
			}
		}
	}
}

// TestFeedIsBounded: whatever a tracer writes, at most one line of it is kept.
func TestFeedIsBounded(t *testing.T) {
	guest.KernelFree(t)
	f := feed{tallies: []*tally{newTally(Source{JSON: []string{"a"}}), newTally(Source{Lines: mustCompile("a+b")})}}
	garbage := bytes.Repeat([]byte{0, 0xff, '{', '"', '\\', 'a'}, 10_000)
	for range 2000 { // 120 MB without a newline
		f.write(garbage)
	}
	if cap(f.carry) > 2*maxLine {
		t.Errorf("%d bytes of a line are kept", cap(f.carry))
	}
	f.write([]byte("\n{\"a\":7}\n"))
	if f.tallies[0].n != 7 {
		t.Errorf("the line after it gives %d", f.tallies[0].n)
	}
}

func TestLookUp(t *testing.T) {
	for _, c := range []struct {
		line, path string
		want       int64
		found      bool
	}{
		{`{"delivered":12}`, "delivered", 12, true},
		{`{"delivered":12}`, ".delivered", 12, true},
		{` { "a" : { "b" : [ 1 , {"c":5} ] } , "z":0}`, "a.b.1.c", 5, true},
		{`{"a":{"x":"}{\"a"},"n":"18"}`, "n", 18, true},
		{`{"n":1e3}`, "n", 1000, true},
		{`{"n":1.5}`, "n", 0, false},
		{`{"n":-1}`, "n", 0, false},
		{`{"n":null}`, "n", 0, false},
		{`{"n":{"m":1}}`, "n", 0, false},
		{`{"n":1,"n":2}`, "n", 2, true},
		{`{"\u006e":4}`, "n", 4, true},
		{`{"n":1`, "n", 0, false},
		{`[3,4]`, "1", 4, true},
		{`nothing`, "n", 0, false},
		{``, "n", 0, false},
		{`{"n":99999999999999999999}`, "n", 0, false},
	} {
		path, err := parsePath(c.path)
		if err != nil {
			t.Errorf("%s: %v", c.path, err)
			continue
		}
		if got, found := lookUp([]byte(c.line), path); got != c.want || found != c.found {
			t.Errorf("%s of %s: %d (%v), want %d (%v)", c.path, c.line, got, found, c.want, c.found)
		}
	}
	for _, text := range []string{"", ".", "a..b", "a. .b", "a."} {
		if _, err := parsePath(text); err == nil {
			t.Errorf("%q is taken for a path", text)
		}
	}
}

// FuzzLookUp compares the search for a path with encoding/json.
func FuzzLookUp(f *testing.F) {
	for _, line := range []string{`{"a":{"b":1}}`, `{"a":[{"b":"2"}]}`, `{"a":{"b":1e2},"a":{"b":[]}}`, `[`,
		`{"a":"\"","b":{"a":3}}`, "{\"\\u0061\":{\"b\":7}}"} {
		f.Add([]byte(line), "a.b")
	}
	f.Fuzz(func(t *testing.T, line []byte, text string) {
		path, err := parsePath(text)
		if err != nil {
			return
		}
		got, found := lookUp(line, path)
		if !utf8.Valid(line) || !utf8.ValidString(text) || !json.Valid(line) {
			return // nothing to compare with; it must only return
		}
		d := json.NewDecoder(bytes.NewReader(line))
		d.UseNumber()
		var v any
		if err := d.Decode(&v); err != nil {
			return
		}
		want, there := walk(v, path)
		if got != want || found != there {
			t.Errorf("%s of %s: %d (%v), encoding/json has %d (%v)", text, line, got, found, want, there)
		}
	})
}

func walk(v any, path []string) (int64, bool) {
	for _, key := range path {
		switch at := v.(type) {
		case map[string]any:
			v = at[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i < 0 || i >= len(at) {
				return 0, false
			}
			v = at[i]
		default:
			return 0, false
		}
	}
	switch n := v.(type) {
	case json.Number:
		return whole(n.String())
	case string:
		return whole(n)
	}
	return 0, false
}

func TestSelector(t *testing.T) {
	const page = `# HELP events_total Events.
# TYPE events_total counter
events_total{type="PROCESS_EXEC",binary="/bin/a b"} 12
events_total{binary="x\"}{\\",type="PROCESS_EXEC"} 3 1700000000000
events_total{type="PROCESS_EXIT"} 100
events_total_other 5
other 7
big 1.2e+06
# TYPE wait_seconds histogram
wait_seconds_bucket{le="+Inf"} 4
wait_seconds_sum 0.5
wait_seconds_count 4
broken{ 1
# EOF
`
	for _, c := range []struct {
		selector string
		want     int64
		seen     bool
	}{
		{`events_total{type="PROCESS_EXEC"}`, 15, true},
		{"events_total", 115, true},
		{`events_total{type="NONE"}`, 0, false},
		{`events_total{ type = "PROCESS_EXEC" , binary = "x\"}{\\" }`, 3, true},
		{"other", 7, true},
		{"big", 1_200_000, true},
		{"missing", 0, false},
		{"wait_seconds_count", 4, true},
	} {
		s, err := parseSelector(c.selector)
		if err != nil {
			t.Errorf("%s: %v", c.selector, err)
			continue
		}
		if got, seen, err := s.sum(page); got != c.want || seen != c.seen || err != nil {
			t.Errorf("%s: %d (%v, %v), want %d (%v)", c.selector, got, seen, err, c.want, c.seen)
		}
	}
	for _, text := range []string{"", "1a", "a{", `a{b}`, `a{b=c}`, `a{b="c}`, `a{b="c"} d`, "a b", `a{b="c"} 1`,
		`a{b="c"} 1 {d="e"}`,
		"a{b=\"c\"} 1\na{b=\"c\"}", "a{b=\"\xff\"}", `a{b="c",b="d"}`} {
		if _, err := parseSelector(text); err == nil {
			t.Errorf("%q is taken for a metric", text)
		}
	}
	// As Prometheus parses them: OpenMetrics' exemplars and fractional timestamps, and pages of other systems.
	for _, page := range []string{
		"a 1 # {trace=\"x\"} 0.5 1.5\na{b=\"# {\"} 2 1700000000.25 # {} 1\n# EOF\n",
		"a 1\r\na{b=\"c\"} 2\r\n", "a  1   1700000000000\n\ta{b=\"c\\\"}\"}  2\n",
	} {
		if got, seen, err := (&selector{name: "a"}).sum(page); got != 3 || !seen || err != nil {
			t.Errorf("%q: %d, %v, %v", page, got, seen, err)
		}
	}
	if got, seen, err := (&selector{name: "a"}).sum("a 1\na{b=\"c\"} 2"); got != 3 || !seen || err != nil {
		t.Errorf("a last line without a newline: %d, %v, %v", got, seen, err)
	}
	for _, page := range []string{"a NaN\n", "a -1\n", "a\t\n", `a{b="c` + "\n", "a x\n", "a 1e300\n", "a +Inf\n",
		"a{b=\"c\",b=\"d\"} 1\n", "a 1 x\n", "a 1 2 3\n", "a 1\na 1\n",
		"a{b=\"c\",d=\"e\"} 1\na{d=\"e\",b=\"c\"} 1\n"} {
		if _, _, err := (&selector{name: "a"}).sum(page); err == nil {
			t.Errorf("%q is taken for a count", page)
		}
	}
}

// FuzzSelector: a sample that is written by the rules of the format is found, whatever else is on the page.
func FuzzSelector(f *testing.F) {
	f.Add("exec", uint32(7), "# junk\nother 1")
	f.Add("a\\b\"c\n}", uint32(0), "events{type=")
	f.Fuzz(func(t *testing.T, label string, n uint32, junk string) {
		if !utf8.ValidString(label) {
			t.Skip("no label")
		}
		escaped := strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`).Replace(label)
		text := fmt.Sprintf(`events{kind="%s"}`, escaped)
		s, err := parseSelector(text)
		if err != nil || s.labels["kind"] != label {
			t.Fatalf("%s: %v, %v", text, s, err)
		}
		sample := fmt.Sprintf("events{other=\"x\",kind=\"%s\"} %d\n", escaped, n)
		if got, seen, err := s.sum("# a page\n" + sample + "events{kind=\"" + escaped + "x\"} 1\n"); got != int64(n) ||
			!seen || err != nil {
			t.Errorf("%s gives %d (%v, %v)", sample, got, seen, err)
		}
		if got, _, err := s.sum(junk); err == nil && (got < 0 || got > math.MaxInt64/2) { // it must return, with any result
			t.Errorf("%q gives %d", junk, got)
		}
	})
}

func BenchmarkFeed(b *testing.B) {
	line := []byte(`{"time":"2026-01-02T03:04:05.678901234Z","pid":12345,"ppid":12344,"uid":0,"cgroup":"/tare-trial-0-p1-t2/work/execs","cgroup_id":4711,"comm":"memfd:tare-exec","filename":"/dev/fd/5","args":["tare-exec","0.12345"]}` + "\n")
	piece := bytes.Repeat(line, 256<<10/len(line))
	n := bytes.Count(piece, newline)
	for _, c := range []struct {
		name  string
		tally *tally
	}{
		{"lines", newTally(Source{Lines: mustCompile("")})},
		{"prefix", newTally(Source{Lines: mustCompile(`^\{"time"`)})},
		{"contains", newTally(Source{Lines: mustCompile(`"filename":"/dev/fd`)})},
		{"regexp", newTally(Source{Lines: mustCompile(`"pid":[0-9]+`)})},
		{"json", newTally(Source{JSON: []string{"pid"}})},
	} {
		b.Run(c.name, func(b *testing.B) {
			f := feed{tallies: []*tally{c.tally}}
			b.SetBytes(int64(len(piece)))
			for b.Loop() {
				f.write(piece)
			}
			b.ReportMetric(float64(n)*float64(b.N)/b.Elapsed().Seconds(), "lines/s")
		})
	}
}
