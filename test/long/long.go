// Package long marks the tests of the long suite: what takes minutes, such as campaigns of attacks and faults, and
// simulations. `make test` leaves them out; `make test-long` runs every test whose own body calls this package.
package long

import (
	"os"
	"testing"
)

// Reason begins the message with which a long test is skipped. test/closing counts such tests, and does not list them.
const Reason = "long test: "

// Enabled reports whether long tests run. A test that calls Enabled, Repeat or Some, and not Test, runs in both suites,
// and does more in the long one.
func Enabled() bool { return os.Getenv("TARE_LONG") != "" }

// Test makes the calling test one of the long suite. Why says what takes long, and how long it takes on two processors.
func Test(t testing.TB, why string) {
	t.Helper()
	if !Enabled() {
		t.Skip(Reason + why)
	}
}

// Repeat returns how often a test is to repeat something: few times or, in the long suite, many times.
func Repeat(few, many int) int {
	if Enabled() {
		return many
	}
	return few
}

// Some returns few items of a list, evenly spaced from the first on, and all of them in the long suite.
func Some[T any](few int, all []T) []T {
	if Enabled() || few >= len(all) {
		return all
	}
	some := make([]T, few)
	for i := range some {
		some[i] = all[i*len(all)/few]
	}
	return some
}
