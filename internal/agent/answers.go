package agent

import (
	"bytes"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"tare/internal/lib/text"
)

// scrapes serves the metrics. It encodes an answer into memory before writing it, so a client that reads slowly holds
// neither a slot nor the counters. Clients that ask at the same time share an answer.
type scrapes struct {
	metrics source
	writers *writers
	slots   chan struct{} // held by scrapes that wait for an answer

	mu    sync.Mutex
	last  *answer // the most recent answer; nil before the first
	spare []byte  // memory of an answer that is no longer needed
}

// source provides the metrics.
type source interface {
	// each calls f with every metric and its version, in the order of names. It leaves out a metric if has(name, version)
	// is true. The metric is valid until f returns. It changes only when its version does; version 0 means that it may
	// have changed.
	each(has func(name string, version uint64) bool, f func(m *dto.MetricFamily, version uint64) error) error
	// reading returns the time of the last reading of the counters. It first reads them again, unless they are fresh or
	// were last read after the given time.
	reading(after time.Time) time.Time
}

func newScrapes(metrics source, writers *writers) *scrapes {
	return &scrapes{metrics: metrics, writers: writers, slots: make(chan struct{}, maxScrapes)}
}

func (s *scrapes) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	a := s.answer(r)
	defer s.release(a)
	for key, values := range a.header {
		rw.Header()[key] = values
	}
	rw.Header().Set("Content-Length", strconv.Itoa(a.Len()))
	rw.WriteHeader(a.status)
	s.writers.write(rw, a.Bytes())
}

// answer returns the answer to a request. It returns the last answer again if that was to the same request and has the
// same reading of the counters. The answer is an error if there are too many scrapes or the metrics cannot be encoded.
// The caller must release it.
func (s *scrapes) answer(r *http.Request) *answer {
	a := &answer{readers: 1, header: http.Header{}, status: http.StatusOK,
		asked: slices.Concat(r.Header["Accept"], []string{""}, r.URL.Query()["name[]"])}
	came := time.Now()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	default:
		http.Error(a, "too many scrapes at a time, try again later", http.StatusServiceUnavailable)
		return a
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	a.read = s.metrics.reading(came)
	if s.last != nil {
		if s.last.read.Equal(a.read) && slices.Equal(s.last.asked, a.asked) {
			s.last.readers++
			return s.last
		}
		a.Buffer = *bytes.NewBuffer(s.spare[:0])
		s.spare = nil
		a.Grow(s.last.Len() + s.last.Len()/16)
	}
	if err := s.encode(a, r); err != nil {
		a.Reset()
		http.Error(a, text.Line(err.Error()), http.StatusInternalServerError)
		return a
	}
	if s.last != nil {
		s.reuse(s.last)
	}
	s.last = a
	return a
}

// release drops a client's use of an answer.
func (s *scrapes) release(a *answer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if a.readers--; a != s.last {
		s.reuse(a)
	}
}

// reuse keeps the memory of an answer for the next one, unless clients are still reading it.
func (s *scrapes) reuse(a *answer) {
	if a.readers == 0 {
		s.spare, a.Buffer = a.Bytes(), bytes.Buffer{}
	}
}

// encode writes all metrics, or only those named in the request, in the format that the request prefers.
func (s *scrapes) encode(a *answer, r *http.Request) error {
	format := expfmt.NegotiateAccept(r.Header, expfmt.DefaultOpenMetricsAcceptedFormats()...)
	a.header.Set("Content-Type", string(format))
	a.header.Set("Vary", "Accept")
	names := r.URL.Query()["name[]"]
	// No name of a metric or label needs escaping in any format, and checking the names would take as long as encoding.
	encoder := expfmt.NewEncoder(a, format.WithEscapingScheme(model.NoEscaping), expfmt.WithCreatedLines())
	has := func(name string, version uint64) bool { return a.copy(s.last, name, version) }
	err := s.metrics.each(has, func(f *dto.MetricFamily, version uint64) error {
		from := a.Len()
		if len(names) == 0 || slices.Contains(names, f.GetName()) {
			if err := encoder.Encode(f); err != nil {
				return err
			}
		}
		if version > 0 {
			a.keep(f.GetName(), part{version, from, a.Len()})
		}
		return nil
	})
	if last, needed := encoder.(expfmt.Closer); needed && err == nil {
		err = last.Close()
	}
	return err
}

// answer is an HTTP response in memory. It is an http.ResponseWriter.
type answer struct {
	header http.Header
	status int
	bytes.Buffer

	read  time.Time // when the counters in it were read
	asked []string  // the parts of the request on which the answer depends

	readers int             // clients to which it is being written
	parts   map[string]part // the metrics that have a version, by name
}

// part is a metric in an answer.
type part struct {
	version  uint64
	from, to int // offsets in the answer, in bytes
}

// keep records where in the answer a metric is.
func (a *answer) keep(name string, p part) {
	if a.parts == nil {
		a.parts = map[string]part{}
	}
	a.parts[name] = p
}

// copy appends a metric from another answer, and reports whether it could: the other answer must be to the same request
// and have the metric in the given version.
func (a *answer) copy(of *answer, name string, version uint64) bool {
	if of == nil || !slices.Equal(of.asked, a.asked) {
		return false
	}
	p, has := of.parts[name]
	if !has || p.version != version {
		return false
	}
	from := a.Len()
	a.Write(of.Bytes()[p.from:p.to])
	a.keep(name, part{version, from, a.Len()})
	return true
}

func (a *answer) Header() http.Header    { return a.header }
func (a *answer) WriteHeader(status int) { a.status = status }

// writers bounds the number of answers that are held in memory because clients read them slowly. If there is one too
// many, the one whose client has read nothing for the longest time is cut off: if newcomers had to wait instead,
// clients that do not read would keep Prometheus out.
type writers struct {
	most int
	mu   sync.Mutex
	all  []*writer
}

// writer is an answer that is being written.
type writer struct {
	connection *http.ResponseController
	since      time.Time // when the client last read some of it
}

// writtenAtOnce is the size of the pieces in which an answer is written, in bytes. A client counts as reading each time
// that it has taken a piece.
const writtenAtOnce = 32 << 10

// write writes the body of an answer, until it is cut off. The header has been written.
func (w *writers) write(rw http.ResponseWriter, data []byte) {
	one := &writer{connection: http.NewResponseController(rw), since: time.Now()}
	w.mu.Lock()
	w.all = append(w.all, one)
	if len(w.all) > w.most {
		oldest := slices.MinFunc(w.all, func(a, b *writer) int { return a.since.Compare(b.since) })
		w.remove(oldest)
		_ = oldest.connection.SetWriteDeadline(time.Now())
	}
	w.mu.Unlock()
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.remove(one)
	}()
	for part := range slices.Chunk(data, writtenAtOnce) {
		if _, err := rw.Write(part); err != nil {
			return
		}
		w.mu.Lock()
		one.since = time.Now()
		w.mu.Unlock()
	}
}

// remove removes a writer from the list, if it is there. The caller must hold w.mu.
func (w *writers) remove(one *writer) {
	w.all = slices.DeleteFunc(w.all, func(other *writer) bool { return other == one })
}
