// Package owned names control groups and directories of tests after the process that makes them, as the control groups
// of runs are named. From the name it can be seen whether a killed test left them behind: "tare clean" removes such
// groups, and test/run removes groups and directories.
package owned

import (
	"fmt"
	"os"

	"tare/internal/scale/host/proc"
)

// Name returns tare-test-<what>-p<pid>-t<start time>, with the ID and start time of this process.
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
