package cli

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"tare/internal/experiment/load"
	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/results/plan"
	"tare/test/analysistest"
)

// writeCosts writes a run that can be planned from.
func writeCosts(t *testing.T) (dir string) {
	t.Helper()
	run, trials := analysistest.Costs{
		Experiment: "mesh-rate", Factor: "client.rate", Blocks: 6, Mode: load.Open,
		CPU: func(x float64) float64 { return 0.1 + 0.001*x }, BPF: func(x float64) float64 { return 1e-5 * x },
		Memory: func(x float64) float64 { return 50e6 + 1000*x },
	}.Record()
	dir = filepath.Join(t.TempDir(), "run")
	writeRecord(t, dir, run, trials)
	return dir
}

func runPlan(args ...string) (string, error) { return runCommand(newPlan(), args...) }

func TestPlanCommand(t *testing.T) {
	dir := writeCosts(t)
	out, err := runPlan(dir, "--for", "rate=600,connections=64", "--node", "cpus=4,memory=16GiB",
		"--prices", "cpu=0.03,memory=0.004")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"mesh at connections 64, rate 600 needs 0.7", "1 node of 4 CPUs and 16 GiB (filled by cpu first; 1 at the mean)",
		"at a price of 0.02", "never swept: connections.", "eBPF programs", "cpu 141m, memory 10Mi",
		"tare run mesh-rate --set 'client.connections=16,32,48,64'", "95 % prediction intervals", "No limits:",
	} {
		if !contains(out, want) {
			t.Errorf("it lacks %q:\n%s", want, out)
		}
	}
	var p plan.Plan
	out, err = runPlan(dir, "--for", "rate=600", "--json")
	if err != nil || json.Unmarshal([]byte(out), &p) != nil || p.Schema != plan.Schema || len(p.Arms) != 1 ||
		p.Arms[0].CPUs == nil {
		t.Errorf("%v\n%s", err, out)
	}
	if out, err = runPlan(dir, "--for", "rate=600", "--format", "md"); err != nil ||
		!strings.HasPrefix(out, "mesh at rate 600 needs ") || !strings.Contains(out, "| eBPF programs |") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = runPlan(dir, "--for", "rate=20000")
	if fault.CodeOf(err) != fault.Usage || out != "" || !strings.Contains(err.Error(), "by 19,200") ||
		!strings.Contains(fault.HintOf(err), "tare run mesh-rate --set 'client.rate=100,6733,13367,20000'; --beyond") {
		t.Errorf("%v (%s)\n%s", err, fault.HintOf(err), out)
	}
	if out, err = runPlan(dir, "--for", "rate=20000", "--beyond"); err != nil ||
		!contains(out, "; beyond what was measured.") {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestMeasureCommand: the plan names a command that measures a factor only if the experiment accepts its settings.
func TestMeasureCommand(t *testing.T) {
	for _, c := range []struct {
		experiment, arm, factor string
		levels                  []float64
		want                    string
	}{
		{"mesh-rate", "envoy", "client.connections", []float64{16, 64},
			"tare run mesh-rate --set 'client.connections=16,64'"},
		{"mine.yaml", "envoy-policy", "services", []float64{10, 20}, "tare run mesh-size --set '*.services=10,20'"},
		{"mesh-rate", "envoy", "pods", []float64{50, 200}, ""},
		{"mesh-rate", "envoy", "client.rate", []float64{1e12, 2e12}, ""},
		{"mesh-rate; rm -r .", "none", "client.rate", []float64{100, 200}, ""},
		{"mesh-rate", "envoy", "a'b", []float64{100, 200}, ""},
	} {
		if got := measureCommand(record.Run{Experiment: c.experiment}, []string{c.arm}, c.factor, c.levels); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func TestPlanFlags(t *testing.T) {
	dir := writeCosts(t)
	for _, c := range []struct{ args, says string }{
		{"--for=", `"" is not NAME=VALUE`}, {"--for=rate", `"rate" is not NAME=VALUE`},
		{"--for=rate=1,rate=2", `"rate" is there twice`}, {"--for=rate=fast", `not "fast"`},
		{"--for=rate=-1", "must be 0 to 1e15"}, {"--for=rate=NaN", "must be a number"},
		{"--for=rate=1e300", "must be a number"}, {"--for=rate=600 --arm=none", "no such arm"},
		{"--for=rate=600 --node=cpus=4", `"memory" is missing`},
		{"--for=rate=600 --node=cpus=0,memory=1GiB", "must be at least 0.001"},
		{"--for=rate=600 --node=cpus=4,memory=1GiB,disk=3", `there is no "disk"`},
		{"--for=rate=600 --prices=cpu=-1,memory=1", "must be at least 0"},
		{"--for=rate=600 --format=csv", "no plans"},
	} {
		out, err := runPlan(append([]string{dir}, strings.Fields(c.args)...)...)
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), c.says) || out != "" {
			t.Errorf("%s: %v\n%s", c.args, err, out)
		}
	}
	if _, err := runPlan("--for=rate=600"); fault.CodeOf(err) != fault.Usage {
		t.Errorf("without a run: %v", err)
	}
}

// FuzzPlanFlags: whatever the flags are, they are read or refused, and levels and sizes are finite and not negative.
func FuzzPlanFlags(f *testing.F) {
	for _, s := range []string{"rate=2000,services=500", "cpus=4,memory=16GiB", "cpu=0.03,memory=0.004", "a=1s", "=,=",
		"a=1e309"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, list string) {
		levels, err := levelsOf(list)
		for name, v := range levels {
			if name == "" || !(v >= 0 && v <= 1e15) {
				t.Errorf("%q is %g", name, v)
			}
		}
		if err != nil && fault.CodeOf(err) != fault.Usage {
			t.Error(err)
		}
		if v, err := settingsOf("--node", list, nodeSettings); err == nil &&
			!(v.Float("cpus") >= 0.001 && v.Float("memory") >= 1<<20) {
			t.Errorf("a node of %v", v)
		}
		if v, err := settingsOf("--prices", list, priceSettings); err == nil &&
			!(v.Float("cpu") >= 0 && v.Float("memory") >= 0) {
			t.Errorf("prices of %v", v)
		}
	})
}
