// Package coordinator implements the protocol between the coordinator of a run, which runs its trials from a pod of the
// cluster, and the commands that follow the run: HTTP on the loopback interface of the coordinator's pod, to which the
// API server forwards users who may forward ports there. The coordinator (Server) reports its progress and serves
// run.json and trials.jsonl. A follower (Followed) copies both as they grow, so that finished trials are not lost with
// the coordinator.
package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
)

// Port is the port on which a coordinator listens.
const Port = 9635

const (
	newsWithin = 15 * time.Second // the longest delay of an answer
	maxLog     = 1 << 20          // bytes of progress that are kept
)

// Status is the progress of a run.
type Status struct {
	Begun  bool   `json:"begun"`  // there is a run directory
	Trials int64  `json:"trials"` // bytes of trials.jsonl, in whole lines
	Log    string `json:"log"`    // progress output from the requested offset on
	Next   int64  `json:"next"`   // the offset at which Log ends
	End    *End   `json:"end"`    // nil while the run is under way
}

// End says how a run ended: successfully, by an interruption, or with an error.
type End struct {
	Interrupted bool       `json:"interrupted"`
	Code        fault.Code `json:"code"`
	Text        string     `json:"text"`
	Hint        string     `json:"hint"`
}

func endOf(err error) *End {
	if err == nil {
		return &End{}
	}
	return &End{Interrupted: errors.Is(err, context.Canceled), Code: fault.CodeOf(err), Text: err.Error(),
		Hint: fault.HintOf(err)}
}

// Err returns the error with which the run ended; nil if it succeeded, and context.Canceled if it was interrupted.
func (e *End) Err() error {
	switch {
	case e.Interrupted:
		return context.Canceled
	case e.Code == fault.OK:
		return nil
	case e.Code < fault.OK || e.Code > fault.Exceeded: // it becomes an exit code
		return fault.New(fault.Internal, "", e.Hint, "%s", e.Text)
	}
	return fault.New(e.Code, "", e.Hint, "%s", e.Text)
}

// Server is the coordinator's side of the protocol. Progress output is written to it.
type Server struct {
	dir       string
	interrupt func()
	fetched   chan struct{}
	once      sync.Once

	mu     sync.Mutex
	news   chan struct{} // closed, and replaced by another, when a field below changes
	log    []byte        // the end of the progress output
	before int64         // bytes of progress output before log
	trials int64
	begun  bool
	end    *End
}

// NewServer returns a Server for a run directory, which need not exist yet. interrupt must end the run.
func NewServer(dir string, interrupt func()) *Server {
	return &Server{dir: dir, interrupt: interrupt, fetched: make(chan struct{}), news: make(chan struct{})}
}

// Fetched returns a channel that is closed once a follower has everything.
func (s *Server) Fetched() <-chan struct{} { return s.fetched }

// tell changes the state, and wakes up the requests that wait for news.
func (s *Server) tell(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	close(s.news)
	s.news = make(chan struct{})
}

// Write appends progress output.
func (s *Server) Write(p []byte) (int, error) {
	s.tell(func() {
		s.log = append(s.log, p...)
		if over := len(s.log) - maxLog; over > 0 {
			s.log, s.before = s.log[over:], s.before+int64(over)
		}
	})
	return len(p), nil
}

// Holds records that there is a run directory whose trials have this many bytes.
func (s *Server) Holds(trials int64) { s.tell(func() { s.begun, s.trials = true, trials }) }

// endFile is the file in the run directory that keeps how the run ended.
const endFile = "end.json"

// End records that the run is over, also for a later process of the coordinator (Ended).
func (s *Server) End(err error) {
	end := endOf(err)
	if raw, err := json.Marshal(end); err == nil {
		// Without the file, a process that is started again reports the run as partial.
		_ = os.WriteFile(filepath.Join(s.dir, endFile), raw, 0o600)
	}
	s.tell(func() { s.end = end })
}

// Ended returns how the run in a directory ended, by an earlier process of the coordinator; nil if it has not ended.
func Ended(dir string) *End {
	raw, err := os.ReadFile(filepath.Join(dir, endFile))
	if err != nil {
		return nil
	}
	var end End
	if json.Unmarshal(raw, &end) != nil {
		return nil // the process ended while it wrote the file
	}
	return &end
}

// Recorder is a run directory that reports its size to a Server. After each trial it adds the images of what was
// installed in the cluster to the versions in run.json, because only the results of trials contain them.
type Recorder struct {
	*record.Writer
	Server *Server
	Run    *record.Run
}

// Append implements engine.Recorder.
func (r *Recorder) Append(t record.Trial) error {
	err := r.Writer.Append(t)
	if err == nil {
		err = r.addVersions(&t)
	}
	r.Server.Holds(r.Size())
	return err
}

// maxPrograms is the maximum number of programs with a version.
const maxPrograms = 100

// addVersions adds the images of a trial to the versions in run.json.
func (r *Recorder) addVersions(t *record.Trial) error {
	var is record.Installed
	if len(t.Subject) == 0 || json.Unmarshal(t.Subject, &is) != nil {
		return nil //nolint:nilerr // the subject is of another kind
	}
	versions := map[string]string{}
	maps.Copy(versions, r.Run.Environment.Subjects)
	for name, image := range lists.ByKey(is.Images) {
		if _, known := versions[name]; known || len(versions) < maxPrograms {
			record.AddVersion(versions, name, image)
		}
	}
	if maps.Equal(versions, r.Run.Environment.Subjects) {
		return nil
	}
	r.Run.Environment.Subjects = versions
	return r.UpdateRun(*r.Run)
}

// Handler serves the progress (/status), run.json and trials.jsonl, and accepts /interrupt and /fetched.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /status", s.status)
	for _, name := range []string{record.RunFile, record.TrialsFile} {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, r *http.Request) { s.file(w, r, name) })
	}
	mux.HandleFunc("POST /interrupt", func(http.ResponseWriter, *http.Request) { s.interrupt() })
	mux.HandleFunc("POST /fetched", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
		_ = http.NewResponseController(w).Flush() // the process may end once fetched is closed
		s.once.Do(func() { close(s.fetched) })
	})
	return mux
}

// status answers as soon as there is more than the client has, or after newsWithin.
func (s *Server) status(w http.ResponseWriter, r *http.Request) {
	log, _ := strconv.ParseInt(r.FormValue("log"), 10, 64) // an invalid number is 0
	trials, _ := strconv.ParseInt(r.FormValue("trials"), 10, 64)
	timeout := time.After(newsWithin)
	for {
		s.mu.Lock()
		next := s.before + int64(len(s.log))
		if log < 0 || log > next {
			log = 0 // the offset is from an earlier process
		}
		st := Status{Begun: s.begun, Trials: s.trials, Next: next, End: s.end, Log: string(s.log[max(log-s.before, 0):])}
		news := s.news
		s.mu.Unlock()
		known := next == log && st.Trials <= trials && st.End == nil
		if known {
			select {
			case <-news:
				continue
			case <-r.Context().Done():
				return
			case <-timeout:
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(st) // after an error the client asks again
		return
	}
}

func (s *Server) file(w http.ResponseWriter, r *http.Request, name string) {
	f, err := os.Open(filepath.Join(s.dir, name))
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, io.ReadSeeker(f))
}
