package xds_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"tare/internal/mesh"
	"tare/internal/mesh/xds"
	"tare/test/long"
	"tare/test/port"
)

// Limits of a victim. Memory is the maximum resident set, which includes the binary.
const (
	maxResident = 256 << 20
	// maxIdleCPU is the limit of CPU time, the start included, during an attack that sends next to nothing.
	maxIdleCPU = 3 * time.Second
	// maxStreams is the limit of streams that a victim opens while an attack lasts. With its waits (200 ms, less up to
	// half, and doubling each time) it opens fewer than 10.
	maxStreams = 20
	// How long the control plane is hostile, from its first connection. A message that it has begun is sent to the
	// end.
	attackLasts     = 700 * time.Millisecond
	idleAttackLasts = 1500 * time.Millisecond
)

// TestAttacks: a control plane tries everything to use up memory and time, or to crash the client. The clients are
// data planes for connections in separate processes; one uses the state of the world, the other deltas. After each
// attack they must follow a good control plane.
func TestAttacks(t *testing.T) {
	long.Test(t, "40 s: a campaign of attacks on the client")
	type run struct {
		name string
		took taken
		err  error
		done chan struct{}
	}
	var runs []*run
	busy, idle := make(chan struct{}, 4), make(chan struct{}, 16) // limits of concurrent attacks
	for _, a := range attacks {
		for _, kind := range []string{world, deltas} {
			r := &run{name: strings.ReplaceAll(a.name, " ", "-") + "/" + kind, done: make(chan struct{})}
			runs = append(runs, r)
			slots, at := busy, port.Free(t)
			if a.idle {
				slots = idle
			}
			go func() { // not parallel tests, which are limited to the number of CPUs: these mostly wait
				defer close(r.done)
				slots <- struct{}{}
				defer func() { <-slots }()
				r.took, r.err = a.run(kind, at)
			}()
		}
	}
	for _, r := range runs {
		<-r.done
		t.Run(r.name, func(t *testing.T) {
			t.Logf("%d MiB, %v of CPU time, %d streams", r.took.resident>>20, r.took.cpu, r.took.streams)
			if r.err != nil {
				t.Error(r.err)
			}
		})
	}
}

// taken is what a victim used: its maximum resident memory in bytes, its CPU time, and how many streams, or
// connections, it opened while the attack lasted.
type taken struct {
	resident int64
	cpu      time.Duration
	streams  int64
}

// attack is one kind of attack.
type attack struct {
	name   string
	stream func(h *hostile) error // serves a stream while the attack lasts; or
	raw    func(c net.Conn)       // gets the connection, which is closed when the attack ends
	idle   bool                   // it sends next to nothing, so that clients must use next to nothing
}

// hostile is one stream of an attack.
type hostile struct {
	grpc.ServerStream
	world bool
	nth   int64           // the number of the stream at its client, from 1
	over  <-chan struct{} // closed when the attack is over
	sent  int
	reads sync.Once
	read  chan string
}

// send sends a response as bytes. It returns an error if the stream has ended.
func (h *hostile) send(b []byte) error {
	h.sent++
	return h.SendMsg(&b)
}

// respond sends a response with resources.
func (h *hostile) respond(k xds.Kind, resources ...*resource) error {
	return h.send(h.response(k, strconv.Itoa(h.sent), resources...))
}

// requests returns the types of all requests from now on.
func (h *hostile) requests() <-chan string {
	h.reads.Do(func() {
		h.read = make(chan string)
		go func() {
			for {
				q, err := h.receive()
				if err != nil {
					return
				}
				select {
				case h.read <- q.url:
				case <-h.Context().Done():
					return
				}
			}
		}()
	})
	return h.read
}

// asked waits until the client requests resources of a type, or the attack ends.
func (h *hostile) asked(k xds.Kind) error {
	for {
		select {
		case url := <-h.requests():
			if url == k.TypeURL() {
				return nil
			}
		case <-h.over:
			return errors.New("it was not asked for")
		case <-h.Context().Done():
			return h.Context().Err()
		}
	}
}

// wait reads requests until the attack ends or the client closes the stream.
func (h *hostile) wait() error {
	for {
		select {
		case <-h.requests():
		case <-h.over:
			return nil
		case <-h.Context().Done():
			return nil
		}
	}
}

// request has the fields of a request that the attacks use.
type request struct {
	url, nonce string
	wrong      bool
	had        []string // names of resources that the client has, deltas
}

// receive receives a request of either variant.
func (h *hostile) receive() (r request, err error) {
	var b []byte
	if err := h.RecvMsg(&b); err != nil {
		return r, err
	}
	if h.world {
		var q discoveryv3.DiscoveryRequest
		err := proto.Unmarshal(b, &q)
		return request{url: q.GetTypeUrl(), nonce: q.GetResponseNonce(), wrong: q.GetErrorDetail() != nil}, err
	}
	var q discoveryv3.DeltaDiscoveryRequest
	err = proto.Unmarshal(b, &q)
	r = request{url: q.GetTypeUrl(), nonce: q.GetResponseNonce(), wrong: q.GetErrorDetail() != nil}
	for name := range q.GetInitialResourceVersions() {
		r.had = append(r.had, name)
	}
	return r, err
}

// lasts says whether the attack has not ended yet.
func (h *hostile) lasts() bool {
	select {
	case <-h.over:
		return false
	case <-h.Context().Done():
		return false
	default:
		return true
	}
}

// bytesCodec sends and receives messages as bytes.
type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// plane is a control plane that is hostile first and then good.
type plane struct {
	attack  attack
	over    chan struct{}
	begun   sync.Once
	streams atomic.Int64 // during the attack
	good    func(h *hostile) error

	net.Listener // connections for gRPC
}

// Accept returns the connections that the attack does not keep for itself.
func (p *plane) Accept() (net.Conn, error) {
	for {
		c, err := p.Listener.Accept()
		if err != nil {
			return nil, err
		}
		p.begun.Do(func() {
			lasts := attackLasts
			if p.attack.idle {
				lasts = idleAttackLasts
			}
			time.AfterFunc(lasts, func() { close(p.over) })
		})
		select {
		case <-p.over:
			return c, nil
		default:
		}
		if p.attack.raw == nil {
			return c, nil
		}
		p.streams.Add(1)
		go func() {
			<-p.over
			c.Close()
		}()
		go p.attack.raw(c)
	}
}

func (p *plane) serve(_ any, stream grpc.ServerStream) error {
	method, _ := grpc.Method(stream.Context())
	h := &hostile{ServerStream: stream, world: strings.HasSuffix(method, "/StreamAggregatedResources"), over: p.over}
	if h.lasts() {
		h.nth = p.streams.Add(1)
		if err := p.attack.stream(h); err != nil || h.lasts() {
			return err
		}
		return fmt.Errorf("the attack is over")
	}
	return p.good(h)
}

// run attacks a client, and then has it serve a listener at an address.
func (a attack) run(kind, at string) (took taken, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return took, err
	}
	p := &plane{attack: a, over: make(chan struct{}), Listener: l, good: goodPlane(at)}
	s := grpc.NewServer(grpc.ForceServerCodecV2(bytesCodec{}), grpc.UnknownServiceHandler(p.serve),
		grpc.MaxRecvMsgSize(4<<20))
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(p) }()
	defer func() {
		s.Stop()
		err = errors.Join(err, <-ended)
	}()
	v, err := startVictim(kind, l.Addr().String())
	if err != nil {
		return took, err
	}
	err = v.until(at)
	took, ends := v.end()
	took.streams = p.streams.Load()
	if err = errors.Join(err, ends); err != nil {
		return took, fmt.Errorf("%w\nit says:\n%.10000s", err, v.says)
	}
	switch {
	case took.resident > maxResident:
		err = fmt.Errorf("it took %d MiB of memory", took.resident>>20)
	case a.idle && took.cpu > maxIdleCPU:
		err = fmt.Errorf("it took %v of CPU time for nothing", took.cpu)
	case took.streams > maxStreams:
		err = fmt.Errorf("it opened %d streams", took.streams)
	}
	return took, err
}

// Kinds of victims.
const (
	world  = "world"
	deltas = "deltas"
)

// Environment variables of a victim.
const (
	victimKind    = "TARE_XDS_VICTIM"
	victimAddress = "TARE_XDS_VICTIM_OF"
)

// victimMemory is a victim's limit of memory in bytes (RLIMIT_DATA), so that a client without limits would crash and
// not use up the machine's memory.
const victimMemory = 512 << 20

// victim is a client in a separate process.
type victim struct {
	cmd  *exec.Cmd
	in   io.Closer
	done chan error
	says *said
}

// said collects the output of a process.
type said struct {
	mu   sync.Mutex
	text strings.Builder
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.text.Len() < 1<<20 {
		s.text.Write(b)
	}
	return len(b), nil
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text.String()
}

func startVictim(kind, address string) (*victim, error) {
	v := &victim{cmd: exec.Command(os.Args[0], "-test.run=^TestVictim$"), done: make(chan error, 1), says: &said{}}
	v.cmd.Env = append(os.Environ(), victimKind+"="+kind, victimAddress+"="+address)
	v.cmd.Stdout, v.cmd.Stderr = v.says, v.says
	v.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := v.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	v.in = in
	if err := v.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { v.done <- v.cmd.Wait() }()
	return v, nil
}

// until waits until the victim follows the good control plane: it serves the listener at an address. The limit of
// three minutes only ends a test that would hang.
func (v *victim) until(at string) error {
	for deadline := time.Now().Add(3 * time.Minute); ; time.Sleep(20 * time.Millisecond) {
		if c, err := net.DialTimeout("tcp", at, time.Minute); err == nil {
			c.Close()
			return nil
		}
		select {
		case err := <-v.done:
			v.done <- err
			return errors.New("the client has ended")
		default:
		}
		if time.Now().After(deadline) {
			return errors.New("it does not do what the good control plane says")
		}
	}
}

// end ends the victim, and returns what it used.
func (v *victim) end() (took taken, err error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", v.cmd.Process.Pid))
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			_, err = fmt.Sscan(kib, &took.resident)
			took.resident <<= 10
		}
	}
	v.in.Close()
	select {
	case ended := <-v.done:
		err = errors.Join(err, ended)
	case <-time.After(time.Minute):
		err = errors.Join(err, errors.New("the client does not end"), v.cmd.Process.Kill(), <-v.done)
	}
	if strings.ContainsAny(v.says.String(), "\x1b\x00\u202e") {
		err = errors.Join(err, errors.New("it writes what steers terminals"))
	}
	took.cpu = v.cmd.ProcessState.UserTime() + v.cmd.ProcessState.SystemTime()
	return took, err
}

// TestVictim is the victim's process. It ends when its input does.
func TestVictim(t *testing.T) {
	kind, address := os.Getenv(victimKind), os.Getenv(victimAddress)
	if kind == "" {
		return
	}
	limit := unix.Rlimit{Cur: victimMemory, Max: victimMemory}
	if err := unix.Setrlimit(unix.RLIMIT_DATA, &limit); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	if err := follow(ctx, kind, address); err != nil {
		t.Fatal(err)
	}
}

// follow runs a data plane for connections, which listens at the address of the listener named "good".
func follow(ctx context.Context, kind, address string) error {
	config := mesh.NewConfig()
	c, err := xds.New(xds.Options{Address: address, StateOfTheWorld: kind == world,
		Apply: func(_ context.Context, change mesh.Change) error {
			config.Apply(change)
			if l := config.Listeners[goodName]; l != nil {
				served, err := net.Listen("tcp", l.Address.String())
				if err == nil {
					go func() {
						<-ctx.Done()
						served.Close()
					}()
				}
			}
			return nil
		},
		OnEvent: func(e xds.Event) {
			for _, err := range e.Refused[:min(len(e.Refused), 10)] {
				fmt.Println(err)
			}
			for _, w := range e.Warned[:min(len(e.Warned), 10)] {
				fmt.Println(w)
			}
		},
		OnState: func(s xds.State) { fmt.Println(s.Phase, s.Err) },
	})
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// goodName is the name of the good control plane's cluster and listener.
const goodName = "good"

// goodPlane behaves as a control plane should: it sends one cluster and one listener at an address, and removes
// everything else that the client has. It sends refused resources again.
func goodPlane(at string) func(h *hostile) error {
	return func(h *hostile) error {
		good := map[xds.Kind]*resource{xds.Clusters: goodCluster(), xds.Listeners: goodListener(at)}
		for {
			q, err := h.receive()
			if err != nil {
				return err
			}
			k, ok := xds.KindOf(q.url)
			if r := good[k]; ok && r != nil && (q.nonce == "" || q.wrong) {
				h.sent++
				m := h.response(k, fmt.Sprint("good", h.sent), r)
				if !h.world {
					for _, name := range q.had {
						if name != r.name {
							m = appendText(m, fieldRemoved, name)
						}
					}
				}
				if err := h.SendMsg(&m); err != nil {
					return err
				}
			}
		}
	}
}
