package dataplane

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// restTimeout is how long a client has to send what is left of a body that nobody will read, before its connection is
// closed.
const restTimeout = time.Second

// errStalled is where a client sends nothing of a body for as long as a request may stand still.
var errStalled = errors.New("the client has stalled in the body of its request")

// upload is the body of a request as its client sends it. It ends with errStalled where neither anything of it nor of
// the response has moved for the time that a request may stand still, which in Envoy is stream_idle_timeout too.
//
// Whoever sends it on may still be reading when its exchange already serves another request, so each request has one of
// its own.
type upload struct {
	io.ReadCloser
	client *http.ResponseController
	idle   time.Duration // 0: it may stand still for ever
	began  time.Time
	moved  atomic.Int64 // when something moved last, in nanoseconds since began

	mu      sync.Mutex
	watch   *time.Timer // nil: idle is 0
	ended   bool        // nothing more of it is waited for
	whole   bool        // it came to its end
	stalled bool
}

func newUpload(client *http.ResponseController, idle time.Duration) *upload {
	u := &upload{client: client, idle: idle, began: time.Now()}
	if idle > 0 {
		u.mu.Lock() // the watch may look before it is set
		defer u.mu.Unlock()
		u.watch = time.AfterFunc(idle, u.look)
	}
	return u
}

// touch says that something has moved.
func (u *upload) touch() { u.moved.Store(int64(time.Since(u.began))) }

// last is when something moved last.
func (u *upload) last() time.Time { return u.began.Add(time.Duration(u.moved.Load())) }

// look ends the body if it has stalled, and else looks again when it may have.
func (u *upload) look() {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.ended {
		return
	}
	if left := u.idle - time.Since(u.last()); left > 0 {
		u.watch.Reset(left)
		return
	}
	u.stalled = true
	_ = u.client.SetReadDeadline(time.Now()) // ends a read; of net/http's two kinds of connections it never fails
}

// Read reads what the client sends.
func (u *upload) Read(b []byte) (int, error) {
	n, err := u.ReadCloser.Read(b)
	if n > 0 {
		u.touch()
	}
	if err != nil && u.end(err == io.EOF) {
		err = errStalled
	}
	return n, err
}

// end says that nothing more is waited for, because all is there or because nobody wants the rest. It returns whether
// the body has stalled before.
func (u *upload) end(whole bool) (stalled bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.whole = u.whole || whole
	u.endLocked()
	return u.stalled
}

func (u *upload) endLocked() {
	u.ended = true
	if u.watch != nil {
		u.watch.Stop()
	}
}

// open says whether more of it is waited for.
func (u *upload) open() bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return !u.ended
}

// abandon is called before a request is answered without its endpoint. Unless its body came whole, it ends the client's
// connection of HTTP/1.1 after that: where the next request would begin is not known. It returns whether the body has
// stalled.
func (u *upload) abandon(w http.ResponseWriter, r *http.Request) (stalled bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.endLocked()
	if !u.whole && r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close")
		_ = u.client.SetReadDeadline(time.Now().Add(restTimeout))
	}
	return u.stalled
}

// receive reads a small body whole, so that a client that takes its time has no connection to an endpoint meanwhile.
func (u *upload) receive(r *http.Request) error {
	if r.ContentLength <= 0 || r.ContentLength > smallBody {
		return nil
	}
	// Room grows as the bytes come: a client that only promises many takes little.
	b := bytes.NewBuffer(make([]byte, 0, min(r.ContentLength, linkBuffer)+bytes.MinRead))
	n, err := b.ReadFrom(io.LimitReader(u, r.ContentLength))
	if err == nil && n < r.ContentLength {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return err
	}
	u.end(true)
	r.Body = io.NopCloser(b)
	return nil
}

// touched is the body of a response, by which the request's own body counts as moving.
type touched struct {
	io.ReadCloser
	upload *upload
}

// Read reads what the endpoint sends.
func (t touched) Read(b []byte) (int, error) {
	n, err := t.ReadCloser.Read(b)
	if n > 0 {
		t.upload.touch()
	}
	return n, err
}
