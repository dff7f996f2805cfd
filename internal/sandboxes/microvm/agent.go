package microvm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Types of messages on the control port, as in c/init.c.
const (
	msgPlan   = 1
	msgSpawn  = 2
	msgGo     = 3
	msgSignal = 4
	msgHello  = 100
	msgResult = 101
	msgExit   = 102
)

const (
	agentVersion = 1
	// planMax is the guest's limit for the size of a message, in bytes (MESSAGE_MAX in c/init.c).
	planMax = 4 << 20
	// frameMax limits the size in bytes of a stream's frames and of messages that come from the guest, which may be
	// compromised. The guest's first process sends frames of at most 32764 bytes.
	frameMax = 64 << 10
)

// agent communicates with the guest's first process through the control port.
type agent struct {
	conn net.Conn
	ask  sync.Mutex // one request at a time

	results chan [2]int32 // answers to requests: index and errno
	exit    chan uint32   // receives the wait status of the process that spawn created, once
	gone    chan struct{} // closed when no more messages can arrive
	why     error         // why no more messages can arrive; set before gone is closed
}

// errGone means that the virtual machine has ended.
var errGone = errors.New("the virtual machine has ended")

// newAgent waits for the first message of the guest's first process, until the deadline. From then on the agent reads
// conn, until the caller closes it.
func newAgent(conn net.Conn, deadline time.Time) (*agent, error) {
	if err := conn.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	kind, body, err := readMessage(conn)
	if err != nil {
		return nil, fmt.Errorf("waiting for the guest: %w", err)
	}
	if kind != msgHello || len(body) != 4 || binary.LittleEndian.Uint32(body) != agentVersion {
		return nil, fmt.Errorf("the guest said %d %x instead of hello", kind, body)
	}
	if err := conn.SetReadDeadline(time.Time{}); err != nil {
		return nil, err
	}
	a := &agent{conn: conn, results: make(chan [2]int32, 1), exit: make(chan uint32, 1), gone: make(chan struct{})}
	go a.receive() // ends with the connection
	return a, nil
}

func readMessage(r io.Reader) (kind uint32, body []byte, err error) {
	var h [8]byte
	if _, err := io.ReadFull(r, h[:]); err != nil {
		return 0, nil, err
	}
	size := binary.LittleEndian.Uint32(h[4:])
	if size > frameMax {
		return 0, nil, fmt.Errorf("the guest sent a message of %d bytes", size)
	}
	body = make([]byte, size)
	_, err = io.ReadFull(r, body)
	return binary.LittleEndian.Uint32(h[:]), body, err
}

func (a *agent) receive() {
	defer close(a.gone)
	for {
		kind, body, err := readMessage(a.conn)
		le := binary.LittleEndian
		switch {
		case err != nil:
			a.why = err
			return
		case kind == msgResult && len(body) == 8:
			select {
			case a.results <- [2]int32{int32(le.Uint32(body)), int32(le.Uint32(body[4:]))}:
			default:
				a.why = errors.New("the guest sent an unexpected answer")
				return
			}
		case kind == msgExit && len(body) == 4:
			select {
			case a.exit <- le.Uint32(body):
			default:
				a.why = errors.New("the guest's process ended twice")
				return
			}
		default:
			a.why = fmt.Errorf("the guest sent a message of kind %d with %d bytes", kind, len(body))
			return
		}
	}
}

func (a *agent) send(kind uint32, body []byte) error {
	if len(body) > planMax {
		return fmt.Errorf("%d bytes are too much for the guest: %d at most", len(body), planMax)
	}
	b := make([]byte, 8, 8+len(body))
	binary.LittleEndian.PutUint32(b, kind)
	binary.LittleEndian.PutUint32(b[4:], uint32(len(body)))
	_, err := a.conn.Write(append(b, body...))
	return err
}

// request sends a message and returns the guest's answer to it.
func (a *agent) request(kind uint32, body []byte) (index, errno int32, err error) {
	a.ask.Lock()
	defer a.ask.Unlock()
	if err := a.send(kind, body); err != nil {
		return 0, 0, fmt.Errorf("%w: %w", errGone, err)
	}
	late := time.NewTimer(agentPatience)
	defer late.Stop()
	select {
	case r := <-a.results:
		return r[0], r[1], nil
	case <-a.gone:
		return 0, 0, fmt.Errorf("%w: %w", errGone, a.why)
	case <-late.C:
		return 0, 0, fmt.Errorf("the guest did not answer within %s", agentPatience)
	}
}

// agentPatience limits the wait for an answer. On an emulated processor, requests take milliseconds.
const agentPatience = 2 * time.Minute

// run runs a plan in the guest's first process.
func (a *agent) run(p *plan) error {
	index, errno, err := a.request(msgPlan, p.encode())
	return errors.Join(err, p.saying(index, errno))
}

// spawn creates a process in new namespaces, as given by flags for clone(2). The process runs the plan up to opReady.
func (a *agent) spawn(flags uint64, p *plan) error {
	index, errno, err := a.request(msgSpawn, append(binary.LittleEndian.AppendUint64(nil, flags), p.encode()...))
	return errors.Join(err, p.saying(index, errno))
}

// release lets the process that spawn created run the rest of its plan, which ends by executing a program.
func (a *agent) release(p *plan) error {
	index, errno, err := a.request(msgGo, nil)
	return errors.Join(err, p.saying(index, errno))
}

// signal sends a signal to the process that spawn created or, if all is true, to all processes in the guest.
func (a *agent) signal(s unix.Signal, all bool) error {
	body := binary.LittleEndian.AppendUint32(nil, uint32(s))
	toAll := uint32(0)
	if all {
		toAll = 1
	}
	_, errno, err := a.request(msgSignal, binary.LittleEndian.AppendUint32(body, toAll))
	if err == nil && errno != 0 {
		err = unix.Errno(errno)
	}
	return err
}

// A stream on a port consists of frames: a length of four bytes, followed by that many bytes. A length of 0 ends the
// stream. The reading side also sends a length of 0, when it stops reading.

// sendFrames sends the content of r as frames, followed by the end of the stream. A read error counts as the end of the
// content.
func sendFrames(port io.Writer, r io.Reader) error {
	b := make([]byte, 4+32<<10)
	for {
		n, err := r.Read(b[4:])
		if n > 0 {
			binary.LittleEndian.PutUint32(b, uint32(n))
			if _, err := port.Write(b[:4+n]); err != nil {
				return err
			}
		}
		if err != nil {
			return sendEnd(port)
		}
	}
}

func sendEnd(port io.Writer) error {
	_, err := port.Write(make([]byte, 4))
	return err
}

// receiveFrames writes a stream to w until the stream ends. If w fails, receiveFrames tells the guest that reading has
// stopped, and discards the rest.
func receiveFrames(w io.Writer, port io.ReadWriter) error {
	var head [4]byte
	b := make([]byte, frameMax)
	deaf := false
	for {
		if _, err := io.ReadFull(port, head[:]); err != nil {
			return err
		}
		size := binary.LittleEndian.Uint32(head[:])
		if size == 0 {
			return nil
		}
		if size > frameMax {
			return fmt.Errorf("the guest sent a frame of %d bytes", size)
		}
		if _, err := io.ReadFull(port, b[:size]); err != nil {
			return err
		}
		if deaf {
			continue
		}
		if _, err := w.Write(b[:size]); err != nil {
			deaf = true
			if err := sendEnd(port); err != nil {
				return err
			}
		}
	}
}
