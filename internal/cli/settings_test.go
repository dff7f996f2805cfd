package cli

import (
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
	"tare/internal/mesh/kernelmesh"
	"tare/internal/mesh/proxy"
	"tare/internal/mesh/push"
	appmesh "tare/internal/mesh/services"
	"tare/internal/mesh/storebench"
	"tare/internal/tracing/exec"
	"tare/internal/tracing/exectrace"
	"tare/internal/workloads/app/burn"
	apphttp "tare/internal/workloads/app/http"
	loadhttp "tare/internal/workloads/load/http"
	"tare/internal/workloads/load/probe"
	"tare/internal/workloads/load/write"
)

// guest is a guest with the settings that its folder declares.
type guest struct {
	command  string
	role     kind.Role
	settings []param.Setting
	only     string // flags that the command line alone has
}

const (
	windowed = " warmup duration role json"
	listen   = "listen role"
)

var guests = []guest{
	{"app http", kind.Application, apphttp.Settings, listen + " delay-dist seed stall stall-every skip"},
	{"app mesh", kind.Application, appmesh.Settings, listen},
	{"app burn", kind.Application, burn.Settings, "role"},
	{"load http", kind.Load, loadhttp.Settings, "url seed method header source spin recycle" + windowed},
	{"load probe", kind.Load, probe.Settings, windowed},
	{"load connect", kind.Load, nil, "service services endpoints replacer seed" + windowed},
	{"load push", kind.Load, push.Settings, "mesh seed" + windowed},
	{"load exec", kind.Load, exec.Settings, "spin" + windowed},
	{"load write", kind.Load, write.Settings, "seed spin" + windowed},
	{"subject kernelmesh", kind.Subject, kernelmesh.Settings, "services xds cgroup source allow-root human"},
	{"subject proxy", kind.Subject, proxy.Settings, "config xds node credentials identity token-file probes probe-host drain human stats uid gid"},
	{"subject store", kind.Subject, storebench.Settings, windowed},
	{"subject exectrace", kind.Subject, exectrace.Settings, "cgroup for"},
}

// TestSettings: what a guest declares is what a spec and the command line have, with the same default, and the command
// line has no other flags than those that are known to be its own.
func TestSettings(t *testing.T) {
	for _, g := range guests {
		c, _, err := newRoot().Find(strings.Fields(g.command))
		if err != nil || c.CommandPath() != "tare "+g.command {
			t.Fatalf("there is no command %q: %v", g.command, err)
		}
		known := kind.Find(g.role, c.Name())
		if known == nil {
			t.Fatalf("specs have no %s", g.command)
		}
		others := map[string]bool{}
		for _, name := range strings.Fields(g.only) {
			others[name] = true
		}
		for _, s := range g.settings {
			if key, ok := param.Find(known.About().Settings, s.Name); !ok || key.Default != s.Default {
				t.Errorf("%s: the spec's default of %q is %q, the guest's %q", g.command, s.Name, key.Default, s.Default)
			}
			f := c.Flags().Lookup(s.Name)
			if f == nil || f.DefValue != s.Default {
				t.Errorf("%s: the flag %q is %+v, the guest's default %q", g.command, s.Name, f, s.Default)
				continue
			}
			if _, ok := f.Value.(param.Flag); !ok || others[s.Name] {
				t.Errorf("%s: the flag %q is declared once more", g.command, s.Name)
			}
			if !strings.Contains(f.Usage, s.Range()) || strings.Contains(f.Usage, "`") {
				t.Errorf("%s: the help of %q is %q", g.command, s.Name, f.Usage)
			}
			others[s.Name] = true
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !others[f.Name] && f.Name != "help" {
				t.Errorf("%s: the flag %q is no setting of the guest", g.command, f.Name)
			}
		})
	}
}

// TestEveryGuestIsChecked: every command of a guest is in the table above, and every application and load that is
// started by one. A kind.Player needs none, and neither does one that is no process of tare.
func TestEveryGuestIsChecked(t *testing.T) {
	var known []string
	for _, g := range guests {
		known = append(known, g.command)
	}
	var commands []string
	for _, name := range []string{"app", "load", "subject"} {
		c, _, err := newRoot().Find([]string{name})
		if err != nil {
			t.Fatal(err)
		}
		for _, sub := range c.Commands() {
			commands = append(commands, name+" "+sub.Name())
		}
	}
	slices.Sort(known)
	if slices.Sort(commands); !slices.Equal(known, commands) {
		t.Errorf("the commands are %v, those in the table %v", commands, known)
	}
	for _, role := range []kind.Role{kind.Application, kind.Load} {
		for _, g := range kind.All(role) {
			name := g.About().Name
			if _, commands := g.(kind.Commander); commands && !slices.Contains(known, string(role)+" "+name) {
				t.Errorf("the %s %q is not in the table", role, name)
			}
		}
	}
}

// TestLoadHTTPDefaults: by hand the load does what it does in a spec, from which these four once differed.
func TestLoadHTTPDefaults(t *testing.T) {
	c, _, err := newRoot().Find([]string{"load", "http"})
	if err != nil {
		t.Fatal(err)
	}
	defaults := map[string]string{"connections": "64", "timeout": "5s", "drain": "1s", "arrivals": "poisson"}
	for name, want := range defaults {
		if got := c.Flags().Lookup(name).DefValue; got != want {
			t.Errorf("--%s is %s when nobody gives it, not %s", name, got, want)
		}
	}
}

// ran is what a command prints, and its error.
func ran(t *testing.T, args ...string) (string, error) {
	t.Helper()
	var b strings.Builder
	c := newRoot()
	c.SetArgs(args)
	c.SetOut(&b)
	err := c.ExecuteContext(t.Context())
	return b.String(), err
}

// TestListSubjects: 'tare subject' names them and their settings.
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
