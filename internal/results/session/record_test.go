package session

import (
	"slices"
	"testing"
)

func TestAgain(t *testing.T) {
	for _, c := range []struct{ args, want []string }{
		{[]string{"run", "quickstart", "--out", "d", "--quick"}, []string{"tare", "run", "quickstart", "--quick"}},
		{[]string{"run", "--out=d", "quickstart"}, []string{"tare", "run", "quickstart"}},
		{[]string{"run", "quickstart", "--set", "rate=1,2"}, []string{"tare", "run", "quickstart", "--set", "rate=1,2"}},
		{[]string{"run", "quickstart", "--out"}, []string{"tare", "run", "quickstart"}},
		{[]string{"--token", "s", "run", "quickstart"}, []string{"tare", "run", "quickstart"}},
		{[]string{"run", "--token=s=", "quickstart", "-n", "token"}, []string{"tare", "run", "quickstart", "-n", "token"}},
		{[]string{"run", "token", "--token-file=x"}, []string{"tare", "run", "token", "--token-file=x"}},
	} {
		if got := again([]string{"tare"}, c.args, []string{"out", "token"}); !slices.Equal(got, c.want) {
			t.Errorf("%q: got %q, want %q", c.args, got, c.want)
		}
	}
}

// TestAgainWithACommand: flags of the command that is tried are not tare's.
func TestAgainWithACommand(t *testing.T) {
	got := withFlag(again([]string{"tare"}, []string{"try", "--out", "a", "--", "x", "--out", "b"},
		[]string{"out"}), "--seed=1")
	if want := []string{"tare", "try", "--seed=1", "--", "x", "--out", "b"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
