package agent

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"tare/internal/lib/param"
)

// TestPackagedConfiguration: the configuration file in the packages changes no setting, and shows every setting with
// its default.
func TestPackagedConfiguration(t *testing.T) {
	const path = "../../deploy/packages/agent.yaml"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var as configuration
	none := pflag.NewFlagSet("", pflag.ContinueOnError)
	as.addFlags(none)
	as.file = path
	if err := as.read(none); err != nil {
		t.Errorf("as it is: %v", err)
	}
	shown := configuration{Values: param.Values{}}
	if err := shown.parse(path, regexp.MustCompile(`(?m)^#([a-z-])`).ReplaceAll(text, []byte("$1"))); err != nil {
		t.Fatalf("with what is commented out: %v", err)
	}
	if len(shown.rules) < 3 {
		t.Errorf("%d rules are shown", len(shown.rules))
	}
	for _, setting := range settings {
		want := setting.Default
		if d, err := time.ParseDuration(want); err == nil {
			want = d.String()
		}
		if got, ok := shown.Values[setting.Name]; !ok || got != want {
			t.Errorf("%s is %q there (%v), and %q by default", setting.Name, got, ok, want)
		}
	}
}
