package process

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tare/internal/lib/param"
	"tare/internal/workloads/load/command/tool"
)

// TestRealTool: an installed load generator runs to its end as a command, and its output is parsed and agrees with the
// server's count.
func TestRealTool(t *testing.T) {
	for _, c := range []struct{ line, tool string }{
		{"wrk -t1 -c1 -d{seconds}s --latency http://{address}/", "wrk"},
		{"ab -q -n 20 -c 1 http://{address}/", "ab"},
		{"hey -n 20 -c 1 http://{host}:{port}/", "hey"},
		{"fortio load -quiet -json - -qps 50 -c 1 -t 1s http://{address}/", "fortio"},
	} {
		t.Run(c.tool, func(t *testing.T) {
			var served atomic.Int64
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				served.Add(1)
				_, _ = w.Write([]byte("hello"))
			}))
			defer server.Close()
			o, err := OptionsOf(param.Values{"command": c.line})
			if err != nil {
				t.Fatal(err)
			}
			o, err = o.At(Place{Address: strings.TrimPrefix(server.URL, "http://"), Duration: time.Second})
			if err != nil {
				t.Fatal(err)
			}
			if err := o.Installed(); err != nil {
				t.Skipf("needs %s: %v", c.tool, err)
			}
			o.Finishes, o.Capture = true, tool.MaxBytes
			r, e := start(t, o)
			if err := e.one(t); err != nil {
				t.Fatal(err)
			}
			out, cut := r.Output()
			reading, err := tool.Parse(tool.Detect(o.Argv), out)
			if err != nil || cut != 0 {
				t.Fatalf("%v, without %d bytes", err, cut)
			}
			// Some tools warm up first, and requests cut off at the end of the run were served too.
			const more = 10
			if n := *reading.Requests; reading.Tool != c.tool || n < 10 || n > served.Load() || n < served.Load()-more {
				t.Errorf("%s says that it made %d requests, of which %d were served", reading.Tool, n, served.Load())
			}
			if reading.Errors == nil || *reading.Errors != 0 || reading.Rate == nil || *reading.Rate <= 0 ||
				reading.Max == nil && c.tool != "ab" {
				t.Errorf("it says %+v", reading)
			}
		})
	}
}
