package e2e

import (
	"os"
	"path/filepath"
	"testing"

	"tare/test/docpage"
	"tare/test/long"
)

// TestTutorial runs the commands of the tutorial.
func TestTutorial(t *testing.T) {
	long.Test(t, "2 min: two runs of 6 blocks, as a reader has them")
	leavesNothing(t)
	docpage.Run(t, "../../docs/tutorial.md", "COLUMNS=100",
		"PATH="+filepath.Dir(bin)+string(os.PathListSeparator)+os.Getenv("PATH"))
}
