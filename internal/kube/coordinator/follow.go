package coordinator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"tare/internal/experiment/record"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/text"
)

const (
	answerWithin = 2 * newsWithin   // for one request: a connection that is silent for longer is dead
	again        = time.Second      // between attempts
	pause        = time.Second / 20 // after each answer, so that answers without news cost little
	maxStatus    = 8 * maxLog       // bytes, as JSON
	maxRun       = 16 << 20         // bytes of run.json, as in package record
	chunk        = 1 << 20          // bytes of trials in one request
	maxPrinted   = 64 << 20         // bytes of progress
	silentAfter  = 3 * time.Second  // after this time the user is told that the coordinator does not answer
)

// Client sends requests to a coordinator.
type Client struct{ http http.Client }

// NewClient returns a client of the coordinator to which dial connects.
func NewClient(dial func(context.Context) (net.Conn, error)) *Client {
	return &Client{http.Client{
		Transport: &http.Transport{
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Close closes idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// ask sends a request and returns the body of the answer. It fails if the body has more bytes than most. The argument
// bytes is the requested range, such as 0-99; if it is empty, ask requests everything.
func (c *Client) ask(ctx context.Context, method, path, bytes string, most int64) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, answerWithin)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, method, "http://coordinator/"+path, nil)
	if err != nil {
		return nil, err
	}
	// All requests are idempotent. This key makes the transport repeat a request if its connection turns out to be dead,
	// and is not sent (net/http.Transport).
	r.Header["Idempotency-Key"] = nil
	want := http.StatusOK
	switch {
	case bytes != "":
		r.Header.Set("Range", "bytes="+bytes)
		want = http.StatusPartialContent
	case method == http.MethodPost && path == "fetched":
		want = http.StatusNoContent
	}
	answer, err := c.http.Do(r)
	if err != nil {
		if of, is := errors.AsType[*url.Error](err); is {
			err = of.Err
		}
		return nil, err
	}
	defer answer.Body.Close()
	data, err := io.ReadAll(io.LimitReader(answer.Body, most+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("reading its answer: %w", err)
	case answer.StatusCode != want:
		return nil, fmt.Errorf("it answers %s: %s", answer.Status, text.ClipLine(string(data), 200))
	case int64(len(data)) > most:
		return nil, fmt.Errorf("it answers more than %d bytes", most)
	}
	return data, nil
}

// Status returns the progress of the run, as soon as there is more than the caller has, or after newsWithin. log is the
// offset up to which the caller has the output, and trials is the size of its copy of trials.jsonl, in bytes.
func (c *Client) Status(ctx context.Context, log, trials int64) (s Status, err error) {
	data, err := c.ask(ctx, http.MethodGet, fmt.Sprintf("status?log=%d&trials=%d", log, trials), "", maxStatus)
	if err == nil {
		err = json.Unmarshal(data, &s)
	}
	return s, err
}

// Interrupt asks the coordinator to end the run. It returns when the coordinator has received the request.
func (c *Client) Interrupt(ctx context.Context) error {
	_, err := c.ask(ctx, http.MethodPost, "interrupt", "", 0)
	return err
}

// Fetched tells the coordinator that it is no longer needed.
func (c *Client) Fetched(ctx context.Context) error {
	_, err := c.ask(ctx, http.MethodPost, "fetched", "", 0)
	return err
}

// Followed follows a run: it copies the run's directory and prints its progress.
type Followed struct {
	Client *Client
	Open   func(record.Run) (*record.Writer, error) // creates the copy of the run directory, or opens an unfinished copy
	Gone   func(context.Context) (lost, err error)  // lost: why the coordinator will never answer; nil if it still may
	Log    io.Writer

	Copy    *record.Writer // nil until the run directory exists
	log     int64          // the offset of the output that was not printed yet
	printed int            // bytes
}

// Follow prints the progress of a run and copies its directory until the run is over. ended is the error with which
// the run ended, or reports that the coordinator is lost. err reports why the run could not be followed to its end,
// such as the end of the context. The caller must close Copy.
func (f *Followed) Follow(ctx context.Context) (ended, err error) {
	silent, said, answered := time.Time{}, false, false
	for {
		over, end, err := f.step(ctx)
		local, isLocal := errors.AsType[*localError](err)
		switch {
		case over:
			return end, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case isLocal:
			return nil, local.error
		case err == nil:
			if said {
				fmt.Fprintln(f.Log, "tare: the coordinator answers again")
			}
			silent, said, answered = time.Time{}, false, true
			if err := pace.Sleep(ctx, pause); err != nil {
				return nil, context.Cause(ctx)
			}
			continue
		}
		if lost, err := f.Gone(ctx); (lost != nil || err != nil) && ctx.Err() == nil {
			return lost, err
		}
		if silent.IsZero() {
			silent = time.Now()
		}
		if answered && !said && time.Since(silent) > silentAfter {
			said = true
			fmt.Fprintf(f.Log, "tare: the coordinator does not answer; retrying: %s\n",
				text.Line(err.Error()))
		}
		if err := pace.Sleep(ctx, again); err != nil {
			return nil, context.Cause(ctx)
		}
	}
}

// localError is an error of the copy, not of the coordinator.
type localError struct{ error }

func local(err error) error {
	if err == nil {
		return nil
	}
	return &localError{err}
}

// step asks once for the progress of the run, and copies what is new.
func (f *Followed) step(ctx context.Context) (over bool, end, err error) {
	size := int64(0)
	if f.Copy != nil {
		size = f.Copy.Size()
	}
	s, err := f.Client.Status(ctx, f.log, size)
	if err != nil {
		return false, nil, err
	}
	if s.Begun {
		if err := f.copy(ctx, &s); err != nil {
			return false, nil, err
		}
	}
	f.print(text.Lines(s.Log))
	f.log = s.Next
	if s.End == nil {
		return false, nil, nil
	}
	return true, s.End.Err(), nil
}

// print prints what the coordinator has logged, up to maxPrinted. Errors are ignored: results are copied even if the
// terminal is gone.
func (f *Followed) print(lines string) {
	left := maxPrinted - f.printed
	if left <= 0 || lines == "" {
		return
	}
	f.printed += len(lines)
	_, _ = io.WriteString(f.Log, lines[:min(left, len(lines))])
	if len(lines) >= left {
		fmt.Fprintf(f.Log, "\ntare: the coordinator logged %d MiB: no more is printed\n", maxPrinted>>20)
	}
}

// copy brings the copy up to the state of the run directory.
func (f *Followed) copy(ctx context.Context, s *Status) error {
	if f.Copy == nil || s.End != nil || s.Trials > f.Copy.Size() {
		data, err := f.Client.ask(ctx, http.MethodGet, record.RunFile, "", maxRun)
		if err != nil {
			return err
		}
		run, err := record.DecodeRun(data)
		if err != nil {
			return local(fault.Wrap(err, fault.Invalid, record.RunFile, "",
				"the coordinator's record of the run is invalid"))
		}
		if f.Copy == nil {
			if f.Copy, err = f.Open(run); err != nil {
				return local(err)
			}
		}
		if err := f.Copy.WriteFile(record.RunFile, data); err != nil {
			return local(err)
		}
	}
	for {
		from := f.Copy.Size()
		more := min(s.Trials-from, chunk)
		if more <= 0 {
			return nil
		}
		bytes := strconv.FormatInt(from, 10) + "-" + strconv.FormatInt(from+more-1, 10)
		data, err := f.Client.ask(ctx, http.MethodGet, record.TrialsFile, bytes, more)
		if err != nil {
			return err
		}
		if int64(len(data)) < more {
			return fmt.Errorf("it answers %d bytes of %d", len(data), more)
		}
		if err := f.Copy.Copy(data); err != nil {
			return local(err)
		}
	}
}
