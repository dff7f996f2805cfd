package e2e

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"tare/internal/load"
	"tare/internal/stats"
)

// TestThroughputAgreesWithWrk has Tare's load generator and wrk take turns on one server, which has one CPU and is the
// bottleneck; they have another. What the server can do, both must find: the interval of their ratio over the rounds
// must meet 0.9 to 1.1.
func TestThroughputAgreesWithWrk(t *testing.T) {
	needsTime(t)
	if runtime.NumCPU() < 2 {
		t.Skip("needs two CPUs, one for the server and one for the generators")
	}
	server := exec.Command("taskset", "-c", "1", bin, "app", "http", "--body", "128")
	server.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := server.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	runtime.LockOSThread() // the kernel ties the server's life to the thread that started it
	defer runtime.UnlockOSThread()
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = server.Process.Signal(syscall.SIGINT)
		_ = server.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	url := regexp.MustCompile(`http://\S+/`).FindString(line)
	if err != nil || url == "" {
		t.Fatalf("the server said %q: %v", line, err)
	}
	run := func(args ...string) string {
		t.Helper()
		text, err := exec.Command("taskset", append([]string{"-c", "0"}, args...)...).Output()
		if err != nil {
			t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, text)
		}
		return string(text)
	}
	byTare := func() float64 {
		var r load.Result
		text := run(bin, "load", "http", "--url", url, "--mode", "closed", "--connections", "64", "--threads", "1", "--duration", "1s", "--json")
		if err := json.Unmarshal([]byte(text), &r); err != nil || r.Rate == 0 {
			t.Fatalf("%v: %s", err, text)
		}
		return r.Rate
	}
	rate := regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`)
	byWrk := func() float64 {
		text := run("wrk", "-t", "1", "-c", "64", "-d", "1s", url)
		m := rate.FindStringSubmatch(text)
		if m == nil {
			t.Fatalf("wrk said %s", text)
		}
		perSecond, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		return perSecond
	}
	var pairs []stats.Pair
	for round := range 8 {
		var p stats.Pair
		if round%2 == 0 {
			p.Arm, p.Base = byTare(), byWrk()
		} else {
			p.Base, p.Arm = byWrk(), byTare()
		}
		pairs = append(pairs, p)
	}
	ratio, ok := stats.Ratio(pairs, 1)
	t.Logf("Tare found %.3f [%.3f, %.3f] of the throughput that wrk found, %d rounds: %v", ratio.Value, ratio.Lo, ratio.Hi, len(pairs), pairs)
	if !ok || !ratio.HasInterval || ratio.Hi < 0.9 || ratio.Lo > 1.1 {
		t.Errorf("Tare and wrk do not agree on what the server can do")
	}
}
