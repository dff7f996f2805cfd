package load

import "github.com/HdrHistogram/hdrhistogram-go"

// Longest is the longest time that the histograms of a Tally distinguish, in ns; longer ones count as this.
const Longest = 100e9

// Tally counts the requests of one worker that were intended in the window. The field Finished counts the requests that
// were answered in the window instead. Counting allocates nothing. Merge adds the counts of another worker, and Into
// puts the sum into a result.
type Tally struct {
	Intended, Sent, Done, Late    int64
	Finished                      int64
	Latency, Service, Lag, OwnLag *hdrhistogram.Histogram
	Slices                        [Slices]*hdrhistogram.Histogram // latency, by intended start

	histograms map[string]*hdrhistogram.Histogram // the four above, and those made by Histogram
}

// NewTally returns an empty tally.
func NewTally() Tally {
	t := Tally{histograms: map[string]*hdrhistogram.Histogram{}}
	t.Latency, t.Service = t.Histogram(Latency), t.Histogram(Service)
	t.Lag, t.OwnLag = t.Histogram(Lag), t.Histogram(OwnLag)
	for i := range t.Slices {
		t.Slices[i] = hdrhistogram.New(1, Longest, 2) // 1 % will do, and takes a tenth of the memory
	}
	return t
}

// Histogram returns the named histogram. The first call for a name makes it.
func (t *Tally) Histogram(name string) *hdrhistogram.Histogram {
	if t.histograms[name] == nil {
		t.histograms[name] = hdrhistogram.New(1, Longest, 3)
	}
	return t.histograms[name]
}

// Record adds a time to a histogram of a Tally, in ns.
func Record(h *hdrhistogram.Histogram, ns int64) {
	_ = h.RecordValue(min(max(ns, 0), Longest)) // in range, so there is no error
}

// Began counts a request of the window that was sent. ownLag is the delay that the generator itself caused; it is
// negative in a closed loop, where nothing can be late. All times are in ns.
func (t *Tally) Began(intended, sent, ownLag int64) {
	t.Intended++
	t.Sent++
	if ownLag >= 0 {
		Record(t.Lag, sent-intended)
		Record(t.OwnLag, ownLag)
	}
}

// Answered counts a request that was answered without error, in a window from begin to end. Requests of the warm-up
// belong here too: they count as Finished if their answers come in the window.
func (t *Tally) Answered(intended, sent, done, begin, end int64) {
	t.ended(done, begin, end)
	if intended < begin || intended >= end {
		return
	}
	t.Done++
	if done >= end {
		t.Late++
	}
	Record(t.Latency, done-intended)
	Record(t.Service, done-sent)
	Record(t.Slices[(intended-begin)*Slices/(end-begin)], done-intended)
}

// Worked counts a piece of work of a closed loop in a window from begin to end, and adds its time, ns, to a histogram.
// It returns false for a piece that began before the window, which can only count as Finished. A piece that began after
// the window is put into the last slice; callers count such a piece only if none began in the window.
func (t *Tally) Worked(h *hdrhistogram.Histogram, ns, began, ended, begin, end int64) bool {
	t.ended(ended, begin, end)
	if began < begin {
		return false
	}
	t.Intended++
	t.Sent++
	t.Done++
	Record(h, ns)
	Record(t.Slices[min((began-begin)*Slices/(end-begin), Slices-1)], ns)
	return true
}

// ended counts an answer without error as Finished if it came in the window from begin to end.
func (t *Tally) ended(at, begin, end int64) {
	if at >= begin && at < end {
		t.Finished++
	}
}

// Merge adds the counts of another worker.
func (t *Tally) Merge(o *Tally) {
	t.Intended += o.Intended
	t.Sent += o.Sent
	t.Done += o.Done
	t.Late += o.Late
	t.Finished += o.Finished
	for name, h := range o.histograms {
		t.Histogram(name).Merge(h)
	}
	for i, h := range o.Slices {
		t.Slices[i].Merge(h)
	}
}

// Into puts the tally into a result, whose seconds and errors must be set.
func (t *Tally) Into(r *Result) error {
	r.Intended, r.Sent, r.Done, r.Late = t.Intended, t.Sent, t.Done, t.Late
	r.Finished = &t.Finished
	r.Rate = float64(t.Finished) / r.Seconds
	r.SetUnfinished()
	r.SetSlices(t.Slices[:])
	return r.SetHistograms(t.histograms)
}
