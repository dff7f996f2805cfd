package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"tare/internal/fault"
	"tare/internal/role"
)

// Ready is the data of the ready message.
type Ready struct {
	Address   string `json:"address"` // host:port
	Config    string `json:"config,omitempty"`
	Clusters  int    `json:"clusters"`
	Endpoints int    `json:"endpoints"`
	Listeners int    `json:"listeners"`
}

// The events of a control plane besides those of every role. The parent sends "set" with a Config as data, and the
// answer is "set" with a Done, or an error message; the configuration is then what the parent said, until the file
// changes.
const SetEvent = "set"

// Done is the answer to "set".
type Done struct {
	Time int64 `json:"time_ns"` // see Server.Set
}

// GCPercent is how much garbage the process of a control plane lets gather before it is collected, in per cent of what
// lives. Collecting takes every CPU that is idle, for milliseconds: on a small machine that would show as a slow data
// plane.
const GCPercent = 400

// poll is how often the file is looked at.
const poll = 100 * time.Millisecond

// Run is a control plane as a process: it listens, says ready, follows its file, and ends with ctx or with conn's
// input. A file that is wrong is logged and changes nothing, but for the first time, when it is an error. What data
// planes refuse is logged. file may be empty: then only "set" says anything.
func Run(ctx context.Context, file, listen string, conn *role.Conn) (err error) {
	debug.SetGCPercent(GCPercent)
	var r Resources
	seen := stampOf(file) // before reading, so that a change in between is seen
	if file != "" {
		if r, err = ReadFile(file); err != nil {
			return err
		}
	}
	l, err := net.Listen("tcp", listen)
	if err != nil {
		return fault.Wrap(err, fault.Usage, listen, "name another address with --listen, or port 0 for any", "the control plane cannot listen")
	}
	logs := make(chan string, 64) // a reader that does not read must not hold the streams
	s := New(Options{OnAnswer: func(a Answer) {
		if a.Refused != "" {
			kind := a.TypeURL[strings.LastIndexByte(a.TypeURL, '.')+1:]
			select {
			case logs <- fmt.Sprintf("%s refuses %s: %s", a.Node, kind, a.Refused):
			default:
			}
		}
	}})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Close()
		err = errors.Join(err, <-served)
	}()
	if _, err := s.Set(ctx, r); err != nil {
		return fault.Wrap(err, fault.Usage, file, "", "the configuration is wrong")
	}
	if err := conn.Send(role.Ready, Ready{l.Addr().String(), file, len(r.Clusters), len(r.Endpoints), len(r.Listeners)}); err != nil {
		return err
	}
	messages, ended := make(chan role.Message), make(chan error, 1)
	go func() { ended <- messagesOf(ctx, conn, messages) }()
	clock := time.NewTicker(poll)
	defer clock.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case line := <-logs:
			if err := conn.Send(role.Log, line); err != nil {
				return err
			}
		case m := <-messages:
			if err := s.said(ctx, m, conn); err != nil {
				return err
			}
		case <-clock.C:
			if now := stampOf(file); now != seen {
				seen = now
				if err := conn.Send(role.Log, s.reload(ctx, file)); err != nil {
					return err
				}
			}
		}
	}
}

// messagesOf hands on what the parent says until it has nothing more to say.
func messagesOf(ctx context.Context, conn *role.Conn, to chan<- role.Message) error {
	for {
		m, err := conn.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		select {
		case to <- m:
		case <-ctx.Done():
			return nil
		}
	}
}

func (s *Server) said(ctx context.Context, m role.Message, conn *role.Conn) error {
	if m.Event != SetEvent {
		return nil
	}
	var c Config
	err := json.Unmarshal(m.Data, &c)
	var r Resources
	if err == nil {
		r, err = c.Resolve()
	}
	var d Done
	if err == nil {
		d.Time, err = s.Set(ctx, r)
	}
	if err != nil {
		return conn.Fail(fault.Wrap(err, fault.Usage, "set", example, "the configuration is wrong"))
	}
	return conn.Send(SetEvent, d)
}

// reload applies the file again, and says how that went.
func (s *Server) reload(ctx context.Context, file string) string {
	r, err := ReadFile(file)
	if err == nil {
		_, err = s.Set(ctx, r)
	}
	if err != nil {
		return fmt.Sprintf("the configuration stays as it was: %s", err)
	}
	return fmt.Sprintf("%s: %d clusters, %d endpoint assignments, %d listeners", file, len(r.Clusters), len(r.Endpoints), len(r.Listeners))
}

// stamp is by what a change of a file is seen.
type stamp struct {
	size, modified int64
	id             uint64
}

func stampOf(file string) stamp {
	info, err := os.Stat(file)
	if err != nil {
		return stamp{}
	}
	return stamp{info.Size(), info.ModTime().UnixNano(), inode(info)}
}
