package agent

import (
	"bytes"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/lib/self"
)

// configured returns the configuration that the agent reads from a file and from flags.
func configured(t *testing.T, file string, args ...string) (*configuration, error) {
	t.Helper()
	var c configuration
	f := pflag.NewFlagSet("tare-agent", pflag.ContinueOnError)
	c.addFlags(f)
	if file != "" {
		path := filepath.Join(t.TempDir(), "agent.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config", path)
	}
	if err := f.Parse(args); err != nil {
		return nil, err
	}
	return &c, c.read(f)
}

func TestConfiguration(t *testing.T) {
	c, err := configured(t, "")
	if err != nil || c.listen() != ":9633" || c.maxSeries() != 1000 || c.tick().Minutes() != 1 || c.withoutStatistics() {
		t.Errorf("without any: %+v, %v", c, err)
	}
	c, err = configured(t, "listen: 127.0.0.1:1\nmax-series: 7\nbpf-stats: off\nhz: 0\ntick: 20s\n"+
		"rules:\n- {cgroup: /x*, charge: tare, component: cni}\n", "--max-series", "9", "--tick", "30s")
	if err != nil {
		t.Fatal(err)
	}
	if c.listen() != "127.0.0.1:1" || c.maxSeries() != 9 || c.tick().Seconds() != 30 || !c.withoutStatistics() ||
		c.hz() != -1 ||
		len(c.rules) != 1 {
		t.Errorf("of the file, and of flags before it: %+v, rules %v", c.Values, c.rules)
	}
}

func TestConfigurationErrors(t *testing.T) {
	for _, c := range []struct{ name, file, flag, says string }{
		{"an unknown key", "lisen: :1", "", "listen"},
		{"a number out of range", "max-series: 0", "", "max-series"},
		{"a word that is none", "hz: 0\nbpf-stats: sometimes", "", "agent.yaml:2:12: "},
		{"a list where a value belongs", "listen: [1]", "", "listen"},
		{"rules that are no list", "rules: 3", "", "list"},
		{"a rule that matches nothing", "rules: [{charge: tare}]", "", ""},
		{"no YAML", "listen: [", "", ""},
		{"two documents", "listen: :1\n---\nlisten: :2", "", "one document"},
		{"no address", "listen: here", "", "agent.yaml:1:9: not an address"},
		{"no address in a flag", "", "--listen=here", "--listen here: not an address"},
		{"no address in a flag, one in the file", "listen: :1", "--listen=here", "--listen here: not an address"},
		{"no such file", "", "--config=/nowhere/agent.yaml", "read"},
		{"too large a file", "listen: :1 #" + strings.Repeat("x", maxConfigBytes), "", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			var args []string
			if c.flag != "" {
				args = append(args, c.flag)
			}
			_, err := configured(t, c.file, args...)
			if err == nil || fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), c.says) {
				t.Errorf("code %d: %v; want %d and %q", fault.CodeOf(err), err, fault.Usage, c.says)
			}
		})
	}
}

// TestListenError: an address that is in use is reported where it was given: on a line of the file, or by a flag.
func TestListenError(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	address := taken.Addr().String()
	for _, c := range []struct{ file, flag, says string }{
		{"tick: 20s\nlisten: " + address, "--hz=0", "agent.yaml:2:9: cannot listen: "},
		{"listen: 127.0.0.1:1", "--listen=" + address, "--listen " + address + ": cannot listen: "},
	} {
		as, err := configured(t, c.file, c.flag)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := listen(as); fault.CodeOf(err) != fault.Machine || !strings.Contains(err.Error(), c.says) {
			t.Errorf("code %d: %v; want %d and %q", fault.CodeOf(err), err, fault.Machine, c.says)
		}
	}
}

// TestRulesWithProfile: rules are checked together with those of the profile, because they may name its workloads.
func TestRulesWithProfile(t *testing.T) {
	const rules = "rules: [{charge: tare, cgroup: /mesh, workload: shop}]\n"
	if _, err := configured(t, rules+"profile: kubernetes"); err != nil {
		t.Errorf("with the profile: %v", err)
	}
	if _, err := configured(t, rules); err == nil || !strings.Contains(err.Error(), `there is no workload "shop"`) {
		t.Errorf("without: %v", err)
	}
}

// TestProfileError: an unknown profile is named where it stands.
func TestProfileError(t *testing.T) {
	for _, c := range []struct{ file, flag, says string }{
		{"tick: 20s\nprofile: kubernets", "--hz=0", `agent.yaml:2:10: there is no profile "kubernets"`},
		{"profile: kubernetes", "--profile=kubernets", `--profile kubernets: there is no profile "kubernets"`},
	} {
		_, err := configured(t, c.file, c.flag)
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v, want %q", err, c.says)
		}
	}
}

// TestVersion: the version names the build, as that of tare does.
func TestVersion(t *testing.T) {
	var out bytes.Buffer
	cmd := Command()
	cmd.SetArgs([]string{"--version"})
	cmd.SetOut(&out)
	want := "tare-agent version " + self.Version + " " + self.Build() + "\n"
	if err := cmd.Execute(); err != nil || out.String() != want || !strings.Contains(want, runtime.Version()) {
		t.Errorf("%v: %q, want %q", err, out.String(), want)
	}
}

func FuzzConfiguration(f *testing.F) {
	f.Add([]byte("listen: :1\nrules:\n- {group: /x, charge: tare}\n"))
	f.Add([]byte("max-series: &a 1\nhz: *a\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		c := configuration{Values: param.Defaults(settings)}
		if err := c.parse("agent.yaml", data); err != nil && fault.CodeOf(err) != fault.Usage {
			t.Errorf("code %d: %v", fault.CodeOf(err), err)
		}
	})
}

// TestWrongUse: errors in a command line have the form and the exit code that they have with tare.
func TestWrongUse(t *testing.T) {
	for args, want := range map[string]string{
		"now":            "tare: tare-agent now: unexpected argument\n      see 'tare-agent --help'\n",
		"--nosuch":       "tare: tare-agent: unknown flag: --nosuch\n      see 'tare-agent --help'\n",
		"--max-series x": "tare: tare-agent --max-series: must be a whole number, not \"x\"\n",
		"--config /nosuch": "tare: /nosuch: the configuration cannot be read: open /nosuch: no such file or directory\n" +
			"      name a file that can be read\n",
	} {
		cmd := Command()
		cmd.SetArgs(strings.Fields(args))
		err := cmd.Execute()
		var b bytes.Buffer
		fault.Print(&b, err)
		if fault.CodeOf(err) != fault.Usage || !strings.HasPrefix(b.String(), want) {
			t.Errorf("%s: exit code %d, %q, want %q", args, fault.CodeOf(err), b.String(), want)
		}
	}
}
