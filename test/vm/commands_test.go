package vm

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"tare/internal/results/analysis"
	"tare/internal/scale/ledger"
	"tare/test/kernels"
	"tare/test/long"
)

// decode reads one JSON document of a known type; a field that the type does not have is an error.
func decode(t *testing.T, document string, v any) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(document))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		t.Fatalf("reading the document: %v\n%s", err, document)
	}
	if d.More() {
		t.Errorf("there is more than one document:\n%s", document)
	}
}

// ok fails the test unless the script exited with 0.
func ok(t *testing.T, r Result) {
	t.Helper()
	if r.ExitCode != 0 {
		t.Fatalf("exit code %d\noutput:\n%s\nend of the console:\n%s", r.ExitCode, r.Output, tail(r.Console))
	}
	t.Logf("%s from start to power-off", r.Took)
}

// mounted prints where the control group hierarchies are and which controllers children of a v2 root have.
const mounted = `echo $(sed -n 's|^[^ ]* /sys/fs/\(cgroup/\)*\([^ ]*\) \(cgroup2*\) .*|\2:\3|p' /proc/mounts) \
	$(sed 's/[^ ][^ ]*/+&/g' /sys/fs/cgroup/cgroup.subtree_control 2>/dev/null)
`

const mountedV1 = "cpu:cgroup cpuacct:cgroup memory:cgroup pids:cgroup"

// checkFeatures compares what doctor found on a machine with the record that docs/kernels.md is made from.
func checkFeatures(t *testing.T, doctor string, mode CgroupMode) {
	t.Helper()
	found, err := kernels.Parse([]byte(doctor), string(mode))
	if err != nil {
		t.Errorf("%v:\n%s", err, doctor)
		return
	}
	differs, err := kernels.Check(found)
	if errors.Is(err, kernels.ErrUnknown) && os.Getenv("TARE_VM_KERNEL") != "" {
		t.Logf("%v: the kernel is one of your own", err)
		return
	}
	if err != nil {
		t.Error(err)
	}
	for _, d := range differs {
		t.Errorf("%s; if that is right: %s=update go test ./test/vm -run 'Machine|CgroupModes'", d, kernels.UpdateVariable)
	}
}

// TestMachine: what is the same on all machines with only control groups of version 2 is shown on one machine, part by
// part, because a machine takes longer to boot than most parts. The last part removes the control groups.
func TestMachine(t *testing.T) {
	t.Parallel()
	parts := []struct {
		name, script string
		check        func(t *testing.T, r Result)
	}{
		{"boot", bootScript, checkBoot},
		{"mode", modeScript, func(t *testing.T, r Result) { checkMode(t, r, V2, "cgroup:cgroup2 +cpu +memory +pids") }},
		{"unprivileged", unprivilegedScript, checkUnprivileged},
		{"kernelmesh", kernelmeshScript, checkKernelmesh},
		{"shares", sharesScript, checkShares},
		{"no cgroups", "umount /sys/fs/cgroup && " + noCgroupsScript, checkNoCgroups},
	}
	const services = "services:\n  - address: 10.96.0.1:80\n    endpoints:\n      - {address: 127.0.0.1:8080}\n"
	files := map[string][]byte{"/services.yaml": []byte(services), "/opt/hello": []byte("#!/bin/sh\necho hello\n")}
	var script strings.Builder
	for i, p := range parts {
		files[fmt.Sprintf("/part%d", i)] = []byte(p.script)
		fmt.Fprintf(&script, "echo '%s%s'\nsh /part%d\necho \"%s$?\"\n", partBegins, p.name, i, partEnds)
	}
	r := Run(t, Options{Cmdline: "tare_marker=7", Files: files, Timeout: 8 * time.Minute}, script.String())
	ok(t, r)
	for _, p := range parts {
		t.Run(p.name, func(t *testing.T) {
			_, output, ran := strings.Cut(r.Output, partBegins+p.name+"\n")
			output, rest, ended := strings.Cut(output, partEnds)
			if !ran || !ended {
				t.Fatalf("it did not come to its end:\n%s", tail(r.Output))
			}
			of := r
			of.Output = output
			if _, err := fmt.Sscan(rest, &of.ExitCode); err != nil {
				t.Fatal(err)
			}
			p.check(t, of)
		})
	}
}

// The text before the output of a part, and the text between that output and the part's exit code.
const (
	partBegins = "tare-vm: part "
	partEnds   = "tare-vm: part exited with "
)

const (
	next       = "next:\n"
	modeScript = mounted + "echo next:\ntare doctor --json && echo next: && tare weigh --for 2s --json"
)

// TestCgroupModes: the other layouts of control groups are mounted as described, and doctor and weigh work in them,
// too.
func TestCgroupModes(t *testing.T) {
	long.Test(t, "1 min: the older layouts, which other tests have on the machine itself")
	t.Parallel()
	for mode, want := range map[CgroupMode]string{V1: mountedV1, Hybrid: mountedV1 + " unified:cgroup2"} {
		t.Run(string(mode), func(t *testing.T) {
			t.Parallel()
			checkMode(t, Run(t, Options{CgroupMode: mode}, modeScript), mode, want)
		})
	}
}

func checkMode(t *testing.T, r Result, mode CgroupMode, want string) {
	ok(t, r)
	said := strings.Split(r.Output, next)
	if len(said) != 3 {
		t.Fatalf("%d outputs, want 3:\n%s", len(said), r.Output)
	}
	if got := strings.TrimSpace(said[0]); got != want {
		t.Errorf("mounted is %q, want %q", got, want)
	}
	checkFeatures(t, said[1], mode)
	var l ledger.Ledger
	decode(t, said[2], &l)
	if l.Schema != ledger.Schema || l.Host.CgroupMode != string(mode) || l.Host.CPUs != 2 || l.Window.Seconds < 2 {
		t.Errorf("got schema %q, cgroup mode %q, %d CPUs, %g s", l.Schema, l.Host.CgroupMode, l.Host.CPUs, l.Window.Seconds)
	}
	c := l.CPU
	if sum := c.Idle + c.Steal + c.Attributed + c.Unexplained; math.Abs(sum-c.Capacity) > 1e-9 || c.Capacity == 0 {
		t.Errorf("the CPU budget does not close: %+v", c)
	}
}

// The data plane serves a connection that is made inside its group, and none outside. (timeout, because busybox wget -T
// crashes.)
const kernelmeshScript = `mkdir /sys/fs/cgroup/work
tare app http --listen 127.0.0.1:8080 --body 5 >&2 & app=$!
tare subject kernelmesh --services /services.yaml --cgroup /sys/fs/cgroup/work --human >/tmp/mesh & mesh=$!
until wget -q -O /dev/null http://127.0.0.1:8080/ && grep -q km_connect4 /tmp/mesh; do sleep 0.1; done
timeout 2 wget -q -O - http://10.96.0.1/ && echo " outside"
(echo 0 >/sys/fs/cgroup/work/cgroup.procs && timeout 10 wget -q -O - http://10.96.0.1/ && echo " inside")
kill $mesh $app
wait`

func checkKernelmesh(t *testing.T, r Result) {
	ok(t, r)
	if !strings.HasSuffix(r.Output, " inside\n") || strings.Contains(r.Output, "outside") {
		t.Errorf("got %q\nend of the console:\n%s", r.Output, tail(r.Console))
	}
}

// On cgroup v2, a program on a group without groups in it can run nowhere else, so its time is known without samples.
// The time of a program on a group with two groups in it, which make connections 3:1, is split by samples.
const sharesScript = `mkdir -p /sys/fs/cgroup/sole /sys/fs/cgroup/split/a /sys/fs/cgroup/split/b
tare app http --listen 127.0.0.1:8080 --body 5 >&2 & app=$!
for g in sole split; do
	tare subject kernelmesh --services /services.yaml --cgroup /sys/fs/cgroup/$g --steps 1000000 --human >/tmp/$g & eval $g=$!
done
until wget -q -O /dev/null http://127.0.0.1:8080/ && grep -q km_connect4 /tmp/sole && grep -q km_connect4 /tmp/split; do sleep 0.1; done
connect() { (echo 0 >/sys/fs/cgroup/$1/cgroup.procs && timeout 10 wget -q -O /dev/null http://10.96.0.1/); }
tare weigh --for 1h --json >/tmp/ledger & weigh=$!
# The kernel counts runs once the scale is getting ready. Its window has begun when it uses little of a processor.
until grep -hq 'run_cnt:.[1-9]' /proc/$sole/fdinfo/*; do connect sole; done
used() { set -- $(sed 's/.*) //' /proc/$weigh/stat); echo $((${12} + ${13})); } # hundredths of a second
until before=$(used); sleep 2; [ $(($(used) - before)) -lt 50 ]; do :; done
for i in 1 2 3 4 5 6 7 8 9 10; do
	connect sole; connect split/a; connect split/b; connect split/a; connect split/a
done
kill $weigh # which ends its window
wait $weigh
cat /tmp/ledger
kill $sole $split $app
wait`

func checkShares(t *testing.T, r Result) {
	ok(t, r)
	var l ledger.Ledger
	decode(t, r.Output, &l)
	found := 0
	for _, p := range l.Programs {
		if p.Name != "km_connect4" || len(p.Attached) != 1 {
			continue
		}
		found++
		switch {
		case strings.HasPrefix(p.Attached[0], "cgroup:/sole "):
			if len(p.Shares) != 1 || p.Shares[0].Method != ledger.Sole || *p.Shares[0].Cgroup != "/sole" ||
				p.Shares[0].Context != ledger.Task || *p.RunCount < 2 || *p.RunCount > 12 {
				t.Errorf("the program on a group alone: %d runs, %+v", *p.RunCount, p.Shares)
			}
		case strings.HasPrefix(p.Attached[0], "cgroup:/split "):
			held := map[string]bool{}
			for _, s := range p.Shares {
				if s.Cgroup != nil && s.Method == ledger.Sampled {
					// Counted back from the last of n connections, the third was of b, and every fourth before that.
					n := float64(*p.RunCount)
					b := math.Floor((n + 1) / 4)
					truth := map[string]float64{"/split/a": n - b, "/split/b": b}[*s.Cgroup] / n * *p.RunSeconds
					// The ends are widened by half: run time on an emulated processor varies from run to run.
					held[*s.Cgroup] = s.Lo/1.5 <= truth && truth <= 1.5*s.Hi
				}
			}
			if *p.RunCount < 8 || *p.RunCount > 40 || !held["/split/a"] || !held["/split/b"] {
				t.Errorf("the program on two groups, 3:1: %d runs in %v s, %+v", *p.RunCount, *p.RunSeconds, p.Shares)
			}
		}
	}
	if found != 2 {
		t.Errorf("%d programs km_connect4 are in the ledger\nend of the console:\n%s", found, tail(r.Console))
	}
}

// TestQuickstart: the quickstart finds that the data plane costs something; how much means nothing here. The rate is
// one that an emulated processor can hold, the gates are wide open and the windows longer than the quickstart's own,
// because such a processor is late in everything, and stands still for a second at a time while others have the
// machine. The machine has one processor: of two emulated ones, each has been seen to stand still in this test, waiting
// for the other.
func TestQuickstart(t *testing.T) {
	long.Test(t, "2 min: two blocks of trials on an emulated machine, which stands still for seconds")
	t.Parallel()
	r := Run(t, Options{CPUs: 1, Timeout: 5 * time.Minute}, `
{ tare list quickstart | sed 's/duration: 1s/duration: 6s/'; echo "gates: {rate: 0.5, errors: 0.5, generator_cpu: 1, lag: 10s, invalid: 0.9}"; } >/tmp/quickstart.yaml
tare run /tmp/quickstart.yaml --quick --blocks 2 --set rate=20 --out /tmp/run >&2
code=$?
find /sys/fs/cgroup -name "tare-*"
cat /tmp/run/summary.json
exit $code`)
	ok(t, r)
	var s analysis.Summary
	decode(t, r.Output, &s)
	if s.Schema != analysis.Schema || s.Partial || s.Trials.Done != s.Trials.Planned || s.Trials.Failed != 0 {
		t.Errorf("got schema %q, partial %t, trials %+v", s.Schema, s.Partial, s.Trials)
	}
	const metric = "bpf_seconds_per_connection"
	i := slices.IndexFunc(s.Estimates, func(e analysis.Estimate) bool {
		return e.Arm == "kernelmesh" &&
			e.Metric == metric
	})
	if i < 0 || s.Estimates[i].Value <= 0 {
		t.Errorf("there is no %s of the data plane\nend of the console:\n%s", metric, tail(r.Console))
	}
	for _, a := range s.Answers {
		t.Log(a.Answer)
	}
}

// A user without the rights that Tare needs gets an error that names them, with the exit code for a machine that cannot
// do it.
const unprivilegedScript = `su nobody -c "tare weigh --for 1s --json" || exit 1
su nobody -c "tare run quickstart --quick --out /tmp/run" 2>/tmp/err
echo $?
cat /tmp/err >&2
grep -c "^tare: " /tmp/err`

func checkUnprivileged(t *testing.T, r Result) {
	document, refused := strings.CutSuffix(r.Output, "\n3\n1\n")
	if !refused {
		t.Fatalf("want a ledger, and of the experiment exit code 3, one error and no other output; got\n%s\nend of the "+
			"console:\n%s", r.Output, tail(r.Console))
	}
	var l ledger.Ledger
	decode(t, document, &l)
	if !l.CPU.Closes() || l.CPU.Capacity <= 0 || len(l.Cgroups) == 0 || l.Programs != nil || l.Maps != nil {
		t.Errorf("without root the ledger is %s", document)
	}
	if strings.Contains(r.Console, "goroutine ") {
		t.Errorf("no clear error:\n%s", tail(r.Console))
	}
}

// Without any control groups there is nothing to weigh by: weigh and doctor both say so, and neither makes up a ledger.
const noCgroupsScript = mounted +
	"tare weigh --for 1s --json; echo weigh $?; tare doctor --json >/tmp/doctor; echo doctor $?; cat /tmp/doctor"

func checkNoCgroups(t *testing.T, r Result) {
	doctor, ok := strings.CutPrefix(r.Output, "\nweigh 3\ndoctor 3\n")
	if !ok {
		t.Fatalf("want nothing mounted, and exit code 3 of both; got\n%s\nend of the console:\n%s", r.Output, tail(r.Console))
	}
	checkFeatures(t, doctor, None)
}
