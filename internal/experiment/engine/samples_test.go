package engine

import (
	"strings"
	"testing"
)

// TestTooShort: a quantile for which the windows have too few samples is named before the run, with the levels, and
// with a duration that would be enough.
func TestTooShort(t *testing.T) {
	const text = `name: short
question: What can it show?
duration: 300ms
applications: {server: {kind: http}}
loads: {client: {kind: http, to: server, rate: 500}}
arms: {kernelmesh: {subject: kernelmesh}}
`
	for _, c := range []struct {
		spec string
		want []string // a line has the words
	}{
		{text, []string{"latency p99 cannot be measured: it needs 1,000 requests in each window, and 300ms at 500/s has " +
			"about 150; 'duration: 2.1s' would give it"}},
		{strings.Replace(text, "300ms", "2.1s", 1), nil},
		{strings.Replace(text, "300ms", "2s", 1), nil},
		{text + "factors: {client.rate: [500, 1000, 4000]}\n", []string{
			"latency p99 cannot be measured at client.rate 500; client.rate 1000: "}},
		{strings.Replace(text, "rate: 500", "mode: closed", 1), nil},
		{strings.Replace(text, "300ms", "10s", 1) + "assert: [latency_p999_seconds <= 1ms]\n", []string{
			"latency p99.9 cannot be measured: it needs 100,000 requests"}},
	} {
		got := TooShort(mustParse(t, c.spec))
		if len(got) != len(c.want) {
			t.Errorf("%s: %q", c.spec, got)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], c.want[i]) {
				t.Errorf("%q lacks %q", got[i], c.want[i])
			}
		}
	}
}
