package agent

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// large has more metrics than the buffers of a connection hold. Each reading has a later time.
type large struct {
	mu    sync.Mutex
	reads int
}

func (l *large) each(_ func(string, uint64) bool, to func(*dto.MetricFamily, uint64) error) error {
	f := &dto.MetricFamily{Name: new("a"), Help: new(strings.Repeat("h", 16<<20)), Type: dto.MetricType_GAUGE.Enum()}
	f.Metric = []*dto.Metric{{Gauge: &dto.Gauge{Value: new(1.0)}}}
	return to(f, 0)
}

func (l *large) reading(time.Time) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reads++
	return time.Unix(int64(l.reads), 0)
}

// TestSlowReaders: clients that read nothing occupy no slot, and at most maxUnread answers wait for them: those that
// came first are cut off.
func TestSlowReaders(t *testing.T) {
	s := newScrapes(&large{}, &writers{most: maxUnread})
	server := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() {
		server.Close()
		<-served
	}()
	var slow []net.Conn
	for range maxUnread + 2 {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		fmt.Fprint(c, "GET /metrics HTTP/1.0\r\n\r\n")
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil { // its answer has begun
			t.Fatal(err)
		}
		slow = append(slow, c)
	}
	client := http.Client{Timeout: time.Minute}
	answer, err := client.Get("http://" + l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	if answer.StatusCode != http.StatusOK || err != nil || !bytes.HasSuffix(body, []byte("\na 1\n")) {
		t.Errorf("beside slow readers: status %d, %d bytes, %v", answer.StatusCode, len(body), err)
	}
	// The first was cut off: what is left of its answer ends too early.
	n, err := io.Copy(io.Discard, slow[0])
	if err == nil && n >= int64(len(body)) {
		t.Error("a client that read nothing has its whole answer")
	}
	n, err = io.Copy(io.Discard, slow[len(slow)-1])
	if err != nil || n < int64(len(body)) {
		t.Errorf("the last of the slow readers has %d bytes, %v", n, err)
	}
}

// still is a source whose counters were read once.
type still struct {
	large
	gathered int
}

func (s *still) each(_ func(string, uint64) bool, to func(*dto.MetricFamily, uint64) error) error {
	s.gathered++
	if s.gathered == 1 {
		return errors.New("not yet")
	}
	f := &dto.MetricFamily{Name: new("a"), Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{
		{Gauge: &dto.Gauge{Value: new(1.0)}}}}
	return to(f, 0)
}

func (s *still) reading(time.Time) time.Time { return time.Unix(1, 0) }

// TestSharedAnswers: clients that ask for the same at the same time share an answer; an error is not shared, nor is
// another format.
func TestSharedAnswers(t *testing.T) {
	metrics := &still{}
	s := newScrapes(metrics, nil)
	const open = "application/openmetrics-text; version=1.0.0"
	for i, step := range []struct {
		accept, query string
		status        int
		gathered      int
		body          string
	}{
		{"", "", http.StatusInternalServerError, 1, "not yet"},
		{"", "", http.StatusOK, 2, "a 1\n"},
		{"", "", http.StatusOK, 2, "a 1\n"},
		{open, "", http.StatusOK, 3, "# EOF\n"},
		{open, "?name[]=b", http.StatusOK, 4, "# EOF\n"},
		{"", "", http.StatusOK, 5, "a 1\n"},
	} {
		r, err := http.NewRequest(http.MethodGet, "/metrics"+step.query, nil)
		if err != nil {
			t.Fatal(err)
		}
		if step.accept != "" {
			r.Header.Set("Accept", step.accept)
		}
		a := s.answer(r)
		if a.status != step.status || metrics.gathered != step.gathered || !strings.Contains(a.String(), step.body) {
			t.Errorf("request %d: status %d after %d readings: %q", i, a.status, metrics.gathered, a)
		}
		s.release(a)
	}
}

// versioned is a source with a metric, b, that changes only when its version does.
type versioned struct {
	large
	version uint64
	built   int
}

func (v *versioned) each(has func(string, uint64) bool, to func(*dto.MetricFamily, uint64) error) error {
	for _, name := range []string{"a", "b", "c"} {
		value, version := float64(v.reads), uint64(0)
		if name == "b" {
			if value, version = float64(v.version), v.version; has(name, version) {
				continue
			}
			v.built++
		}
		f := &dto.MetricFamily{Name: &name, Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{
			{Gauge: &dto.Gauge{Value: &value}}}}
		if err := to(f, version); err != nil {
			return err
		}
	}
	return nil
}

// TestVersions: a metric is encoded once for each of its versions and each kind of request.
func TestVersions(t *testing.T) {
	metrics := &versioned{}
	s := newScrapes(metrics, nil)
	for i, step := range []struct {
		version uint64
		query   string
		built   int
	}{{1, "", 1}, {1, "", 1}, {2, "", 2}, {2, "", 2}, {2, "?name[]=a", 3}, {2, "?name[]=a", 3}, {2, "", 4}, {2, "", 4},
		{2, "?name[]=b", 5}, {2, "?name[]=b", 5}} {
		r, err := http.NewRequest(http.MethodGet, "/metrics"+step.query, nil)
		if err != nil {
			t.Fatal(err)
		}
		metrics.version = step.version
		a := s.answer(r)
		want := ""
		for name, value := range map[string]int{"a": metrics.reads, "b": int(step.version), "c": metrics.reads} {
			if step.query == "" || strings.HasSuffix(step.query, name) {
				want += fmt.Sprintf("# TYPE %s gauge\n%s %d\n", name, name, value)
			}
		}
		if sortLines(a.String()) != sortLines(want) || metrics.built != step.built {
			t.Errorf("request %d: built %d times, want %d: %q, want %q", i, metrics.built, step.built, a, want)
		}
		s.release(a)
	}
}

func sortLines(s string) string { return strings.Join(slices.Sorted(strings.Lines(s)), "") }

// counting has one metric, the number of the reading.
type counting struct{ large }

func (c *counting) each(_ func(string, uint64) bool, to func(*dto.MetricFamily, uint64) error) error {
	f := &dto.MetricFamily{Name: new("a"), Type: dto.MetricType_GAUGE.Enum(), Metric: []*dto.Metric{
		{Gauge: &dto.Gauge{Value: new(float64(c.reads))}}}}
	return to(f, 0)
}

// TestMemoryOfAnswers: the memory of an answer is reused once all its clients have read it, and no sooner.
func TestMemoryOfAnswers(t *testing.T) {
	s := newScrapes(&counting{}, nil)
	r, err := http.NewRequest(http.MethodGet, "/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	reused := 0
	memory := map[*byte]bool{}
	var unread []*answer
	for i := range 20 {
		a := s.answer(r)
		unread = append(unread, a)
		first := &a.Bytes()[0]
		if memory[first] {
			reused++
		}
		memory[first] = true
		if i%3 == 0 { // two clients are slow
			continue
		}
		s.release(unread[0])
		unread = unread[1:]
		for _, a := range unread {
			if want := fmt.Sprintf("a %d\n", a.read.Unix()); !strings.HasSuffix(a.String(), want) {
				t.Fatalf("answer %d, which is being read, has become %q", a.read.Unix(), a)
			}
		}
	}
	if reused == 0 {
		t.Error("no memory was used again")
	}
}
