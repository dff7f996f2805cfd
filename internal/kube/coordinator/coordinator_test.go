package coordinator

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/text"
)

// network connects to a server, as long as the test gives it an address.
type network struct {
	address atomic.Value // of the server; "": it cannot be reached
	dials   atomic.Int32
}

func (n *network) serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	n.address.Store(s.Listener.Addr().String())
	return s
}

func (n *network) dial(ctx context.Context) (net.Conn, error) {
	n.dials.Add(1)
	address := n.address.Load().(string)
	if address == "" {
		return nil, errors.New("no route")
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", address)
}

// follower returns a Followed that copies a run into a temporary directory.
func follower(t *testing.T, n *network, log io.Writer) *Followed {
	t.Helper()
	f := &Followed{Client: NewClient(n.dial), Log: log, Gone: func(context.Context) (lost, err error) { return nil, nil },
		Open: func(r record.Run) (*record.Writer, error) {
			return record.Continue(filepath.Join(t.TempDir(), "copy"), r)
		}}
	t.Cleanup(func() {
		f.Client.Close()
		if f.Copy != nil {
			f.Copy.Close()
		}
	})
	return f
}

var run = record.Run{Schema: record.RunSchema, ID: "one", Experiment: "x",
	Plan: []record.PlannedTrial{{Arm: record.Direct}, {Index: 1, Arm: record.Direct}}}

// same fails the test if a copied run directory differs from the original.
func same(t *testing.T, of, copied string) {
	t.Helper()
	for _, name := range []string{record.RunFile, record.TrialsFile} {
		want, err := os.ReadFile(filepath.Join(of, name))
		got, err2 := os.ReadFile(filepath.Join(copied, name))
		if err != nil || err2 != nil || !bytes.Equal(got, want) {
			t.Errorf("%s has %d bytes, want %d (%v, %v)", name, len(got), len(want), err, err2)
		}
	}
}

// TestFollow: a client has each trial once it has ended, even if connections are cut, and at the end of the run has the
// whole run directory and the error with which the run ended.
func TestFollow(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	interrupted := make(chan struct{}, 1)
	s := NewServer(dir, func() { interrupted <- struct{}{} })
	var n network
	server := n.serve(t, s.Handler())
	var log bytes.Buffer
	copied := make(chan string, 1)
	f := follower(t, &n, &log)
	open := f.Open
	f.Open = func(r record.Run) (*record.Writer, error) {
		w, err := open(r)
		copied <- w.Dir()
		return w, err
	}
	ended := make(chan error, 1)
	go func() {
		end, err := f.Follow(t.Context())
		ended <- cmpErr(end, err)
	}()
	w, err := record.Create(dir, run)
	if err != nil {
		t.Fatal(err)
	}
	s.Holds(0)
	fmt.Fprintln(s, "begun")
	to := <-copied
	r := Recorder{w, s, new(run)}
	for i, p := range run.Plan {
		if err := r.Append(record.Trial{Schema: record.TrialSchema, PlannedTrial: p}); err != nil {
			t.Fatal(err)
		}
		for { // wait until the client has the trial
			if data, _ := os.ReadFile(filepath.Join(to, record.TrialsFile)); bytes.Count(data, []byte("\n")) == i+1 {
				break
			}
			if err := pace.Sleep(t.Context(), time.Millisecond); err != nil {
				t.Fatal(err)
			}
		}
		address := n.address.Swap("")
		server.CloseClientConnections()
		n.address.Store(address)
	}
	if err := f.Client.Interrupt(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-interrupted
	grown := run
	grown.Plan = append(grown.Plan, record.PlannedTrial{Index: 2, Arm: record.Direct})
	if err := w.UpdateRun(grown); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintln(s, "over")
	s.End(fault.New(fault.Machine, "here", "do that", "it broke"))
	err = <-ended
	if fault.CodeOf(err) != fault.Machine || fault.HintOf(err) != "do that" || !strings.Contains(err.Error(), "it broke") {
		t.Errorf("%v (%s)", err, fault.HintOf(err))
	}
	same(t, dir, to)
	if log.String() != "begun\nover\n" {
		t.Errorf("%q", log.String())
	}
	if n.dials.Load() < 3 {
		t.Errorf("it has connected %d times: no connection was cut", n.dials.Load())
	}
	if err := f.Client.Fetched(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-s.Fetched()
}

func cmpErr(end, err error) error {
	if err != nil {
		return fmt.Errorf("following: %w", err)
	}
	return end
}

// TestEnds: a client gets the error with which the run ended.
func TestEnds(t *testing.T) {
	for _, c := range []struct {
		err  error
		code fault.Code
	}{{nil, fault.OK}, {fault.New(fault.Invalid, "", "", "x"), fault.Invalid}, {errors.New("x"), fault.Internal}} {
		if got := endOf(c.err).Err(); fault.CodeOf(got) != c.code || (got == nil) != (c.err == nil) {
			t.Errorf("%v becomes %v", c.err, got)
		}
	}
	if got := endOf(fmt.Errorf("trial: %w", context.Canceled)).Err(); !errors.Is(got, context.Canceled) {
		t.Errorf("an interruption becomes %v", got)
	}
}

// TestLost: if the coordinator is lost, what was copied is kept, and the error says why the coordinator is lost.
func TestLost(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	s := NewServer(dir, nil)
	var n network
	var served atomic.Bool
	n.serve(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if served.Load() {
			panic(http.ErrAbortHandler)
		}
		s.Handler().ServeHTTP(w, r)
		served.Store(r.URL.Path == "/"+record.TrialsFile)
	}))
	w, err := record.Create(dir, run)
	if err != nil {
		t.Fatal(err)
	}
	r := Recorder{w, s, new(run)}
	if err := r.Append(record.Trial{Schema: record.TrialSchema, PlannedTrial: run.Plan[0]}); err != nil {
		t.Fatal(err)
	}
	f := follower(t, &n, io.Discard)
	lost := errors.New("its pod is gone")
	f.Gone = func(context.Context) (error, error) { return lost, nil }
	if end, err := f.Follow(t.Context()); err != nil || !errors.Is(end, lost) {
		t.Errorf("%v, %v", end, err)
	}
	same(t, dir, f.Copy.Dir())
}

// TestVersions: run.json has the images of what trials found in the cluster, and a program with several has all.
func TestVersions(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	of := run
	of.Environment.Subjects = map[string]string{"variant": "0.5.0"}
	w, err := record.Create(dir, of)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	r := Recorder{w, NewServer(dir, nil), &of}
	for i, subject := range []string{"", `{"images":{"proxy":"proxy:2","discovery":"pilot:2"}}`, `{"images":{"proxy":"proxy:1"}}`} {
		tr := record.Trial{Schema: record.TrialSchema, PlannedTrial: run.Plan[min(i, 1)], Attempt: max(i-1, 0),
			Subject: []byte(subject)}
		if subject == "" {
			tr.Subject = nil
		}
		if err := r.Append(tr); err != nil {
			t.Fatal(err)
		}
	}
	got, err := record.Read(dir)
	want := map[string]string{"variant": "0.5.0", "proxy": "proxy:1, proxy:2", "discovery": "pilot:2"}
	if err != nil || !maps.Equal(got.Run.Environment.Subjects, want) {
		t.Errorf("%v, %v, want %v", err, got.Run.Environment.Subjects, want)
	}
}

// TestStartedAgain: the progress of a coordinator that was started again is shown from its beginning.
func TestStartedAgain(t *testing.T) {
	s := NewServer(t.TempDir(), nil)
	var n network
	n.serve(t, s.Handler())
	fmt.Fprintln(s, "again")
	if st, err := NewClient(n.dial).Status(t.Context(), 1000, 5000); err != nil || st.Log != "again\n" || st.Next != 6 {
		t.Errorf("%+v, %v", st, err)
	}
	_, _ = s.Write(bytes.Repeat([]byte("x"), 2*maxLog))
	st, err := NewClient(n.dial).Status(t.Context(), 3, 0)
	if err != nil || len(st.Log) != maxLog || st.Next != 2*maxLog+6 {
		t.Errorf("%d bytes of progress up to %d, %v", len(st.Log), st.Next, err)
	}
}

// lying is a coordinator with arbitrary answers.
type lying struct{ status, run, trials string }

func (l *lying) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.URL.Path {
	case "/status":
		_, _ = io.WriteString(w, l.status)
	case "/" + record.RunFile:
		_, _ = io.WriteString(w, l.run)
	default:
		w.WriteHeader(http.StatusPartialContent)
		_, _ = io.WriteString(w, l.trials)
	}
}

// TestEndlessLog: the log of a coordinator is printed up to a limit.
func TestEndlessLog(t *testing.T) {
	var log strings.Builder
	f := &Followed{Log: &log}
	lines := strings.Repeat("x", 1<<20-1) + "\n"
	for range 2 * maxPrinted >> 20 {
		f.print(lines)
	}
	if rest, ok := strings.CutPrefix(log.String(), strings.Repeat(lines, maxPrinted>>20)); !ok ||
		strings.TrimSpace(rest) != "tare: the coordinator logged 64 MiB: no more is printed" {
		t.Errorf("it printed %d bytes; after the limit %.100q", log.Len(), rest)
	}
}

// FuzzFollow: whatever a coordinator answers, a follower prints text, copies no more than it receives, and ends with an
// exit code of tare.
func FuzzFollow(f *testing.F) {
	const end = `"end":{"code":4,"text":"bad","hint":"x"}}`
	f.Add(`{"begun":true,"trials":3,"log":"a\n","next":2}`, `{"id":"one"}`, "{}\n")
	f.Add(`{"begun":true,"trials":1099511627776,"log":"\u001b[2J",`+end, `{"id":"one"}`, "x")
	f.Add(`{"begun":true,"trials":-1,"next":-7,"end":{"interrupted":true}}`, `{"plan":null}`, "")
	f.Add(`{"end":{"code":-300}}`, `[]`, "")
	f.Add(`{"end":{"code":99,"text":"\u0007"}}`, "", "")
	var n network
	var l lying
	s := httptest.NewServer(&l)
	f.Cleanup(s.Close)
	n.address.Store(s.Listener.Addr().String())
	client := NewClient(n.dial)
	f.Cleanup(client.Close)
	f.Fuzz(func(t *testing.T, status, run, trials string) {
		l = lying{status, run, trials}
		var log strings.Builder
		dir := filepath.Join(t.TempDir(), "copy")
		of := &Followed{Client: client, Log: &log,
			Open: func(r record.Run) (*record.Writer, error) { return record.Continue(dir, r) }}
		over, end, _ := of.step(t.Context())
		if got := log.String(); got != text.Lines(got) {
			t.Errorf("it printed %q", got)
		}
		if code := fault.CodeOf(end); !errors.Is(end, context.Canceled) && (code < fault.OK || code > fault.Exceeded) ||
			end != nil && !over {
			t.Errorf("it ended with %v, code %d; over: %v", end, code, over)
		}
		if of.Copy == nil {
			return
		}
		defer of.Copy.Close()
		files, err := os.ReadDir(dir)
		if size := of.Copy.Size(); err != nil || len(files) != 2 || size > int64(len(trials)) {
			t.Errorf("of %d bytes it copied %d, into %v (%v)", len(trials), size, files, err)
		}
	})
}

// TestHostileCoordinator: if a coordinator's answers are invalid or too large, following ends with an error, no trials
// are copied, and the terminal gets no escape sequences.
func TestHostileCoordinator(t *testing.T) {
	for name, c := range map[string]struct {
		status, run, trials string
		want                string
	}{
		"no JSON":      {"<html>", "", "", "gone"},
		"endless":      {strings.Repeat(" ", maxStatus+1), "", "", "gone"},
		"other record": {`{"begun":true}`, `[]`, "", "record of the run is invalid"},
		"large record": {`{"begun":true}`, `{"metrics":[0` + strings.Repeat(",0", 150_000) + `]}`, "",
			"objects and elements of arrays"},
		"no run": {`{"begun":true}`, `{"plan":[{"arm":"` + strings.Repeat("a", 1<<16) + `"}]}`, "",
			"cannot hold the run"},
		"short":    {`{"begun":true,"trials":100}`, `{"id":"one"}`, "x", "gone"},
		"long":     {`{"begun":true,"trials":10}`, `{"id":"one"}`, strings.Repeat("x", 100), "gone"},
		"negative": {`{"begun":true,"trials":-5,"next":-9,"log":"\u001b[2J","end":{"code":4,"text":"bad"}}`, `{"id":"one"}`, "", "bad"},
	} {
		var n network
		n.serve(t, &lying{c.status, c.run, c.trials})
		var log strings.Builder
		f := follower(t, &n, &log)
		f.Gone = func(context.Context) (lost, err error) { return errors.New("gone"), nil }
		end, err := f.Follow(t.Context())
		if strings.ContainsRune(log.String(), '\x1b') {
			t.Errorf("%s: it printed %q", name, log.String())
		}
		if got := fmt.Sprint(end, err); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
		if f.Copy != nil && f.Copy.Size() > 0 {
			t.Errorf("%s: it has %d bytes of trials", name, f.Copy.Size())
		}
	}
}
