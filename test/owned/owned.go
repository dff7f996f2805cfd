// Package owned names control groups and directories of tests after the process that makes them, as the control groups
// of runs are named. By the name, what a killed test has left is known to be left over: "tare clean" removes such
// groups, and test/run removes groups and directories.
package owned

import (
	"fmt"
	"os"

	"tare/internal/scale/host/proc"
)

// Name is tare-test-<what>-p<pid>-t<start time>.
func Name(what string) string {
	self, err := proc.FS{}.Identify()
	if err != nil {
		panic(fmt.Errorf("naming what a test makes: %w", err)) // nothing can be tested without /proc
	}
	return "tare-test-" + what + "-" + self.String()
}

// TempDir makes a temporary directory that several tests or other users use; t.TempDir is for one test. The caller
// removes it.
func TempDir(what string) (string, error) { return os.MkdirTemp("", Name(what)+"-") }
