package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	pprof "github.com/google/pprof/profile"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/record"
	"tare/internal/results/analysis"
	"tare/internal/scale/profile"
	"tare/test/busy"
	"tare/test/long"
)

// plantedCommand is the argument that makes this binary a proxy that does further work for each request (plantedProxy).
const plantedCommand = "planted-proxy"

// plantedWork is what a proxy does for a request.
type plantedWork struct {
	rounds int    // of the loop in plantedUser
	sum    uint64 // of the results of plantedUser
	random []byte // to be filled by the kernel
	pair   [2]int // sockets, of which the second one may have the program as its filter

	program *ebpf.Program
}

// plantedUser is the function that takes time in user code.
//
//go:noinline
func plantedUser(rounds int) uint64 {
	x := uint64(1)
	for range rounds {
		x = x*1664525 + 1
	}
	return x
}

// fastest returns the shortest time that do took in 200 calls.
func fastest(do func()) time.Duration {
	least := time.Hour
	for range 200 {
		begun := time.Now()
		do()
		least = min(least, time.Since(begun))
	}
	return least
}

// newPlantedWork makes work that takes user, bpf and kernel microseconds in user code, in an eBPF program and in the
// kernel.
func newPlantedWork(user, bpf, kernel float64) (*plantedWork, error) {
	w := &plantedWork{}
	const some = 100_000
	w.rounds = int(user * some * float64(time.Microsecond) / float64(fastest(func() { w.sum += plantedUser(some) })))
	for n := 64; kernel > 0; n += 64 { // a call takes a fixed time, and some more for each byte
		more := make([]byte, n)
		if fastest(func() { getrandom(more) }) > time.Duration(kernel*float64(time.Microsecond)) {
			break
		}
		w.random = more
	}
	var err error
	if bpf > 0 {
		w.program, err = busy.Filter("planted_bpf", bpf)
	}
	return w, err
}

// getrandom makes the system call, which Go's own functions avoid by calling the vDSO.
func getrandom(b []byte) {
	_, _, _ = unix.RawSyscall(unix.SYS_GETRANDOM, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), 0)
}

// connection returns the work of one connection, with a new pair of sockets.
func (w *plantedWork) connection() (*plantedWork, error) {
	own := *w
	var err error
	own.pair, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err == nil && w.program != nil {
		err = unix.SetsockoptInt(own.pair[1], unix.SOL_SOCKET, unix.SO_ATTACH_BPF, w.program.FD())
	}
	return &own, err
}

// do does the work. The sockets are written and read whether there is a program or not.
func (w *plantedWork) do() {
	w.sum += plantedUser(w.rounds)
	one := []byte{0}
	_, _ = unix.Write(w.pair[0], one)
	_, _ = unix.Read(w.pair[1], one)
	if len(w.random) > 0 {
		getrandom(w.random)
	}
}

// plantedProxy forwards connections from one address to another. It does its work once for each piece that it reads
// from a client; a small request is one piece.
func plantedProxy(args []string) error {
	var us [3]float64
	for i, arg := range args[2:] {
		var err error
		if us[i], err = strconv.ParseFloat(arg, 64); err != nil {
			return err
		}
	}
	work, err := newPlantedWork(us[0], us[1], us[2])
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", args[0])
	if err != nil {
		return err
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			return err
		}
		server, err := net.Dial("tcp", args[1])
		if err != nil {
			return err
		}
		w, err := work.connection()
		if err != nil {
			return err
		}
		go func() { _, _ = io.Copy(struct{ io.Writer }{client}, struct{ io.Reader }{server}) }()
		go func() {
			defer server.Close()
			buffer := make([]byte, 16<<10)
			for {
				n, err := client.Read(buffer)
				if err != nil {
					return
				}
				w.do()
				if _, err := server.Write(buffer[:n]); err != nil {
					return
				}
			}
		}()
	}
}

// TestPlantedFunctions: one proxy takes more time for each request than another: 20 us in a function, 10 us in an eBPF
// program and 5 us in the kernel. The report names these as the first, second and third part of the difference.
func TestPlantedFunctions(t *testing.T) {
	long.Test(t, "7 min: 16 blocks of 4 s each, so that samples resolve 5 us; TestProfilesOfARun runs what it takes once")
	f := plantedRun(t, 16, "4s", "", "20", "10", "5").Functions
	if len(f) != 1 {
		t.Fatalf("functions of %d arms", len(f))
	}
	var got []string
	for _, d := range f[0].Named() {
		got = append(got, string(d.Kind)+" "+d.Name+" of "+d.Part)
		t.Logf("%s %s of %s: %s", d.Kind, d.Name, d.Part, d.Difference.Signed(f[0].Unit))
	}
	want := []string{"user tare/test/e2e.plantedUser of the subject", "bpf planted_bpf of the subject",
		"kernel system call getrandom of the subject"}
	if len(got) < 3 || !slices.Equal(got[:3], want) {
		t.Errorf("%q are named, want %q first: %+v", got, want, f[0])
	}
}

// plantedRun runs an experiment with profiles that compares the proxy with further work, in us for newPlantedWork, with
// the proxy without, and returns its summary.
func plantedRun(t *testing.T, blocks int, window, gates string, us ...string) *analysis.Summary {
	t.Helper()
	leavesNothing(t)
	dir := t.TempDir()
	at := filepath.Join(dir, "planted.yaml")
	proxy := func(us ...string) string {
		return strings.Join(append([]string{os.Args[0], plantedCommand, "{address}", "{server.address}"}, us...), " ")
	}
	text := fmt.Sprintf(`name: planted
question: What does the further work cost?
blocks: %d
warmup: 500ms
duration: %s
repeat: 500%%
applications:
  server: {kind: http}
loads:
  clients: {kind: http, to: server, rate: 3000, connections: 8, keepalive: true}
gates: {%s}
baseline:
  subject: command
  command: %q
arms:
  planted:
    subject: command
    command: %q
`, blocks, window, gates, proxy("0", "0", "0"), proxy(us...))
	if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "run")
	o := command{args: []string{"run", at, "--pprof", "--out", out}, timeout: 20 * time.Minute}.start(t).wait(t)
	s := readSummary(t, out, o)
	if o.code != 0 {
		t.Errorf("want exit code 0: %s", o)
	}
	readProfiles(t, out, s)
	return s
}

// readProfiles checks that each trial's profile adds up to its record, and that go tool pprof reads each arm's.
func readProfiles(t *testing.T, out string, s *analysis.Summary) {
	t.Helper()
	c, err := record.Read(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, trial := range c.Trials {
		p := trial.Profile
		if trial.Validity.Failed != "" || windowCut(trial) || starved(trial) || *trial.Loads["clients"].Finished == 0 {
			continue // it has few samples, or none, or no cost of a request
		}
		if p == nil || p.Samples == 0 || len(p.Functions) == 0 || p.Metric != "cpu_seconds_per_request" {
			t.Fatalf("trial %d has the profile %+v", trial.Index, p)
		}
		sum := p.Rest
		for _, f := range p.Functions {
			sum += f.Seconds
		}
		// The metric's CPU time is that of the trial's group; the parts' groups do not hold what it used itself.
		if of := sum / p.Divisor; of < 0.9*trial.Metrics[p.Metric] || of > 1.01*trial.Metrics[p.Metric] {
			t.Errorf("trial %d: its functions take %g s per request, and all of it %g", trial.Index, of, trial.Metrics[p.Metric])
		}
		f, err := os.Open(filepath.Join(out, p.File))
		if err != nil {
			t.Fatal(err)
		}
		of, err := pprof.Parse(f)
		if err = errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
		kinds := map[profile.Kind]bool{}
		for _, sample := range of.Sample {
			kinds[profile.FunctionOf(sample).Kind] = true
			if got := sample.Label["arm"]; !slices.Equal(got, []string{trial.Arm}) {
				t.Fatalf("trial %d: a sample of the arm %q", trial.Index, got)
			}
		}
		if !kinds[profile.User] || !kinds[profile.Kernel] {
			t.Errorf("trial %d: there are functions of the kinds %v", trial.Index, kinds)
		}
	}
	for _, arm := range []string{record.Direct, record.AA, "planted"} {
		file := filepath.Join(out, record.ProfileDir, arm+".pb.gz")
		top, err := exec.Command("go", "tool", "pprof", "-top", file).CombinedOutput()
		if err != nil || !strings.Contains(string(top), "Type: cpu") {
			t.Errorf("%v: %s", err, top)
			for _, trial := range c.Trials {
				if trial.Arm == arm {
					t.Logf("attempt %d at trial %d: %+v", trial.Attempt, trial.Index, trial.Validity)
				}
			}
		}
	}
	page, err := os.ReadFile(filepath.Join(out, record.ProfileDir, record.StacksFile))
	if err != nil || strings.Count(string(page), "<svg") != 2 || !strings.Contains(string(page), "the subject") {
		t.Errorf("%v: %d bytes of flame graphs", err, len(page))
	}
	if len(s.Functions) != 1 {
		t.Errorf("functions of %d arms: %+v", len(s.Functions), s.Functions)
	}
}

// TestProfilesOfARun: a run with --pprof keeps the stacks of each trial and each arm, which add up, and a page of flame
// graphs; with too few blocks it names no function.
func TestProfilesOfARun(t *testing.T) {
	t.Parallel()
	// Nothing looks at its figures, so they may be those of a machine that is too busy for the load.
	const open = "rate: 0, errors: 1, lag: 60s, drift: 1000, generator_cpu: 1, connections: 0, throttled: 60s, " +
		"invalid: 1"
	// An arm has a profile only if its counters were read around most of the window in one of three attempts, and a busy
	// machine holds Tare up by a second.
	s := plantedRun(t, 1, "4s", open, "20", "10", "5")
	for _, f := range s.Functions {
		if len(f.Named()) > 0 || !strings.Contains(f.Unresolved, "1 of the 6 blocks") {
			t.Errorf("of one block %+v is named, %q", f.Named(), f.Unresolved)
		}
	}
	o := tare(t, "run", "quickstart", "--pprof", "--local-nodes", "2")
	if o.code != 2 || !strings.Contains(o.stderr, "not on nodes") {
		t.Errorf("profiles of nodes: %s", o)
	}
}
