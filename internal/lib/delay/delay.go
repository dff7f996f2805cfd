// Package delay injects known delays: from a distribution, or as stalls at known times. A server imposes them (Waits),
// and a calibration compares them with what a load has measured.
package delay

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

// Distribution is a distribution of delays whose quantiles are known exactly. Parse reads it from a text:
// "constant:5ms", "uniform:2ms:10ms", or "two-point:2ms:20ms:0.05", in which 5 % of requests wait 20 ms and the others
// wait 2 ms.
type Distribution struct {
	kind   string
	lo, hi time.Duration
	part   float64 // in two-point: fraction of requests that wait hi
}

// longest is the longest delay that Parse and Stall.Check accept. No load waits longer than this for an answer.
const longest = time.Minute

// Parse parses the text of a distribution. Its error is a fault with code Usage.
func Parse(text string) (*Distribution, error) {
	const form = "give constant:5ms, uniform:2ms:10ms, or two-point:2ms:20ms:0.05"
	bad := func(format string, args ...any) error { return fault.New(fault.Usage, text, form, format, args...) }
	fields := strings.Split(text, ":")
	d := &Distribution{kind: fields[0]}
	want := map[string]int{"constant": 1, "uniform": 2, "two-point": 3}[d.kind]
	if want == 0 || len(fields)-1 != want {
		return nil, bad("not a distribution of delays")
	}
	ends := []*time.Duration{&d.lo, &d.hi}
	for i, end := range ends[:min(want, 2)] {
		var err error
		if *end, err = time.ParseDuration(fields[1+i]); err != nil || *end < 0 || *end > longest {
			return nil, bad("%q is not a delay from 0 to %v", fields[1+i], longest)
		}
	}
	switch d.kind {
	case "constant":
		d.hi = d.lo
	case "two-point":
		var err error
		if d.part, err = strconv.ParseFloat(fields[3], 64); err != nil || !(d.part >= 0 && d.part <= 1) {
			return nil, bad("%q is not a fraction from 0 to 1", fields[3])
		}
	}
	if d.hi < d.lo {
		return nil, bad("%v is more than %v", d.lo, d.hi)
	}
	return d, nil
}

// Quantile returns the delay that a fraction q of requests, from 0 to 1, does not exceed.
func (d *Distribution) Quantile(q float64) time.Duration {
	switch {
	case d.kind == "uniform":
		return d.lo + time.Duration(math.Round(q*float64(d.hi-d.lo)))
	case d.kind == "two-point" && q > 1-d.part:
		return d.hi
	}
	return d.lo
}

// Stall configures stalls of a server at regular intervals: an answer that is due during a stall is sent at its end.
// Stall k = 0, 1, ... begins at Started.StallsFrom + k x Every and lasts For. The zero value means no stalls.
type Stall struct {
	For, Every time.Duration
}

// Check returns an error for impossible stalls.
func (s Stall) Check() error {
	if s == (Stall{}) {
		return nil
	}
	if s.For <= 0 || s.Every <= s.For || s.Every > longest {
		const form = "like --stall 100ms --stall-every 500ms"
		return fault.New(fault.Usage, "stall", form, "a stall of %v every %v is not possible", s.For, s.Every)
	}
	return nil
}

// end returns the end of the stall that is under way at the given time, if stalls began at from. If there is none, it
// returns the given time.
func (s Stall) end(from, at int64) int64 {
	if s.For == 0 || at < from {
		return at
	}
	if into := (at - from) % int64(s.Every); into < int64(s.For) {
		return at - into + int64(s.For)
	}
	return at
}

// Options configure how long requests wait.
type Options struct {
	Delay        time.Duration // of each request
	Distribution *Distribution // of the delay; if nil, the delay is always Delay
	Seed         uint64        // of the distribution
	Stall        Stall         // zero for none
	Skip         int64         // requests at the beginning that Served leaves out, such as those of a load's warm-up
}

// Started is a server's report when it begins to listen.
type Started struct {
	Address    string `json:"address"`                  // host:port
	StallsFrom int64  `json:"stalls_from_ns,omitempty"` // CLOCK_MONOTONIC: see Stall
}

// Served is the final report of a server with a distribution or stalls. It holds the times that requests really waited,
// which are longer than intended on a busy machine.
type Served struct {
	Requests int64  `json:"requests"`
	Waits    string `json:"waits"` // HDR histogram of nanoseconds, 3 significant digits, V2 compressed and base64 encoded
}

// Waits decides how long each request has to wait, and records how long it really waited. It is safe for concurrent
// use.
type Waits struct {
	o    Options
	from int64 // beginning of the stalls

	mu   sync.Mutex
	came int64                   // number of requests so far
	rng  *rand.Rand              // nil without a distribution
	seen *hdrhistogram.Histogram // nil if Served is not wanted
}

// NewWaits returns Waits whose stalls, if any, begin at now, in ns by pace.Now.
func NewWaits(o Options, now int64) *Waits {
	w := &Waits{o: o, from: now}
	if o.Distribution != nil {
		w.rng = rand.New(rand.NewPCG(o.Seed, 0))
	}
	if o.Distribution != nil || o.Stall.For > 0 {
		w.seen = hdrhistogram.New(1, int64(2*longest), 3)
	}
	return w
}

// StallsFrom returns when the first stall begins; 0 if there are none.
func (w *Waits) StallsFrom() int64 {
	if w.o.Stall.For == 0 {
		return 0
	}
	return w.from
}

// Due returns when to answer a request that arrived at the given time, both in ns by pace.Now. It reports whether the
// wait should be passed to Record.
func (w *Waits) Due(arrived int64) (at int64, record bool) {
	delay := w.o.Delay
	if w.seen != nil {
		w.mu.Lock()
		w.came++
		record = w.came > w.o.Skip
		if w.rng != nil {
			delay = w.o.Distribution.Quantile(w.rng.Float64())
		}
		w.mu.Unlock()
	}
	return w.o.Stall.end(w.from, arrived+int64(delay)), record
}

// Record records that a request that arrived at the given time, in ns by pace.Now, is answered now. It must only be
// called for requests for which Due has reported true.
func (w *Waits) Record(arrived int64) {
	waited := pace.Now() - arrived
	w.mu.Lock()
	defer w.mu.Unlock()
	_ = w.seen.RecordValue(min(waited, int64(2*longest))) // the value is within bounds
}

// Served returns the recorded waits, or nil if there is neither a distribution nor a stall.
func (w *Waits) Served() (*Served, error) {
	if w.seen == nil {
		return nil, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	text, err := w.seen.Encode(hdrhistogram.V2CompressedEncodingCookieBase)
	if err != nil {
		return nil, fmt.Errorf("encoding the waits of requests: %w", err)
	}
	return &Served{Requests: w.seen.TotalCount(), Waits: string(text)}, nil
}
