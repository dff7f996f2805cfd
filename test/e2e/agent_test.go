package e2e

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"golang.org/x/sys/unix"

	"tare/internal/scale/host/cgroup"
	"tare/test/binary"
	"tare/test/busy"
	"tare/test/started"
)

// agentBinary builds tare-agent once for all tests. TARE_AGENT_BIN names another one.
var agentBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("TARE_AGENT_BIN"); path != "" {
		return path, nil
	}
	path := filepath.Join(filepath.Dir(bin), "tare-agent")
	return path, binary.Program(path, "./cmd/tare-agent")
})

// tareAgent is a running tare-agent.
type tareAgent struct {
	*process
	url string
}

// startAgent starts an agent on a free port, without waiting until it serves.
func startAgent(t *testing.T, args ...string) *tareAgent {
	t.Helper()
	path, err := agentBinary()
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	p := command{binary: path, args: append([]string{"--listen", address}, args...),
		timeout: 10*time.Minute + agentFor(t)}.start(t)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the agent's standard error:\n%s", p.stderr.String())
		}
	})
	return &tareAgent{p, "http://" + address}
}

// serving waits until the agent serves.
func (a *tareAgent) serving(t *testing.T) *tareAgent {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		r, err := http.Get(a.url + "/healthz")
		if err == nil {
			r.Body.Close()
			if r.StatusCode == http.StatusOK {
				return a
			}
		}
		select {
		case <-a.done:
			t.Fatalf("the agent ended: %s", a.wait(t))
		default:
		}
		if time.Now().After(end) {
			t.Fatalf("the agent does not serve: %v", err)
		}
	}
}

// get requests a path, and returns the answer if it comes within a minute.
func (a *tareAgent) get(path string) (status int, body []byte, err error) {
	return a.getBy(http.DefaultClient, path)
}

func (a *tareAgent) getBy(client *http.Client, path string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	if err != nil {
		return 0, nil, err
	}
	answer, err := client.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	body, err = io.ReadAll(answer.Body)
	return answer.StatusCode, body, err
}

// scrape is the result of one scrape: families by name, and values by name and labels.
type scrape struct {
	families map[string]*dto.MetricFamily
	values   map[string]float64
}

// scraped reads the metrics. It waits first, because the agent serves the same values again for a while.
func (a *tareAgent) scraped(t *testing.T) *scrape {
	t.Helper()
	time.Sleep(550 * time.Millisecond)
	status, body, err := a.get("/metrics")
	if err != nil || status != http.StatusOK {
		t.Fatalf("scraping: status %d, %v: %.200s", status, err, body)
	}
	s, err := parseScrape(body)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// parseScrape reads metrics as Prometheus does. Two series with the same labels are an error.
func parseScrape(body []byte) (*scrape, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("parsing the metrics: %w", err)
	}
	s := &scrape{families: families, values: map[string]float64{}}
	for name, f := range families {
		for _, m := range f.Metric {
			key := name + labelsOf(m)
			if _, twice := s.values[key]; twice {
				return nil, fmt.Errorf("two series are %s", key)
			}
			s.values[key] = m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	return s, nil
}

func labelsOf(m *dto.Metric) string {
	labels := make([]string, 0, len(m.Label))
	for _, l := range m.Label {
		labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
	}
	slices.Sort(labels)
	return "{" + strings.Join(labels, ",") + "}"
}

// sum adds the series of a metric that have all of the labels, which alternate names and values, and returns the sum
// and the number of series.
func (s *scrape) sum(name string, labels ...string) (sum float64, n int) {
	f := s.families[name]
	for _, m := range f.GetMetric() {
		has := true
		for i := 0; i < len(labels); i += 2 {
			has = has && slices.ContainsFunc(m.Label, func(l *dto.LabelPair) bool {
				return l.GetName() == labels[i] && l.GetValue() == labels[i+1]
			})
		}
		if has {
			sum, n = sum+m.GetCounter().GetValue()+m.GetGauge().GetValue(), n+1
		}
	}
	return sum, n
}

// total returns the sum of all series of a metric, including the last values of series that are gone.
func (s *scrape) total(name string) float64 {
	sum, _ := s.sum(name)
	gone, _ := s.sum("tare_agent_series_gone_seconds_total", "metric", name)
	return sum + gone
}

// summed holds the metrics whose totals never fall.
var summed = []string{"tare_group_cpu_seconds_total", "tare_namespace_cpu_seconds_total",
	"tare_component_cpu_seconds_total",
	"tare_component_bpf_seconds_total", "tare_bpf_program_run_seconds_total", "tare_bpf_payer_seconds_total",
	"tare_bpf_unsplit_seconds_total"}

const rounding = 1e-9 // relative, of sums of floats

// check checks what must be true of every scrape, and of two in a row; before is nil for the first.
func (s *scrape) check(t *testing.T, before *scrape) {
	t.Helper()
	lines, _ := s.sum("tare_node_cpu_seconds_total")
	twice := s.total("tare_node_cpu_counted_twice_seconds_total")
	capacity := s.total("tare_node_cpu_capacity_seconds_total")
	cpus := s.total("tare_node_cpus")
	ahead := s.total("tare_node_cpu_ahead_seconds")
	if over := lines - twice - ahead - capacity; math.Abs(over) > 1e-6 {
		t.Errorf("the budget's lines have %.6f s, %.6f of them twice and %.6f ahead, and the capacity is %.6f s",
			lines, twice, ahead, capacity)
	}
	idle, _ := s.sum("tare_node_cpu_seconds_total", "line", "idle")
	if groups := s.total("tare_group_cpu_seconds_total"); groups > capacity-idle+twice+ahead+0.02*cpus {
		t.Errorf("the groups used %.6f s, and the machine was busy for %.6f s", groups, capacity-idle+twice+ahead)
	}
	run := s.total("tare_bpf_program_run_seconds_total")
	parts := s.total("tare_bpf_payer_seconds_total") + s.total("tare_bpf_unsplit_seconds_total") +
		s.total("tare_bpf_pending_seconds")
	if math.Abs(run-parts) > rounding*max(run, 1) {
		t.Errorf("programs ran for %.9f s; paid, not split and pending are %.9f s", run, parts)
	}
	if of := s.total("tare_component_bpf_seconds_total"); of > run+rounding*max(run, 1) { // without stolen time
		t.Errorf("programs ran for %.9f s, and those of components for %.9f s", run, of)
	}
	if before == nil {
		return
	}
	for name, f := range s.families {
		if f.GetType() != dto.MetricType_COUNTER {
			continue
		}
		for _, m := range f.Metric {
			key := name + labelsOf(m)
			if then, was := before.values[key]; was && s.values[key] < then {
				t.Errorf("%s fell from %.9f to %.9f", key, then, s.values[key])
			}
		}
	}
	for _, name := range summed {
		if now, then := s.total(name), before.total(name); now < then-rounding*max(then, 1) {
			t.Errorf("the sum of %s fell from %.9f to %.9f", name, then, now)
		}
	}
}

// workerVariable makes this test binary a worker.
const workerVariable = "TARE_TEST_AGENT_WORKER" // see TestMain

// worker is a process that works on demand, and rests in between.
type worker struct {
	pid   int
	in    io.WriteCloser
	lines *bufio.Scanner
}

// work is the worker's side: it executes the command on each line of in, and then prints a line.
func work(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	programs := map[int]*ebpf.Program{}
	for lines.Scan() {
		var id int
		var n uint32
		var d time.Duration
		switch words := strings.Fields(lines.Text()); words[0] {
		case "burn": // CPU time, in microseconds
			if _, err := fmt.Sscan(words[1], &n); err != nil {
				return err
			}
			d = time.Duration(n) * time.Microsecond
			for began := processTime(); processTime()-began < d; {
			}
		case "run": // a program, n times
			if _, err := fmt.Sscan(words[1]+" "+words[2], &id, &n); err != nil {
				return err
			}
			if programs[id] == nil {
				p, err := ebpf.NewProgramFromID(ebpf.ProgramID(id))
				if err != nil {
					return err
				}
				programs[id] = p
			}
			if err := busy.Run(programs[id], n); err != nil {
				return err
			}
		case "close": // the worker's descriptor of a program
			if _, err := fmt.Sscan(words[1], &id); err != nil {
				return err
			}
			if err := programs[id].Close(); err != nil {
				return err
			}
			delete(programs, id)
		}
		fmt.Fprintln(out, "done")
	}
	return lines.Err()
}

func processTime() time.Duration {
	var at unix.Timespec
	if unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &at) != nil {
		return math.MaxInt64 / 2
	}
	return time.Duration(at.Nano())
}

func startWorker(t *testing.T, group string) *worker {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stderr = append(os.Environ(), workerVariable+"=1"), os.Stderr
	in, out := started.Piped(t, cmd)
	w := &worker{cmd.Process.Pid, in, bufio.NewScanner(out)}
	w.move(t, group)
	t.Cleanup(func() {
		in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("a worker: %v", err)
		}
	})
	return w
}

// move puts the worker into a group.
func (w *worker) move(t *testing.T, group string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(group, "cgroup.procs"), []byte(strconv.Itoa(w.pid)), 0); err != nil {
		t.Fatal(err)
	}
}

// do makes the worker do something, and waits until it rests again.
func (w *worker) do(t *testing.T, format string, args ...any) {
	t.Helper()
	if _, err := fmt.Fprintf(w.in, format+"\n", args...); err != nil || !w.lines.Scan() {
		t.Fatalf("a worker ended: %v", cmp.Or(err, w.lines.Err()))
	}
}

// burn makes the worker use the CPU time d.
func (w *worker) burn(t *testing.T, d time.Duration) {
	t.Helper()
	w.do(t, "burn %d", d.Microseconds())
}

// testGroups are control groups in the hierarchy that counts CPU time.
type testGroups struct {
	h   *cgroup.Hierarchy
	top string // directory
}

func makeTestGroups(t *testing.T) *testGroups {
	t.Helper()
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	h, ok := layout.CPU()
	if !ok {
		t.Skip("needs control groups that count CPU time")
	}
	g := &testGroups{h, filepath.Join(h.Mount, fmt.Sprintf("tare-test-agent-%d", os.Getpid()))}
	if err := os.Mkdir(g.top, 0o755); err != nil {
		t.Skip("needs to make control groups: ", err)
	}
	t.Cleanup(func() { removeTestGroups(t, g.top) })
	return g
}

// make makes a group, and returns its directory, and its path as the agent names it.
func (g *testGroups) make(t *testing.T, name string) (dir, path string) {
	t.Helper()
	dir = filepath.Join(g.top, name)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir, g.path(dir)
}

func (g *testGroups) path(dir string) string { return g.h.Identity(strings.TrimPrefix(dir, g.h.Mount)) }

// removeTestGroups removes a group and the groups below it, the deepest first.
func removeTestGroups(t *testing.T, top string) {
	t.Helper()
	var dirs []string
	_ = filepath.WalkDir(top, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for _, dir := range slices.Backward(dirs) {
		var err error
		for range 200 { // until the kernel has let the processes go
			if err = unix.Rmdir(dir); err == nil || os.IsNotExist(err) {
				err = nil
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if err != nil {
			t.Errorf("removing %q: %v", dir, err)
		}
	}
}

// groupUsage returns a group's own counter of CPU time, in nanoseconds.
func groupUsage(t *testing.T, dir string) int64 {
	t.Helper()
	v := cgroup.CPUTime(dir)
	if !v.OK {
		t.Fatalf("%s has no counter of CPU time", dir)
	}
	return int64(v.N)
}

// held returns the eBPF programs, maps and links that a process has descriptors of, each as its kind and ID.
func held(pid int) []string {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	all := map[string]bool{}
	for _, f := range files {
		text, _ := os.ReadFile(f) // it may have been closed
		for line := range strings.Lines(string(text)) {
			kind, id, _ := strings.Cut(strings.TrimSpace(line), ":")
			if kind == "prog_id" || kind == "map_id" || kind == "link_id" {
				all[kind+" "+strings.TrimSpace(id)] = true
			}
		}
	}
	return slices.Sorted(maps.Keys(all))
}

func descriptors(t *testing.T, pid int) int {
	t.Helper()
	all, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// resident returns the resident memory of a process in bytes: now, and its peak.
func resident(t *testing.T, pid int) (now, peak int64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(text), "VmRSS:")
	var kib int64
	if _, err := fmt.Sscan(after, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10, peakIn(text)
}
