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
	"time"

	"tare/internal/experiment/load"
	"tare/internal/lib/stats"
)

// rival is another project's load generator, with what to compare.
type rival struct {
	name string
	app  []string // what tare app http gets
	tare []string // what tare load http gets beside the URL
	tool []string // the other generator's command line, without the URL
	rate *regexp.Regexp
	mean *regexp.Regexp // of the time of a request; nil: not compared
}

// TestThroughputAgreesWithWrk has Tare's load generator and wrk take turns on one server, which has one CPU and is the
// bottleneck; they have another. Both must find the same throughput of the server: the interval of their ratio over the
// rounds must meet 0.9 to 1.1.
func TestThroughputAgreesWithWrk(t *testing.T) {
	agree(t, rival{
		name: "wrk", tare: []string{"--connections", "64"}, tool: []string{"wrk", "-t", "1", "-c", "64", "-d", "1s"},
		rate: regexp.MustCompile(`Requests/sec:\s+([0-9.]+)`),
	})
}

// TestAgreesWithH2load is the same for HTTP/2 and h2load, with 4 connections of 16 streams. The mean time of a request
// must agree as well.
func TestAgreesWithH2load(t *testing.T) {
	agree(t, rival{
		name: "h2load", app: []string{"--protocol", "http2"}, tare: []string{"--protocol", "http2", "--connections", "4",
			"--streams", "16"},
		tool: []string{"h2load", "-t", "1", "-c", "4", "-m", "16", "-D", "1"},
		rate: regexp.MustCompile(`finished in .*, ([0-9.]+) req/s`),
		mean: regexp.MustCompile(`time for request: +\S+ +\S+ +(\S+)`), // the smallest, the largest, the mean
	})
}

func agree(t *testing.T, other rival) {
	needsTime(t)
	if runtime.NumCPU() < 2 {
		t.Skip("needs two CPUs, one for the server and one for the generators")
	}
	if _, err := exec.LookPath(other.tool[0]); err != nil {
		t.Skipf("needs %s: see test/setup", other.tool[0])
	}
	server := exec.Command("taskset", append([]string{"-c", "1", bin, "app", "http", "--body", "128"}, other.app...)...)
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
	byTare := func() (rate, mean float64) {
		var r struct {
			load.Result
			Distributions map[string]load.Distribution
		}
		text := run(append([]string{bin, "load", "http", "--url", url, "--mode", "closed", "--threads", "1", "--duration",
			"1s", "--json"},
			other.tare...)...)
		if err := json.Unmarshal([]byte(text), &r); err != nil || r.Rate == 0 {
			t.Fatalf("%v: %s", err, text)
		}
		return r.Rate, r.Distributions[load.Service].Mean
	}
	byTool := func() (rate, mean float64) {
		text := run(append(other.tool, url)...)
		found := func(what *regexp.Regexp) string {
			m := what.FindStringSubmatch(text)
			if m == nil {
				t.Fatalf("%s said %s", other.name, text)
			}
			return m[1]
		}
		rate, err := strconv.ParseFloat(found(other.rate), 64)
		if err != nil {
			t.Fatal(err)
		}
		if other.mean != nil {
			d, err := time.ParseDuration(found(other.mean))
			if err != nil {
				t.Fatal(err)
			}
			mean = d.Seconds()
		}
		return rate, mean
	}
	var rates, means []stats.Pair
	for round := range 8 {
		var rate, mean stats.Pair
		if round%2 == 0 {
			rate.Arm, mean.Arm = byTare()
			rate.Base, mean.Base = byTool()
		} else {
			rate.Base, mean.Base = byTool()
			rate.Arm, mean.Arm = byTare()
		}
		rates, means = append(rates, rate), append(means, mean)
	}
	meets := func(what string, pairs []stats.Pair) {
		ratio, ok := stats.Dependence{}.Ratio(pairs, 1)
		t.Logf("Tare found %.3f [%.3f, %.3f] of the %s that %s found, %d rounds: %v",
			ratio.Value, ratio.Lo, ratio.Hi, what, other.name, len(pairs), pairs)
		if !ok || !ratio.HasInterval || ratio.Hi < 0.9 || ratio.Lo > 1.1 {
			t.Errorf("Tare and %s do not agree on the %s", other.name, what)
		}
	}
	meets("throughput", rates)
	if other.mean != nil {
		meets("mean time of a request", means)
	}
}
