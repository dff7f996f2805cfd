// Package part runs an application or a load of a trial in a pod, and implements both ends of its connection to the
// trial. The pod's process listens (Serve). The process that runs the trial reaches it through the API server, as
// kubectl port-forward does, or at the pod's address, and sends what to play (Meet). From then on both sides speak the
// protocol of package role.
//
//	trial: {"event":"play","data":{"version":"...","args":["load","http","--url=..."]}}
//	part:  {"event":"hello","data":{"wall_ns":...,"monotonic_ns":...}}     or an error
//
// The connection is secured with a secret that both ends have (Secret). Neither end speaks with anything else, such as
// another container of the pod, which can connect to the port, or listen on it before the part does.
package part

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

// Command is the hidden command of the tare binary that runs as a part in a pod.
const Command = "_part"

// TokenVariable and PodVariable are the environment variables that hold a part's Secret. Port is the TCP port on which
// the part's process listens: on the loopback interface of its pod, or on all interfaces if OpenVariable is set.
const (
	TokenVariable = "TARE_PART_TOKEN"
	PodVariable   = "TARE_PART_POD"
	OpenVariable  = "TARE_PART_OPEN"
	Port          = 9634
)

const (
	playEvent  = "play"
	helloEvent = "hello"

	helloWithin = 10 * time.Second // from the connection to the hello
	atATime     = 256              // connections whose peers have not yet proved that they have the secret
	maxPlay     = 64 << 10         // bytes of the first message
	dialWithin  = 2 * time.Second  // limit for one attempt to connect to the address that a load needs
	reachWithin = 20 * time.Second // limit for all attempts together
	reachPause  = 50 * time.Millisecond
	maxSaid     = 32 << 20 // bytes that either side may send in all; the histograms of a load take about 100 KB
)

// play is the message that starts a part.
type play struct {
	Version string   `json:"version"`         // tare's version, with its build; both sides must have the same
	Reach   string   `json:"reach,omitempty"` // an address that must accept connections first; empty: none
	Args    []string `json:"args"`            // as for kind.Play
}

// To describes the work of a part.
type To struct {
	Reach string   // for loads: the address that must accept connections first, because routes to it take time
	Args  []string // what to play, as for kind.Play
}

// Clock holds the readings of a part's clocks at one moment, in ns: the time of day, CLOCK_MONOTONIC, which its
// schedule follows, and how long its machine had been suspended (role.Schedule).
type Clock struct {
	Wall      int64 `json:"wall_ns"`
	Monotonic int64 `json:"monotonic_ns"`
	Suspended int64 `json:"suspended_ns"`
}

// MonotonicAt converts a time of day on the part's machine to the part's CLOCK_MONOTONIC.
func (c Clock) MonotonicAt(wall time.Time) int64 { return wall.UnixNano() - c.Wall + c.Monotonic }

// Player plays what args name over conn, as kind.Play does.
type Player func(ctx context.Context, conn *role.Conn, args []string) error

// Serve waits on l for a peer that has the secret, and plays what it asks for. It returns when that has ended, or with
// an error if no such peer connects within patience.
func Serve(ctx context.Context, l net.Listener, s Secret, version string, patience time.Duration, player Player) error {
	if s.Token == "" {
		return fault.New(fault.Usage, TokenVariable, "kubectl tare run starts this command", "there is no token")
	}
	config, err := s.config()
	if err != nil {
		return err
	}
	timer := time.AfterFunc(patience, func() { l.Close() })
	defer timer.Stop()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	peers, ended := make(chan peer), make(chan error, 1)
	go func() { ended <- accept(waiting, l, config, version, peers) }()
	select {
	case p := <-peers:
		timer.Stop()
		stop()
		l.Close()
		defer p.c.Close()
		if err = reach(ctx, p.to.Reach); err == nil {
			err = player(ctx, p.conn, p.to.Args)
		}
		if err != nil {
			_ = p.conn.Fail(err) // the peer may be gone
		}
		return err
	case err := <-ended:
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, net.ErrClosed):
			return fault.New(fault.Machine, "", "", "no instructions arrived within %v", patience)
		}
		return fmt.Errorf("waiting for a connection: %w", err)
	}
}

// peer is a connection whose other end has proved that it has the secret, and has sent what to play.
type peer struct {
	c    *secured
	conn *role.Conn
	to   To
}

// accept passes each peer that has the secret to the channel peers, until ctx ends or l is closed. Any process that
// reaches the port may connect and say nothing, so the right peer does not wait for the others.
func accept(ctx context.Context, l net.Listener, config *tls.Config, version string, peers chan<- peer) error {
	slots := make(chan struct{}, atATime)
	for {
		tcp, err := l.Accept()
		if err != nil {
			return err
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			c := &secured{tls.Server(tcp, config)}
			if conn, to, err := meet(c, version); err == nil { // else a stranger, or another build of tare
				select {
				case peers <- peer{c, conn, to}:
					return
				case <-ctx.Done():
				}
			}
			c.Close()
		}()
	}
}

// meet checks the version of a peer that has the secret, and reads what to play.
func meet(c *secured, version string) (conn *role.Conn, to To, err error) {
	if err := c.SetDeadline(time.Now().Add(helloWithin)); err != nil {
		return nil, to, err
	}
	if err := c.Handshake(); err != nil {
		return nil, to, err
	}
	first := &io.LimitedReader{R: c, N: maxPlay}
	conn = role.NewConn(first, c)
	var p play
	if err := conn.Expect(playEvent, &p, nil); err != nil {
		return nil, to, err
	}
	if p.Version != version {
		err := fault.New(fault.Usage, "", "give --image of the same build as kubectl-tare",
			"the image has tare %s, and kubectl-tare is %s", version, p.Version)
		return nil, to, errors.Join(err, conn.Fail(err))
	}
	first.N = maxSaid
	if err := c.SetDeadline(time.Time{}); err != nil {
		return nil, to, err
	}
	return conn, To{p.Reach, p.Args}, conn.Send(helloEvent, Clock{time.Now().UnixNano(), pace.Now(), pace.Suspended()})
}

// reach waits until something listens at an address.
func reach(ctx context.Context, address string) error {
	if address == "" {
		return nil
	}
	begin, dialer := time.Now(), net.Dialer{Timeout: dialWithin}
	for {
		c, err := dialer.DialContext(ctx, "tcp", address)
		switch {
		case err == nil:
			return c.Close()
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case time.Since(begin) > reachWithin:
			return fault.Wrap(err, fault.Machine, address, "see whether a network policy or a mesh is between",
				"no process could be reached there within %v", reachWithin)
		}
		if err := pace.Sleep(ctx, reachPause); err != nil {
			return err
		}
	}
}

// Meet asks the part at the other end of a stream to play something, and returns its session and its clock. onEnd is
// as in role.Over. The stream is closed with the session, or on an error.
func Meet(
	ctx context.Context, name string, stream net.Conn, s Secret, version string, to To, onEnd func(error),
) (*role.Remote, Clock, error) {
	var clock Clock
	config, err := s.config()
	if err != nil {
		return nil, clock, errors.Join(err, stream.Close())
	}
	ctx, cancel := context.WithTimeoutCause(ctx, helloWithin, fmt.Errorf("no answer within %v", helloWithin))
	defer cancel()
	stop := context.AfterFunc(ctx, func() { stream.Close() })
	defer stop()
	c := &secured{tls.Client(stream, config)}
	conn := role.NewConn(io.LimitReader(c, maxSaid), c)
	if err = c.Handshake(); err == nil {
		err = conn.Send(playEvent, play{Version: version, Reach: to.Reach, Args: to.Args})
	}
	if err == nil {
		err = conn.Expect(helloEvent, &clock, nil)
	}
	if err != nil {
		stream.Close()
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return nil, clock, fmt.Errorf("speaking with %s: %w", name, err)
	}
	return role.Over(name, conn, c, onEnd), clock, nil
}
