// Package guest marks tests that the virtual machines of test/vm need not run. These machines repeat the tests of
// packages that use the kernel on an older kernel. Without hardware support they run code ten to thirty times slower.
// Tests whose outcome does not depend on the kernel therefore run on the host alone (KernelFree), and slow ones run in
// these machines only in the long suite (Slow). Tests without a mark run in both places, so that a new test is not left
// out by accident.
package guest

import (
	"os"
	"testing"

	"tare/test/long"
)

// Reason is the skip message of a test whose outcome depends on nothing of the kernel; test/vm counts such tests
// separately from other skipped tests.
const Reason = "depends on nothing of the kernel"

// KernelFree declares that the outcome of a test depends on nothing of the kernel: neither on its version nor on how
// control groups are mounted. Short runs, such as those in virtual machines, skip it.
func KernelFree(t testing.TB) {
	t.Helper()
	if testing.Short() {
		t.Skip(Reason)
	}
}

// SlowVariable is the environment variable with which slow tests run in virtual machines: in the long suite.
const SlowVariable = "TARE_VM_SLOW"

// Slow declares that a test takes an emulated machine ten seconds or more. Short runs, such as those in virtual
// machines, leave it to the long suite.
func Slow(t testing.TB) {
	t.Helper()
	if testing.Short() && os.Getenv(SlowVariable) == "" {
		t.Skip(long.Reason + "takes an emulated machine 10 s or more")
	}
}
