// Package services is an application that represents a whole mesh to a data plane. It runs a control plane (package
// controlplane) with generated services, and changes their endpoints when a load asks for it. Each endpoint's address
// encodes the change that added it, so a connection shows whether the data plane has made the change.
package services

import (
	"context"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/envoyproxy/go-control-plane/pkg/resource/v3"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/limit"
	"tare/internal/lib/pace"
	"tare/internal/mesh/controlplane"
	"tare/internal/mesh/controlplane/ads"
)

// Options configures the mesh and its control plane.
type Options struct {
	Listen    string // host:port of the control plane; port 0 takes a free one
	Services  int
	Endpoints int // of each service
}

// Ready is the mesh's ready message.
type Ready struct {
	Address   string `json:"address"` // of the control plane, host:port
	Control   string `json:"control"` // where to ask for changes (Dial), host:port
	Services  int    `json:"services"`
	Endpoints int    `json:"endpoints"`
	// Port is the port of every endpoint if services use TCP; a listener accepts connections there. 0 means that services
	// use UDP, without listeners.
	Port uint16 `json:"port,omitempty"`
	// Addresses holds the address of each service if the mesh is a real one, in which endpoints identify themselves
	// (Answer). It is nil if the addresses of services and endpoints are computed from their numbers.
	Addresses []netip.AddrPort `json:"addresses,omitempty"`
	// Key is the secret that clients must send before they may ask for changes. It is empty, and not needed, unless others
	// can reach Control. Only the parent gets it, in the ready message.
	Key string `json:"key,omitempty"`
}

// Change is one change that was made. Times are nanoseconds by pace.Now (CLOCK_MONOTONIC).
type Change struct {
	Number int   `json:"change"`
	Set    int64 `json:"set_ns"` // when the control plane got the change
	// Sent is when the response to the data plane was encoded, and about to be handed to the transport; 0 if the
	// control plane does not report it.
	Sent int64 `json:"sent_ns"`
	// Accepted is the time from Set until a cluster's API server had accepted the change, in nanoseconds. It is 0 if the
	// change is not made in a cluster.
	Accepted int64 `json:"accepted_ns,omitempty"`
}

// answerSize is the length of an Answer, in bytes.
const answerSize = 8

// Answer returns what an endpoint of a mesh with Ready.Addresses writes to each connection before closing it: the
// number of the endpoint's service, and the number of the change that added the endpoint, each as 4 bytes, big-endian.
func Answer(service, change int) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, uint32(service)), uint32(change))
}

// ReadAnswer reads an Answer.
func ReadAnswer(r io.Reader) (service, change int, err error) {
	b := make([]byte, answerSize)
	if _, err := io.ReadFull(r, b); err != nil {
		return 0, 0, err
	}
	return int(binary.BigEndian.Uint32(b)), int(binary.BigEndian.Uint32(b[answerSize/2:])), nil
}

// All, in place of a service's number, asks for a change of every service at once.
const All = -1

// The events between Client and mesh. If the mesh has a Ready.Key, the client first sends "key" with it. The mesh then
// sends "ready" with a Ready. For each change, the client sends "change" with an ask, and the mesh answers with
// "changed" and a Change, or with an error.
const (
	keyEvent     = "key"
	changeEvent  = "change"
	changedEvent = "changed"
)

// ask is the content of a "change" event.
type ask struct {
	Service int `json:"service"` // or All
}

// tooLong is the time limit for sending a change. Without a connected data plane, a change is never sent.
const tooLong = 10 * time.Second

// plane is the running mesh.
type plane struct {
	o      Options
	ready  Ready
	server *controlplane.Server
	sent   chan int64 // when responses with endpoints were sent (Change.Sent)

	// Only the method change uses the fields below, once the mesh serves.
	now  controlplane.Resources
	live uint64 // bytes on the heap after the last collection
}

// Serve runs the mesh: it listens, calls ready, and serves until the context ends. Until it returns, garbage of the
// whole process is collected only before changes, or if the process uses more memory than muchGarbage.
func Serve(ctx context.Context, o Options, ready func(Ready) error) (err error) {
	// Garbage is collected only before changes (collect): a collection during a change would use the data plane's CPU.
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(muchGarbage)) // bounds garbage if no load asks for changes
	p := &plane{o: o, sent: make(chan int64, 64)}
	if p.now, err = resources(o.Services, o.Endpoints); err != nil {
		return err
	}
	listener, err := limit.TCP(ctx, o.Listen)
	if err != nil {
		return err
	}
	control, err := net.Listen("tcp", net.JoinHostPort(listener.Addr().(*net.TCPAddr).IP.String(), "0"))
	if err != nil {
		return errors.Join(fmt.Errorf("listening for changes: %w", err), listener.Close())
	}
	p.server = controlplane.New(controlplane.Options{Options: ads.Options{Stamped: true, OnSent: p.onSent}})
	if _, err := p.server.Set(ctx, p.now); err != nil {
		return errors.Join(err, listener.Close(), control.Close())
	}
	p.collect(0)
	p.ready = Ready{Address: listener.Addr().String(), Control: control.Addr().String(), Services: o.Services,
		Endpoints: o.Endpoints}
	end := func() {
		p.server.Close()
		_ = control.Close() // ServeChanges closes it as well
	}
	return role.Together(ctx, end, func(context.Context) error { return p.server.Serve(listener) },
		func(ctx context.Context) error { return ServeChanges(ctx, control, p.ready, Changes, p.change) },
		role.Says(ready, p.ready))
}

// onSent is called for every response that the control plane sends. The method change waits for those with endpoints.
func (p *plane) onSent(s controlplane.Sent) {
	if s.TypeURL != resource.EndpointType {
		return
	}
	select {
	case p.sent <- s.Time:
	default: // no change waits for it
	}
}

// ServeChanges serves clients (Dial) at l until ctx ends: it sends them the Ready, and makes the changes that they ask
// for, one at a time, by calling do. It closes l. The initial state counts as change 1, so the first change has number
// 2; the change after number most has number 1 again. If r has a Key, only clients that have it are served.
func ServeChanges(ctx context.Context, l net.Listener, r Ready, most int, do makeChange) error {
	made := &changes{mesh: r, key: r.Key, most: most, do: do, number: 1}
	made.mesh.Key = ""
	l = limit.AtMost(l, mostClients, func(int) {})
	stop := context.AfterFunc(ctx, func() { _ = l.Close() }) // accepted connections are closed below
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel() // closes the connections, for which all waits
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, unix.ECONNABORTED):
			continue
		case err != nil:
			return fmt.Errorf("accepting clients that ask for changes: %w", err)
		}
		all.Go(func() {
			stop := context.AfterFunc(ctx, func() { _ = c.Close() })
			defer stop()
			defer c.Close()
			said := &io.LimitedReader{R: c, N: math.MaxInt64}
			if conn := role.NewConn(said, c); made.admits(c, conn, said) {
				made.talk(ctx, conn)
			}
		})
	}
}

const (
	mostClients = 64               // open connections of clients
	keyWithin   = 10 * time.Second // from a client's connection to its key
	maxKey      = 1 << 10          // bytes of the message with the key
)

// admits waits for the client's key, and reports whether it is right. If no key is needed, admits returns true at once.
// conn reads from said. Until the client has sent the right key, admits limits what can be read.
func (c *changes) admits(client net.Conn, conn *role.Conn, said *io.LimitedReader) bool {
	if c.key == "" {
		return true
	}
	said.N = maxKey
	sent := ""
	if client.SetReadDeadline(time.Now().Add(keyWithin)) != nil || conn.Expect(keyEvent, &sent, nil) != nil ||
		subtle.ConstantTimeCompare([]byte(sent), []byte(c.key)) == 0 {
		return false
	}
	said.N = math.MaxInt64
	return client.SetReadDeadline(time.Time{}) == nil
}

// changes makes the changes that the clients of a mesh ask for.
type changes struct {
	mesh Ready
	key  string // the key that clients must send; empty: no key is needed
	most int    // changes have numbers from 1 to most
	do   makeChange

	mu     sync.Mutex // held during a change, so that changes do not overlap
	number int        // the number of the last change; the initial state has number 1
}

// makeChange makes a change with the given number: it replaces the endpoints of each of the services, which are counted
// from 0. The number of the returned Change is not used.
type makeChange func(ctx context.Context, number int, services []int) (Change, error)

// talk makes the changes that a client asks for, until it disconnects.
func (c *changes) talk(ctx context.Context, conn *role.Conn) {
	if conn.Send(role.Ready, c.mesh) != nil {
		return
	}
	for {
		var a ask
		if conn.Expect(changeEvent, &a, nil) != nil {
			return
		}
		made, err := c.one(ctx, a.Service)
		if err == nil {
			err = conn.Send(changedEvent, made)
		} else {
			err = conn.Fail(err)
		}
		if err != nil {
			return
		}
	}
}

// one makes a change of one service, or of All.
func (c *changes) one(ctx context.Context, service int) (Change, error) {
	of := []int{service}
	switch {
	case service == All:
		of = nil
		for i := range c.mesh.Services {
			of = append(of, i)
		}
	case service < 0 || service >= c.mesh.Services:
		return Change{}, fault.New(fault.Usage, "service", "", "there is no service %d; the mesh has %d", service,
			c.mesh.Services)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.number = c.number%c.most + 1
	made, err := c.do(ctx, c.number, of)
	made.Number = c.number
	return made, err
}

// change makes one change, and waits until the control plane has sent a response with endpoints.
func (p *plane) change(ctx context.Context, number int, services []int) (c Change, err error) {
	p.collect(enoughGarbage)
	next := p.now
	next.Endpoints = slices.Clone(p.now.Endpoints)
	for _, i := range services {
		next.Endpoints[i] = assignment(i, number, p.o.Endpoints)
	}
	for len(p.sent) > 0 {
		<-p.sent
	}
	c.Set = pace.Now()
	if _, err := p.server.Set(ctx, next); err != nil {
		return c, err
	}
	p.now = next
	timer := time.NewTimer(tooLong)
	defer timer.Stop()
	select {
	case c.Sent = <-p.sent:
		return c, nil
	case <-ctx.Done():
		return c, ctx.Err()
	case <-timer.C:
		return c, fault.New(fault.Machine, "", "start a data plane that gets its configuration here",
			"change %d was not sent to any data plane within %v", number, tooLong)
	}
}

// enoughGarbage is the amount of garbage, in bytes, from which it is collected before a change.
const enoughGarbage = 64 << 20

// muchGarbage is the memory of the process, in bytes, above which garbage is collected at any time.
const muchGarbage = 2 << 30

// collect collects garbage if at least enough bytes of it have accumulated. It runs before a change, because the data
// plane works after the change.
func (p *plane) collect(enough uint64) {
	var m runtime.MemStats
	if runtime.ReadMemStats(&m); m.HeapAlloc < p.live+enough {
		return
	}
	runtime.GC()
	runtime.ReadMemStats(&m)
	p.live = m.HeapAlloc
}

// Client asks a mesh for changes. It must not be used concurrently.
type Client struct {
	Mesh Ready // the mesh's ready message

	conn net.Conn
	role *role.Conn
}

// Dial connects to a mesh at its Ready.Control, with its Ready.Key. The caller must close the client.
func Dial(ctx context.Context, address, key string) (*Client, error) {
	c, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, address, "start one with 'tare app mesh', which prints the address",
			"there is no mesh to ask for changes")
	}
	m := &Client{conn: c, role: role.NewConn(c, c)}
	if key != "" {
		err = m.role.Send(keyEvent, key)
	}
	if err == nil {
		err = m.role.Expect(role.Ready, &m.Mesh, nil)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("connecting to the mesh at %s: %w", address, err), c.Close())
	}
	return m, nil
}

// Close disconnects.
func (c *Client) Close() error { return c.conn.Close() }

// Ask asks for a change of one service, or of All. It does not wait for the answer, which Changed returns.
func (c *Client) Ask(service int) error { return c.role.Send(changeEvent, ask{service}) }

// Refused returns the error with which the mesh answers Ask, or nil if no such answer comes within the given time. The
// client cannot be used after Refused, because its read deadline has passed.
func (c *Client) Refused(within time.Duration) error {
	if err := c.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := c.Changed(); !errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	return nil
}

// Changed waits for the answer to Ask. If the mesh could not make the change, it returns the mesh's error.
func (c *Client) Changed() (made Change, err error) {
	err = c.role.Expect(changedEvent, &made, nil)
	return made, err
}
