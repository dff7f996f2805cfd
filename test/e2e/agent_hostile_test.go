package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"tare/test/binary"
	"tare/test/long"
	"tare/test/speed"
)

// clientAttack is something that a client does to an agent. It ends when the context does.
type clientAttack struct {
	name string
	do   func(ctx context.Context, t *testing.T, a *tareAgent)
}

// send opens n connections that send text, and keeps them open until the context ends.
func send(n int, text string) func(context.Context, *testing.T, *tareAgent) {
	return func(ctx context.Context, t *testing.T, a *tareAgent) {
		for range n {
			var d net.Dialer
			c, err := d.DialContext(ctx, "tcp", strings.TrimPrefix(a.url, "http://"))
			if err != nil {
				break // it may be refused
			}
			defer c.Close()
			_, _ = io.WriteString(c, text)
		}
		<-ctx.Done()
	}
}

// refused requests a path, n times at once, and fails the test unless each answer has one of the statuses.
func refused(method, path string, n int, statuses ...int) func(context.Context, *testing.T, *tareAgent) {
	return func(ctx context.Context, t *testing.T, a *tareAgent) {
		var all sync.WaitGroup
		for range n {
			all.Go(func() {
				r, err := http.NewRequestWithContext(ctx, method, a.url+path, strings.NewReader(""))
				if err != nil {
					t.Error(err)
					return
				}
				answer, err := http.DefaultClient.Do(r)
				if err != nil {
					return // the test is over, or there are too many clients
				}
				defer answer.Body.Close()
				for _, want := range statuses {
					if answer.StatusCode == want {
						return
					}
				}
				t.Errorf("%s %s: status %d, want one of %v", method, path, answer.StatusCode, statuses)
			})
		}
		all.Wait()
	}
}

// slowly requests many pages on each of n connections, and reads a byte a second. One answer fits into the buffers of
// its connection, but all together do not.
func slowly(n int) func(context.Context, *testing.T, *tareAgent) {
	return func(ctx context.Context, t *testing.T, a *tareAgent) {
		for range n {
			c, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
			if err != nil {
				break
			}
			defer c.Close()
			_ = c.(*net.TCPConn).SetReadBuffer(1)
			_, _ = io.WriteString(c, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 500))
			go func() {
				for one := make([]byte, 1); ; {
					if _, err := c.Read(one); err != nil {
						return
					}
					select {
					case <-time.After(time.Second):
					case <-ctx.Done():
						return
					}
				}
			}()
		}
		<-ctx.Done()
	}
}

func clientAttacks() []clientAttack {
	window := func(query string) string { return "/v1/ledger?" + query }
	at := func(d time.Duration) string {
		return "for=1s&at=" + url.QueryEscape(time.Now().Add(d).Format(time.RFC3339))
	}
	return []clientAttack{
		{"slow readers", slowly(20)},
		{"connections that send nothing", send(200, "")},
		{"half a request", send(100, "GET /metrics HTT")},
		{"half a header", send(100, "GET /metrics HTTP/1.1\r\nHost: a\r\nX: ")},
		{"a huge header", send(10, "GET /metrics HTTP/1.1\r\nHost: a\r\nX: "+strings.Repeat("x", 1<<20))},
		{"many headers", send(10, "GET /metrics HTTP/1.1\r\nHost: a\r\n"+strings.Repeat("X: y\r\n", 1<<16))},
		{"a huge path", send(10, "GET /"+strings.Repeat("x", 1<<20)+" HTTP/1.1\r\nHost: a\r\n\r\n")},
		{"pipelined requests", send(5, strings.Repeat("GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n", 2000))},
		{"a body that does not end", send(50, "POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\nx")},
		{"HTTP/2 without TLS", send(20, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")},
		{"noise", send(20, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n")},
		{"a window of negative length", refused("GET", window("for=-1s"), 1, 400)},
		{"a window of an hour", refused("GET", window("for=1h"), 1, 400)},
		{"a window of no length", refused("GET", window("for=NaN"), 1, 400)},
		{"a window of 10^300 s", refused("GET", window("for=1"+strings.Repeat("0", 300)+"s"), 1, 400)},
		{"a window long past", refused("GET", window(at(-time.Hour)), 1, 400)},
		{"a window far ahead", refused("GET", window(at(time.Hour)), 1, 400)},
		{"windows by the hundred", refused("GET", window("for=100ms"), 100, 200, 429, 503)},
		{"other methods", refused("DELETE", "/metrics", 20, 405, 503)},
		{"unknown paths", refused("GET", "/../../etc/passwd", 20, 301, 307, 404, 503)},
		{"a window that is read slowly", func(ctx context.Context, t *testing.T, a *tareAgent) {
			c, err := net.Dial("tcp", strings.TrimPrefix(a.url, "http://"))
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			_ = c.(*net.TCPConn).SetReadBuffer(1)
			request := "GET " + window("for=100ms") + " HTTP/1.1\r\nHost: a\r\n\r\n"
			_, _ = io.WriteString(c, strings.Repeat(request, 100))
			if _, err := c.Read(make([]byte, 1)); err != nil {
				t.Error(err)
			}
			began := time.Now()
			status, body, err := a.get(window("for=100ms"))
			if took := time.Since(began); err != nil || status != 200 || took > speed.Scale(25*time.Second) {
				t.Errorf("beside a window that is read slowly: status %d, %v after %v: %.200s", status, err, took, body)
			}
		}},
		{"windows that are left", func(ctx context.Context, t *testing.T, a *tareAgent) {
			for range 5 {
				soon, cancel := context.WithCancel(ctx)
				leave := time.AfterFunc(200*time.Millisecond, cancel)
				r, _ := http.NewRequestWithContext(soon, http.MethodGet, a.url+window("for=1m"), nil)
				if answer, err := http.DefaultClient.Do(r); err == nil {
					answer.Body.Close()
				}
				leave.Stop()
				cancel()
			}
			if status, body, err := a.get(window("for=100ms")); err != nil || status != 200 && status != 429 && status != 503 {
				t.Errorf("after windows that were left: status %d, %v: %.200s", status, err, body)
			}
		}},
	}
}

// oddNames are names of groups that the kernel allows.
func oddNames() []string {
	return []string{"\xff\xfe\x80", "bell\a", `qu"ote`, `back\slash`, "{}", `{a="b"} 1`, "tab\tand space ", "# HELP x",
		strings.Repeat("l", 255), strings.Repeat("é", 127), "\x1b[31m", "\u202e", "(other)", `"quoted"`,
		filepath.Join(strings.Repeat("d/", 8), strings.Repeat("deep", 50)),
	}
}

// mostResident is the resident memory that an agent may have, in bytes.
const mostResident = 25_000_000

// TestAgentHostileClients: whatever clients do, the agent's memory stays bounded, and a client that behaves gets an
// answer within ten seconds (speed.Scale), even if only a refusal because there are too many clients.
func TestAgentHostileClients(t *testing.T) {
	leavesNothing(t)
	groups := makeTestGroups(t)
	for _, name := range oddNames() {
		groups.make(t, name)
	}
	deep := ""
	for range 14 { // a path of 3 KB
		deep = filepath.Join(deep, strings.Repeat("p", 220))
	}
	groups.make(t, deep)
	groups.make(t, deep+"q")
	a := startAgent(t).serving(t)
	first := a.scraped(t)
	first.check(t, nil)
	checkLabels(t, first, len(oddNames())+2)
	files := descriptors(t, a.pid)
	_, started := resident(t, a.pid)

	// A new connection for each request: an open one would keep its place among the agent's clients.
	newcomer := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	last := first
	for _, attack := range clientAttacks() {
		beganAttack := time.Now()
		ctx, cancel := context.WithCancel(context.Background())
		var attacking sync.WaitGroup
		attacking.Go(func() { attack.do(ctx, t, a) })
		time.Sleep(100 * time.Millisecond)
		for range long.Repeat(1, 10) {
			began := time.Now()
			status, body, err := a.getBy(newcomer, "/metrics")
			took := time.Since(began)
			if err != nil || took > speed.Scale(10*time.Second) || status != 200 && status != 429 && status != 503 {
				t.Errorf("%s: a scrape beside it: status %d, %v after %v", attack.name, status, err, took)
			}
			if err == nil && status == http.StatusOK {
				now, err := parseScrape(body)
				if err != nil {
					t.Fatalf("%s: %v", attack.name, err)
				}
				now.check(t, last)
				last = now
			}
			if long.Enabled() {
				time.Sleep(500 * time.Millisecond)
			}
		}
		cancel()
		attacking.Wait()
		now, peak := resident(t, a.pid)
		t.Logf("%s: %v, %d KiB resident, %d at most", attack.name, time.Since(beganAttack).Round(time.Millisecond), now>>10,
			peak>>10)
	}
	_, peak := resident(t, a.pid)
	t.Logf("at most %d KiB were resident, and %d before the attacks", peak>>10, started>>10)
	// Before Linux 6.16 processes cannot mmap the kernel's types (BTF), so that an agent is largest at its start, when it
	// reads them into its memory.
	if peak > max(mostResident, started) {
		t.Errorf("%d bytes were resident, want at most %d", peak, mostResident)
	}
	room := files + 60 // the meter of windows is kept for a while
	if long.Enabled() {
		room = 20
	}
	var now int
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		if now = descriptors(t, a.pid); now <= files+room || time.Now().After(end) {
			break
		}
	}
	if now > files+room {
		t.Errorf("%d descriptors are open, and %d were before", now, files)
	}
	a.scraped(t).check(t, last)
}

// checkLabels checks that at least want groups of the test are among the series, and that labels are of bounded length.
func checkLabels(t *testing.T, s *scrape, want int) {
	t.Helper()
	n := 0
	for name, f := range s.families {
		for _, m := range f.Metric {
			for _, l := range m.Label {
				if len(l.GetValue()) > 540 {
					t.Errorf("%s: the label %s has %d bytes", name, l.GetName(), len(l.GetValue()))
				}
				if name == "tare_group_cpu_seconds_total" &&
					strings.Contains(l.GetValue(), fmt.Sprintf("tare-test-agent-%d", os.Getpid())) {
					n++
				}
			}
		}
	}
	if n < want {
		t.Errorf("%d groups of the test have series, want %d at least", n, want)
	}
}

// TestAgentExposition: promtool finds nothing wrong, and OpenMetrics ends as it must.
func TestAgentExposition(t *testing.T) {
	leavesNothing(t)
	a := startAgent(t).serving(t)
	_, body, err := a.get("/metrics")
	if err != nil {
		t.Fatal(err)
	}
	r, _ := http.NewRequest(http.MethodGet, a.url+"/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	open, err := io.ReadAll(bufio.NewReader(answer.Body))
	if err != nil || !bytes.HasSuffix(open, []byte("# EOF\n")) {
		t.Errorf("OpenMetrics: %v, ends in %q", err, open[max(len(open)-20, 0):])
	}
	tool, err := binary.Prometheus("promtool")
	if err != nil {
		t.Skip(err)
	}
	check := exec.Command(tool, "check", "metrics")
	check.Stdin = bytes.NewReader(body)
	if out, err := check.CombinedOutput(); err != nil {
		t.Errorf("promtool: %v\n%s", err, out)
	}
}

// directories returns the number of directories at and below root.
func directories(t *testing.T, root string) (n int) {
	t.Helper()
	err := filepath.WalkDir(root, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a group that has gone meanwhile
		}
		if err == nil && d.IsDir() {
			n++
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAgentMaxSeries: with a limit, the groups beyond it share one series, and sums are what they would be without the
// limit.
func TestAgentMaxSeries(t *testing.T) {
	leavesNothing(t)
	groups := makeTestGroups(t)
	dir, _ := groups.make(t, "0")
	w := startWorker(t, dir)
	for i := range 100 {
		groups.make(t, fmt.Sprint(i))
	}
	a := startAgent(t, "--max-series", "10").serving(t)
	last := a.scraped(t)
	last.check(t, nil)
	was := groupUsage(t, groups.top)
	for i := range 100 {
		dir, _ := groups.make(t, fmt.Sprint(i))
		w.move(t, dir)
		w.burn(t, time.Duration(1+i%7)*time.Millisecond)
		if i%25 == 24 {
			now := a.scraped(t)
			now.check(t, last)
			last = now
		}
	}
	used := groupUsage(t, groups.top) - was
	_, n := last.sum("tare_group_cpu_seconds_total")
	_, others := last.sum("tare_group_cpu_seconds_total", "cgroup", "(other)")
	if n != 11 || others != 1 {
		t.Errorf("%d series, of which %d are of the others; want 10 and 1", n, others)
	}
	omitted, _ := last.sum("tare_agent_series_omitted", "metric", "tare_group_cpu_seconds_total")
	if all := directories(t, filepath.Dir(groups.top)); omitted < 91 || omitted > float64(all) {
		t.Errorf("%g are left out, want 91 of this test's and those of others, of %d groups in all", omitted, all)
	}
	if got := last.total("tare_group_cpu_seconds_total"); nanoseconds(got) < used {
		t.Errorf("the groups have %g s in all, and those of this test used %d ns", got, used)
	}
}
