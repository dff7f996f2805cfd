package cli

import (
	"reflect"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
)

// eachAlone calls f for every guest that runs by itself, with its command.
func eachAlone(t *testing.T, f func(t *testing.T, r kind.Role, g kind.Guest, c *cobra.Command)) {
	for _, r := range []kind.Role{kind.Application, kind.Load, kind.Subject} {
		for _, g := range kind.All(r) {
			about := g.About()
			if about.Alone == nil {
				continue
			}
			t.Run(string(r)+" "+about.Name, func(t *testing.T) {
				c, _, err := Command().Find([]string{string(r), about.Name})
				if err != nil || c.CommandPath() != "tare "+string(r)+" "+about.Name {
					t.Fatalf("there is no command: %v", err)
				}
				f(t, r, g, c)
			})
		}
	}
}

// TestEveryGuestPlays: every guest that runs by itself is either a kind.Player or has a Run. It has an example, and its
// argument, if it takes one, is one of its settings. Every command of a role is such a guest.
func TestEveryGuestPlays(t *testing.T) {
	guests := map[string]bool{}
	eachAlone(t, func(t *testing.T, r kind.Role, g kind.Guest, c *cobra.Command) {
		about := g.About()
		guests[string(r)+" "+about.Name] = true
		if _, plays := g.(kind.Player); plays == (about.Alone.Run != nil) {
			t.Error("it must either be a kind.Player or have a Run")
		}
		if len(about.Alone.Examples) == 0 {
			t.Error("its help has no example")
		}
		if argument := about.Alone.Argument; argument != "" {
			if s, ok := param.Find(about.ProcessSettings(), argument); !ok || s.Type != param.TypeText {
				t.Errorf("its argument %q is no text among its settings", argument)
			}
		}
	})
	for _, r := range []string{"app", "load", "subject"} {
		c, _, err := Command().Find([]string{r})
		if err != nil {
			t.Fatal(err)
		}
		for _, sub := range c.Commands() {
			if name := r + " " + sub.Name(); !guests[name] {
				t.Errorf("the command %q is no guest that runs by itself", name)
			}
		}
	}
	if len(guests) < 12 {
		t.Errorf("only %d guests run by themselves", len(guests))
	}
}

// TestSettings: the flags of a guest are exactly the settings of its process, plus those of the window for a guest that
// is measured. A setting that is also in specs is identical there, except for the few listed in this test.
func TestSettings(t *testing.T) {
	others := map[string]bool{ // settings that differ between the command line and a spec
		"kernelmesh services": true, // a file on the command line, and a number in a spec
		"kernelmesh xds":      true, // an address on the command line, and an application in a spec
		"exectrace output":    true, // on the command line it may also be a table, which is for people
	}
	eachAlone(t, func(t *testing.T, r kind.Role, g kind.Guest, c *cobra.Command) {
		about := g.About()
		known := map[string]bool{"help": true}
		switch {
		case kind.Measures(r, g):
			known["warmup"], known["duration"], known["json"] = true, true, true
		case r == kind.Subject && about.Alone.Run == nil:
			known["human"] = true
		}
		for _, s := range about.ProcessSettings() {
			f := c.Flags().Lookup(s.Name)
			if f == nil || f.DefValue != s.Default {
				t.Errorf("the flag %q is %+v, the setting's default %q", s.Name, f, s.Default)
				continue
			}
			if _, ok := f.Value.(param.Flag); !ok || known[s.Name] {
				t.Errorf("the flag %q is declared twice", s.Name)
			}
			if !strings.Contains(f.Usage, s.Range()) || strings.Contains(f.Usage, "`") {
				t.Errorf("the help of %q is %q", s.Name, f.Usage)
			}
			known[s.Name] = true
			spec, both := param.Find(about.Settings, s.Name)
			if both && !reflect.DeepEqual(spec, s) != others[about.Name+" "+s.Name] {
				t.Errorf("%q is\n%+v in a spec and\n%+v on the command line", s.Name, spec, s)
			}
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !known[f.Name] {
				t.Errorf("the flag %q is no setting of the guest", f.Name)
			}
		})
	})
}

// TestExamples: the command line takes every example as it is.
func TestExamples(t *testing.T) {
	eachAlone(t, func(t *testing.T, _ kind.Role, g kind.Guest, c *cobra.Command) {
		for _, line := range g.About().Alone.Examples {
			args, _, _ := strings.Cut(line, " # ")
			c.RunE = func(*cobra.Command, []string) error { return nil }
			root := c.Root()
			root.SetArgs(append(strings.Fields(c.CommandPath())[1:], strings.Fields(args)...))
			if err := root.ExecuteContext(t.Context()); err != nil {
				t.Errorf("%q: %v", line, err)
			}
		}
	})
}

// TestLoadHTTPDefaults: flags of the load have the same defaults as in a spec. These four once had others.
func TestLoadHTTPDefaults(t *testing.T) {
	c, _, err := Command().Find([]string{"load", "http"})
	if err != nil {
		t.Fatal(err)
	}
	// The timeout is the expected default of a flag, not a deadline of this test.
	defaults := map[string]string{"connections": "64", "timeout": "5s", "drain": "1s", "arrivals": "poisson"}
	for name, want := range defaults {
		if got := c.Flags().Lookup(name).DefValue; got != want {
			t.Errorf("--%s is %s when nobody gives it, not %s", name, got, want)
		}
	}
}

// ran runs a command, and returns what it prints and its error.
func ran(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var b strings.Builder
	c := Command()
	c.SetArgs(args)
	c.SetOut(&b)
	err := c.ExecuteContext(t.Context())
	return b.String(), err
}

// TestListSubjects: 'tare subject' names the subjects and their settings.
func TestListSubjects(t *testing.T) {
	out, err := ran(t, "subject")
	for _, want := range []string{
		"kernelmesh: ", "  peer ", "a planted weight (default 0)\n", "store: ", "bpftrace: ",
	} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v: lacks %q:\n%s", err, want, out)
		}
	}
}
