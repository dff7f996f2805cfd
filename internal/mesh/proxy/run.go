// Package proxy is a small sidecar proxy: HTTP by net/http's ReverseProxy, TLS by crypto/tls, and its configuration
// from a control plane by xDS or from a file.
package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"runtime"
	"runtime/debug"
	"sync"
	"time"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/limit"
	"tare/internal/mesh/controlplane/injection/probes"
	"tare/internal/mesh/proxy/dataplane"
)

// Ready is the data of the ready message.
type Ready struct {
	Workers   int                   `json:"workers"`
	Config    string                `json:"config,omitempty"`
	XDS       string                `json:"xds,omitempty"`
	Listeners []dataplane.Listening `json:"listeners"`
}

// firstWait is how long the proxy waits for its first listeners from a control plane before it says that it is ready
// without any.
const firstWait = 10 * time.Second

// answerProbes answers probes at an address until it is ended.
func answerProbes(address string, by http.Handler) (end func(), err error) {
	l, err := limit.TCP(context.Background(), address)
	if err != nil {
		return nil, fmt.Errorf("probes cannot be answered: %w", err)
	}
	s := &http.Server{Handler: by, ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: log.New(io.Discard, "", 0)} // what clients do wrong is theirs
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.Serve(l) // closed
	}()
	return func() {
		_ = s.Close()
		<-ended
	}, nil
}

// StatsEvent asks for the proxy's counters; the answer is the same event with a dataplane.Stats.
const StatsEvent = "stats"

// Run is the proxy as a process: it listens, says ready, and ends with ctx or with conn's input, once requests under
// way have ended. From a control plane it is ready once its first listeners listen.
func Run(ctx context.Context, o Options, conn *role.Conn) (err error) {
	if (o.Config == "") == (o.XDS == "") {
		return fault.New(
			fault.Usage,
			"--config",
			"give one of --config and --xds",
			"one place is needed from which the configuration comes",
		)
	}
	runtime.GOMAXPROCS(max(1, o.Workers))
	if o.Garbage > 0 {
		debug.SetGCPercent(o.Garbage)
	}
	logs := newLogs(conn)
	defer logs.close()
	plane := dataplane.New(logs.say)
	source := newSource(plane, o.Config != "")
	inner, stop := context.WithCancel(ctx)
	var client *planeClient
	var left chan error // what the client returned
	defer func() {
		stop()
		if left != nil {
			err = errors.Join(err, <-left)
		}
		source.close()
		late, cancel := context.WithTimeout(context.Background(), o.Drain)
		defer cancel()
		err = errors.Join(err, plane.Close(late))
	}()
	listening := make(chan struct{})
	if o.Config == "" {
		if client, err = newPlaneClient(o, source, logs, listening); err != nil {
			return err
		}
	}
	// Before the listeners: who sees one of them accept may ask for the counters at once.
	if o.Probes != "" {
		end, err := answerProbes(o.Probes, probes.New(o.Table, o.ProbeHost))
		if err != nil {
			return err
		}
		defer end()
	}
	if o.Stats != "" {
		end, err := tellAt(o.Stats, func() any { return ownWord{plane.Stats(), client.stats()} })
		if err != nil {
			return err
		}
		defer end()
	}
	if client == nil {
		if err := source.readFile(inner, o.Config); err != nil {
			return err
		}
		close(listening)
	} else {
		left = make(chan error, 1)
		go func() { left <- client.Run(inner) }()
	}
	if err := giveUpRoot(o.UID, o.GID); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- heed(conn, plane) }()
	ready := listening
	wait := time.NewTimer(firstWait)
	defer wait.Stop()
	say := func() error {
		ready = nil
		return conn.Send(
			role.Ready,
			Ready{Workers: runtime.GOMAXPROCS(0), Config: o.Config, XDS: o.XDS, Listeners: plane.Listening()},
		)
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-ended:
			return err
		case err := <-left:
			left = nil
			if ctx.Err() == nil && err == nil {
				err = errors.New("the client of the control plane has ended")
			}
			return err
		case <-ready:
			if err := say(); err != nil {
				return err
			}
		case <-wait.C:
			if ready == nil {
				continue
			}
			if err := say(); err != nil {
				return err
			}
		}
	}
}

// heed answers the parent until it closes.
func heed(conn *role.Conn, plane *dataplane.Proxy) error {
	for {
		m, err := conn.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if m.Event != StatsEvent {
			continue
		}
		if err := conn.Send(StatsEvent, plane.Stats()); err != nil {
			return err
		}
	}
}

// logs sends lines to the parent, which need not read for the proxy to go on.
type logs struct {
	lines chan string
	ended chan struct{}
	gone  sync.WaitGroup
}

func newLogs(conn *role.Conn) *logs {
	l := &logs{lines: make(chan string, 64), ended: make(chan struct{})}
	l.gone.Go(func() {
		for {
			select {
			case line := <-l.lines:
				if conn.Send(role.Log, line) != nil {
					return
				}
			case <-l.ended:
				return
			}
		}
	})
	return l
}

func (l *logs) say(line string) {
	select {
	case l.lines <- line:
	default:
	}
}

func (l *logs) close() {
	close(l.ended)
	l.gone.Wait()
}
