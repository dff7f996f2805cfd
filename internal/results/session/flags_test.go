package session

import (
	"testing"

	"github.com/spf13/pflag"

	"tare/internal/lib/fault"
)

// TestZeros: a zero that a flag does not allow is refused. It is not taken to mean the value in the spec.
func TestZeros(t *testing.T) {
	for _, c := range []struct {
		args []string
		code fault.Code
	}{
		{nil, fault.OK},
		{[]string{"--blocks", "6", "--hz", "97", "--until", "10m", "--seed", "0"}, fault.OK},
		{[]string{"--blocks", "0"}, fault.Usage},
		{[]string{"--hz", "0"}, fault.Usage},
		{[]string{"--until", "0"}, fault.Usage},
	} {
		var f Flags
		fs := pflag.NewFlagSet("run", pflag.ContinueOnError)
		f.Register(fs)
		fs.IntVar(&f.Overrides.SampleHz, "hz", 0, "")
		if err := fs.Parse(c.args); err != nil {
			t.Fatal(err)
		}
		if err := f.Check(fs); fault.CodeOf(err) != c.code {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}
