package config

import (
	"regexp"
	"regexp/syntax"
	"strings"

	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"tare/internal/mesh/xds/translate"
)

// Text says whether a text is as it should be.
type Text func(string) bool

// maxPattern bounds a regular expression, in bytes. Go's take time in proportion to the text, whatever the pattern.
const maxPattern = 4 << 10

// text reads a condition on a text.
func text(m *matcherv3.StringMatcher) (Text, error) {
	if err := translate.Only(m, "exact", "prefix", "suffix", "contains", "safe_regex", "ignore_case"); err != nil {
		return nil, err
	}
	fold := func(s string) string { return s }
	if m.GetIgnoreCase() {
		fold = strings.ToLower
	}
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return exact(p.Exact, m.GetIgnoreCase()), nil
	case *matcherv3.StringMatcher_Prefix:
		want := fold(p.Prefix)
		return func(s string) bool { return strings.HasPrefix(fold(s), want) }, nil
	case *matcherv3.StringMatcher_Suffix:
		want := fold(p.Suffix)
		return func(s string) bool { return strings.HasSuffix(fold(s), want) }, nil
	case *matcherv3.StringMatcher_Contains:
		want := fold(p.Contains)
		return func(s string) bool { return strings.Contains(fold(s), want) }, nil
	case *matcherv3.StringMatcher_SafeRegex:
		t, err := pattern(p.SafeRegex)
		return t, translate.In("safe_regex", err)
	}
	return nil, translate.Refuse("is empty")
}

func exact(want string, ignoreCase bool) Text {
	if ignoreCase {
		return func(s string) bool { return strings.EqualFold(s, want) }
	}
	return func(s string) bool { return s == want }
}

// pattern reads a regular expression, which must match the whole text.
func pattern(m *matcherv3.RegexMatcher) (Text, error) {
	if err := translate.Only(m, "regex", "google_re2"); err != nil {
		return nil, err
	}
	if n := len(m.GetRegex()); n > maxPattern {
		return nil, translate.In("regex", translate.Refuse("has %d bytes; the proxy takes %d", n, maxPattern))
	}
	if err := small(m.GetRegex()); err != nil {
		return nil, translate.In("regex", err)
	}
	re, err := regexp.Compile(`\A(?:` + m.GetRegex() + `)\z`)
	if err != nil {
		return nil, translate.In(
			"regex",
			translate.Refuse("%q is no regular expression", translate.Clip(m.GetRegex())),
		)
	}
	return re.MatchString, nil
}

// small refuses a regular expression that is large once it is compiled: "x{1000}" has 7 bytes and 1000 instructions.
func small(text string) error {
	tree, err := syntax.Parse(text, syntax.Perl)
	if err != nil {
		return nil //nolint:nilerr // compiling it says so
	}
	if most := translate.PatternSize(len(text)); instructions(tree, most) > most {
		return translate.Refuse("repeats too much: it comes to more than %d instructions", most)
	}
	return nil
}

// instructions is about how many instructions of 40 bytes an expression comes to, up to more than most.
func instructions(re *syntax.Regexp, most int) int {
	n := 1 + len(re.Rune)/8
	for _, sub := range re.Sub {
		n += instructions(sub, most)
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, most+1)
}

// texts reads conditions of which one must hold.
func texts(list []*matcherv3.StringMatcher) (out []Text, err error) {
	for i, m := range list {
		t, err := text(m)
		if err != nil {
			return nil, translate.Item(i, err)
		}
		out = append(out, t)
	}
	return out, nil
}
