package param_test

import (
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"tare/internal/lib/fault"
	"tare/internal/lib/param"
)

var settings = []param.Setting{
	{Name: "mode", Type: param.TypeWord, Default: "open", Words: []string{"open", "closed"}, Doc: "how"},
	{Name: "rate", Type: param.TypeNumber, Words: []string{"storm"}, Min: 0.1, Max: 1000,
		Doc: "how many, in `mode: open`"},
	{Name: "body", Type: param.TypeBytes, Default: "128", Max: 16 << 20, Doc: "how large"},
	{Name: "wait", Type: param.TypeDuration, Default: "1s", Max: 60, Doc: "how long"},
	{Name: "keep", Type: param.TypeSwitch, Default: "true", Doc: "whether"},
	{Name: "part", Type: param.TypePart, Min: 0.001, Max: 1, Doc: "how much"},
	{Name: "many", Type: param.TypeCount, Min: 1, Doc: "how many"},
	{Name: "text", Type: param.TypeText, Doc: "what"},
}

// TestCanonical: which texts each type accepts, their canonical form, and the errors for others.
func TestCanonical(t *testing.T) {
	for _, c := range []struct{ name, text, want, says string }{
		{"mode", " closed ", "closed", ""},
		{"mode", "opne", "", `must be one of open, closed, not "opne"; did you mean "open"?`},
		{"rate", "storm", "storm", ""},
		{"rate", "1e2", "100", ""},
		{"rate", "stomr", "", `must be a number or storm, not "stomr"; did you mean "storm"?`},
		{"rate", "NaN", "", "must be a number"},
		{"rate", "0.05", "", "must be at least 0.1, not 0.05"},
		{"body", "64KiB", "65536", ""},
		{"body", "10MB", "10000000", ""},
		{"body", "1.5", "", "must be a number of bytes"},
		{"body", "17MiB", "", "must be at most 16MiB, not 17MiB"},
		{"wait", "1500ms", "1.5s", ""},
		{"wait", "5", "", "must be a duration with its unit"},
		{"wait", "-1s", "", "must be at least 0s, not -1s"},
		{"wait", "2m", "", "must be at most 60s, not 2m0s"},
		{"keep", "false", "false", ""},
		{"keep", "no", "", `must be true or false, not "no"`},
		{"part", "5%", "5%", ""},
		{"part", "0.07", "7%", ""},
		{"part", "0%", "", "must be at least 0.1%, not 0%"},
		{"many", "1.5", "", "must be a whole number"},
		{"many", "0", "", "must be at least 1, not 0"},
		{"text", "a b", "a b", ""},
		{"text", "a\nb", "", "must be one line of text"},
		{"text", strings.Repeat("a", 100), strings.Repeat("a", 100), ""},
		{"mode", strings.Repeat("a", 100), "", `not "` + strings.Repeat("a", 40) + `..."`},
	} {
		s, ok := param.Find(settings, c.name)
		if !ok {
			t.Fatalf("no setting %q", c.name)
		}
		got, err := s.Canonical(c.text)
		switch {
		case c.says == "" && (err != nil || got != c.want):
			t.Errorf("%s %q: got %q, %v; want %q", c.name, c.text, got, err, c.want)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s %q: got %v, want %q", c.name, c.text, err, c.says)
		}
	}
}

func TestWords(t *testing.T) {
	for name, want := range map[string][3]string{ // what it accepts, its range, its hint
		"mode": {"open, closed", "", `"mode" is how`},
		"rate": {"number or storm", "0.1 to 1000", "\"rate\" is how many, in `mode: open`; number or storm; 0.1 to 1000"},
		"body": {"bytes", "0 to 16MiB", `"body" is how large; 0 to 16MiB`},
		"wait": {"duration", "0s to 60s", `"wait" is how long; 0s to 60s`},
		"keep": {"switch", "", `"keep" is whether`},
		"part": {"part", "0.1% to 100%", `"part" is how much; 0.1% to 100%`},
		"many": {"count", "at least 1", `"many" is how many; at least 1`},
	} {
		s, _ := param.Find(settings, name)
		if got := [3]string{s.Accepts(), s.Range(), s.Hint()}; got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestCheck: values that are given are checked, and others are left alone.
func TestCheck(t *testing.T) {
	if err := (param.Values{"mode": "closed", "body": "5"}).Check(settings); err != nil {
		t.Error(err)
	}
	err := param.Values{"wait": "61s"}.Check(settings)
	if fault.CodeOf(err) != fault.Usage || err.Error() != "--wait: must be at most 60s, not 1m1s" ||
		fault.HintOf(err) == "" {
		t.Error(err)
	}
}

func TestValues(t *testing.T) {
	v := param.Defaults(settings)
	if want := (param.Values{"mode": "open", "body": "128", "wait": "1s", "keep": "true"}); !maps.Equal(v, want) {
		t.Errorf("the defaults are %v", v)
	}
	c := v.Clone()
	c["part"], c["rate"] = "5%", "2.5"
	if c.Int("body") != 128 || c.Duration("wait") != time.Second || !c.On("keep") || c.Part("part") != 0.05 ||
		c.Float("rate") != 2.5 {
		t.Errorf("the values of %v", c)
	}
	if v.Int("many") != 0 || v.On("none") || v.Part("part") != 0 || v.Duration("none") != 0 {
		t.Errorf("what is not given is not zero: %v", v)
	}
	if got := strings.Join(c.Args(settings), " "); got != "--mode=open --rate=2.5 --body=128 --wait=1s "+
		"--keep=true --part=5%" {
		t.Errorf("as flags: %s", got)
	}
}

// TestFlags: the flags of settings accept the same values as a spec, and have the same errors.
func TestFlags(t *testing.T) {
	parse := func(args ...string) (param.Values, error) {
		fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
		v := param.Flags(fs, settings...)
		return v, fs.Parse(args)
	}
	v, err := parse()
	if err != nil || !maps.Equal(v, param.Defaults(settings)) {
		t.Errorf("without flags: %v, %v", v, err)
	}
	v, err = parse("--mode=closed", "--body", "1KiB", "--keep=false", "--rate", "storm")
	want := param.Values{"mode": "closed", "body": "1024", "keep": "false", "rate": "storm", "wait": "1s"}
	if err != nil || !maps.Equal(v, want) {
		t.Errorf("got %v, %v", v, err)
	}
	if v, err = parse("--keep=false", "--keep"); err != nil || !v.On("keep") {
		t.Errorf("a switch without a value: %v, %v", v, err)
	}
	for _, s := range settings {
		const wrong = "a\nb"
		_, want := s.Canonical(wrong)
		_, err := parse("--" + s.Name + "=" + wrong)
		if err == nil || want == nil || !strings.HasSuffix(err.Error(), want.Error()) {
			t.Errorf("%s: got %v, want %v", s.Name, err, want)
		}
	}
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	param.Flags(fs, settings...)
	for _, line := range []string{
		"--mode open|closed ", "--rate number|storm ", "how many, in 'mode: open'; 0.1 to 1000\n",
		"how large; 0 to 16MiB (default 128)\n", "--keep  ", "--wait duration ",
	} {
		if usage := fs.FlagUsages(); !strings.Contains(usage, line) {
			t.Errorf("help lacks %q:\n%s", line, usage)
		}
	}
}

// TestMany: the flag of a text may be repeated where that makes sense, and Args gives every value again. A count is as
// large as its bound allows.
func TestMany(t *testing.T) {
	settings := []param.Setting{
		{Name: "url", Type: param.TypeText, Many: true},
		{Name: "seed", Type: param.TypeCount, Default: "1", Max: math.MaxUint64},
	}
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	v := param.Flags(fs, settings...)
	if got := v.Texts("url"); got != nil {
		t.Errorf("without a value: %q", got)
	}
	args := []string{"--url=http://a/", "--url=http://b/?x=1,2", "--seed=18446744073709551615"}
	if err := fs.Parse(args); err != nil {
		t.Fatal(err)
	}
	if got := v.Texts("url"); !slices.Equal(got, []string{"http://a/", "http://b/?x=1,2"}) {
		t.Errorf("got %q", got)
	}
	if got := v.Uint("seed"); got != math.MaxUint64 {
		t.Errorf("the seed is %d", got)
	}
	if got := v.Args(settings); !slices.Equal(got, args) {
		t.Errorf("the arguments are %q", got)
	}
	if usage := fs.Lookup("seed").Usage; !strings.HasSuffix(usage, "; at least 0") {
		t.Errorf("the help of a seed is %q", usage)
	}
	for _, wrong := range []string{"-1", "18446744073709551616", "x"} {
		if err := fs.Set("seed", wrong); err == nil {
			t.Errorf("a seed of %s passes", wrong)
		}
	}
	if err := fs.Set("url", "a\nb"); err == nil {
		t.Error("a text of two lines passes")
	}
}
