// Package guest lets tests say something about themselves to the virtual machines of test/vm, which run the tests of
// packages that use the kernel once more, on an older one. A machine without hardware help runs code ten to thirty
// times slower, so a test that the kernel has no part in says so, and runs on the host alone. A test that says nothing
// runs in both: a new one cannot be left out by accident.
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
