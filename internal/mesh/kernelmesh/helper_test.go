package kernelmesh

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/role"
	"tare/internal/mesh"
	"tare/test/started"
)

// roleVariable is the environment variable by which the test binary tells its child processes, which run the same
// binary, what to do.
const roleVariable = "TARE_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(roleVariable) {
	case "":
		os.Exit(m.Run())
	case "client":
		clientMain()
	case "subject":
		subjectMain()
	case "connect":
		connectMain()
	case "push":
		pushMain()
	}
}

// subjectMain runs the data plane as a process; argument 1 is its Options as JSON, argument 2 a user id to switch to.
func subjectMain() {
	var o Options
	if err := json.Unmarshal([]byte(os.Args[1]), &o); err != nil {
		panic(err)
	}
	if uid, err := strconv.Atoi(os.Args[2]); err == nil && uid != 0 {
		if err := syscall.Setuid(uid); err != nil {
			panic(err)
		}
	}
	conn := role.Stdio()
	if err := Run(context.Background(), o, conn); err != nil {
		_ = conn.Fail(err)
		os.Exit(1)
	}
}

// request is a request to a client.
type request struct {
	// Do is tcp, hold, release, udp, udp-connected, udp-many, udp-hold, udp-open, or on the held socket: udp-again,
	// -send, -receive, -connect, -disconnect.
	Do      string
	Family  int            // of the socket: unix.AF_INET, unix.AF_INET6
	To      netip.AddrPort // an AF_INET6 socket takes IPv4 as IPv4-mapped
	From    netip.AddrPort // the address that the socket is bound to, if any
	N       int
	Others  []netip.AddrPort // udp-many: further destinations, from the same socket
	Timeout time.Duration    // of each connection
}

// answer is the result of a request.
type answer struct {
	Banners map[string]int // first lines from servers, by text
	Peers   map[string]int // results of getpeername (tcp) or recvfrom (udp)
	Errors  map[string]int
}

// clientMain carries out requests on its standard input, line by line; argument 1 is a cgroup to enter first.
func clientMain() {
	if dir := os.Args[1]; dir != "" {
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte("0"), 0); err != nil {
			panic(err)
		}
	}
	var held []int
	in := bufio.NewScanner(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	for in.Scan() {
		var r request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			panic(err)
		}
		a := answer{map[string]int{}, map[string]int{}, map[string]int{}}
		for range max(r.N, 1) {
			var fd int
			var err error
			switch r.Do {
			case "tcp", "hold":
				fd, err = a.tcp(r)
			case "udp", "udp-connected", "udp-many", "udp-hold":
				fd, err = a.udp(r)
			case "udp-open":
				fd, err = socket(r.Family, unix.SOCK_DGRAM, r.Timeout)
			case "udp-again":
				fd, err = -1, a.sendTo(held[0], r.Family, r.To)
			case "udp-send":
				fd, err = -1, unix.Sendto(held[0], []byte("hello"), 0, sockaddr(r.Family, r.To))
			case "udp-receive":
				fd, err = -1, a.receive(held[0])
			case "udp-connect":
				fd, err = -1, unix.Connect(held[0], sockaddr(r.Family, r.To))
			case "udp-disconnect":
				fd, err = -1, disconnect(held[0])
			case "release":
				for _, fd := range held {
					unix.Close(fd)
				}
				held, fd = nil, -1
			}
			if err != nil {
				a.Errors[err.Error()]++
			}
			if r.Do == "hold" || r.Do == "udp-hold" || r.Do == "udp-open" {
				held = append(held, fd)
			} else if fd >= 0 {
				unix.Close(fd)
			}
		}
		if err := out.Encode(a); err != nil {
			panic(err)
		}
	}
}

func sockaddr(family int, a netip.AddrPort) unix.Sockaddr {
	if family == unix.AF_INET {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().Unmap().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func addrPort(sa unix.Sockaddr) string {
	switch s := sa.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port)).String()
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port)).String()
	}
	return "none"
}

func socket(family, kind int, timeout time.Duration) (int, error) {
	fd, err := unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	tv := unix.NsecToTimeval(max(timeout, time.Minute).Nanoseconds()) // only against hanging
	return fd, errors.Join(unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &tv))
}

func (a answer) tcp(r request) (int, error) {
	fd, err := socket(r.Family, unix.SOCK_STREAM, r.Timeout)
	if err != nil {
		return fd, err
	}
	if r.From.IsValid() {
		if err := unix.Bind(fd, sockaddr(r.Family, r.From)); err != nil {
			return fd, fmt.Errorf("bind: %w", err)
		}
	}
	if r.Do == "tcp" { // a reset at the end leaves no TIME_WAIT
		if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
			return fd, err
		}
	}
	if err := unix.Connect(fd, sockaddr(r.Family, r.To)); err != nil {
		return fd, fmt.Errorf("connect: %w", err)
	}
	peer, err := unix.Getpeername(fd)
	if err != nil {
		return fd, fmt.Errorf("getpeername: %w", err)
	}
	a.Peers[addrPort(peer)]++
	buf := make([]byte, 100)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return fd, fmt.Errorf("read: %w", err)
	}
	a.Banners[string(buf[:n])]++
	return fd, nil
}

func (a answer) udp(r request) (int, error) {
	fd, err := socket(r.Family, unix.SOCK_DGRAM, r.Timeout)
	if err != nil {
		return fd, err
	}
	if r.From.IsValid() {
		if err := unix.Bind(fd, sockaddr(r.Family, r.From)); err != nil {
			return fd, fmt.Errorf("bind: %w", err)
		}
	}
	switch r.Do {
	case "udp-connected":
		if err := unix.Connect(fd, sockaddr(r.Family, r.To)); err != nil {
			return fd, fmt.Errorf("connect: %w", err)
		}
		peer, err := unix.Getpeername(fd)
		if err != nil {
			return fd, fmt.Errorf("getpeername: %w", err)
		}
		a.Peers["peer "+addrPort(peer)]++
		return fd, a.exchange(fd, func() error { _, err := unix.Write(fd, []byte("hello")); return err })
	case "udp-many":
		for _, to := range append([]netip.AddrPort{r.To}, r.Others...) {
			if err := a.sendTo(fd, r.Family, to); err != nil {
				return fd, err
			}
		}
		return fd, nil
	}
	return fd, a.sendTo(fd, r.Family, r.To)
}

func (a answer) sendTo(fd, family int, to netip.AddrPort) error {
	return a.exchange(fd, func() error { return unix.Sendto(fd, []byte("hello"), 0, sockaddr(family, to)) })
}

// exchange calls send, then receives the reply.
func (a answer) exchange(fd int, send func() error) error {
	if err := send(); err != nil {
		return fmt.Errorf("send: %w", err)
	}
	return a.receive(fd)
}

func (a answer) receive(fd int) error {
	buf := make([]byte, 100)
	n, from, err := unix.Recvfrom(fd, buf, 0)
	if err != nil {
		return fmt.Errorf("recvfrom: %w", err)
	}
	a.Banners[string(buf[:n])]++
	a.Peers[addrPort(from)]++
	return nil
}

// disconnect removes a UDP socket's peer: connect(2) to AF_UNSPEC.
func disconnect(fd int) error {
	var none unix.RawSockaddr
	_, _, errno := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none))
	if errno != 0 {
		return fmt.Errorf("disconnecting: %w", errno)
	}
	return nil
}

// process is a helper process with the test's ends of its pipes.
type process struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out io.ReadCloser
}

func start(t testing.TB, role string, args ...string) *process {
	t.Helper()
	cmd := exec.Command("/proc/self/exe", args...)
	// The signals with which Go preempts goroutines would interrupt the client's direct system calls.
	cmd.Env = append(os.Environ(), roleVariable+"="+role, "GODEBUG=asyncpreemptoff=1")
	cmd.Stderr = os.Stderr
	in, out := started.Piped(t, cmd)
	p := &process{cmd, in, out}
	t.Cleanup(func() { p.stop() })
	return p
}

// stop ends the process by closing its input, and waits. It may be called again.
func (p *process) stop() error {
	p.in.Close()
	return p.cmd.Wait()
}

type client struct {
	*process
	answers *json.Decoder
}

// newClient starts a client in a cgroup, or in the test's own if cgroup is empty.
func newClient(t testing.TB, cgroup string) *client {
	p := start(t, "client", cgroup)
	return &client{p, json.NewDecoder(p.out)}
}

func (c *client) ask(t testing.TB, r request) answer {
	t.Helper()
	if r.Family == 0 {
		r.Family = unix.AF_INET
	}
	if err := json.NewEncoder(c.in).Encode(r); err != nil {
		t.Fatal(err)
	}
	var a answer
	if err := c.answers.Decode(&a); err != nil {
		t.Fatalf("client: %v", err)
	}
	return a
}

// want fails the test unless the answer has exactly these banners, peers and errors.
func (a answer) want(t testing.TB, banners, peers, errs map[string]int) {
	t.Helper()
	for _, part := range []struct {
		name      string
		got, want map[string]int
	}{{"servers reached", a.Banners, banners}, {"addresses seen", a.Peers, peers}, {"errors", a.Errors, errs}} {
		if fmt.Sprint(part.got) != fmt.Sprint(part.want) {
			t.Errorf("%s: got %v, want %v", part.name, part.got, part.want)
		}
	}
}

// tcpServer sends its own address on each connection, until the test ends.
func tcpServer(t testing.TB, listen string) netip.AddrPort {
	t.Helper()
	l, err := net.Listen("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	banner := l.Addr().String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { // ends when the client closes the connection
				defer c.Close()
				_, _ = io.WriteString(c, banner)
				_, _ = io.Copy(io.Discard, c)
			}()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })
	return netip.MustParseAddrPort(banner)
}

// udpServer answers each datagram with its own address, until the test ends.
func udpServer(t testing.TB, listen string) netip.AddrPort {
	t.Helper()
	c, err := net.ListenPacket("udp", listen)
	if err != nil {
		t.Fatal(err)
	}
	banner := c.LocalAddr().String()
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 100)
		for {
			_, from, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = c.WriteTo([]byte(banner), from)
		}
	}()
	t.Cleanup(func() { c.Close(); <-done })
	return netip.MustParseAddrPort(banner)
}

// testCgroup makes a cgroup for the test, and removes it.
func testCgroup(t testing.TB) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	mount := cgroup2Mount()
	if mount == "" {
		t.Skip("needs a mounted cgroup v2 hierarchy")
	}
	name := strings.NewReplacer("/", "-", ":", "-").Replace(t.Name())
	dir := filepath.Join(mount, fmt.Sprintf("tare-test-%d-%s", os.Getpid(), name))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		err := os.Remove(dir)
		for i := 0; errors.Is(err, unix.EBUSY) && i < 100; i++ { // a process leaves its cgroup a moment after it ends
			time.Sleep(10 * time.Millisecond)
			err = os.Remove(dir)
		}
		if err != nil {
			t.Errorf("removing the test's cgroup: %v", err)
		}
	})
	return dir
}

// plane is a data plane with a source of services.
type plane struct {
	*DataPlane
	source *Source
}

// newDataPlane loads the data plane with services and attaches it to a new cgroup.
func newDataPlane(t testing.TB, o Options, services ...Service) (*plane, string) {
	t.Helper()
	dir := testCgroup(t)
	d, err := Load(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	p := &plane{d, NewSource(d.Apply)}
	p.set(t, services...)
	if err := d.Attach(dir, false); err != nil {
		t.Fatal(err)
	}
	return p, dir
}

// set makes the data plane serve exactly these services.
func (p *plane) set(t testing.TB, services ...Service) {
	t.Helper()
	if _, err := p.source.Set(context.Background(), services); err != nil {
		t.Fatal(err)
	}
}

// apply applies a change directly, bypassing the source.
func (p *plane) apply(t testing.TB, c mesh.Change) {
	t.Helper()
	if _, err := p.Apply(context.Background(), c); err != nil {
		t.Fatal(err)
	}
}

// clusterCounts are the programs' counts for one cluster.
type clusterCounts struct {
	Matched, NoEndpoint, Overflow       uint64 // connections and datagrams
	Opened, Established, Closed, Failed uint64 // TCP connections
}

// since returns the counts since an earlier reading.
func (c clusterCounts) since(before clusterCounts) clusterCounts {
	return clusterCounts{c.Matched - before.Matched, c.NoEndpoint - before.NoEndpoint, c.Overflow - before.Overflow,
		c.Opened - before.Opened, c.Established - before.Established, c.Closed - before.Closed, c.Failed - before.Failed}
}

// cluster returns the counts of the named cluster, summed over all copies of its counters.
func (p *plane) cluster(t testing.TB, name string) clusterCounts {
	t.Helper()
	id, there := p.DataPlane.clusters[name]
	if !there {
		t.Fatalf("there is no cluster %q", name)
	}
	at := &p.shared.clusters[id]
	c := clusterCounts{Opened: atomic.LoadUint64(&at.Opened), Established: atomic.LoadUint64(&at.Established),
		Closed: atomic.LoadUint64(&at.Closed), Failed: atomic.LoadUint64(&at.Failed)}
	counts := p.maps[snapshotMapKmCounts]
	for i := id; i < counts.MaxEntries(); i += p.shared.ids {
		var n snapshotClusterCounters
		if err := counts.Lookup(i, &n); err != nil {
			t.Fatal(err)
		}
		c.Matched, c.NoEndpoint, c.Overflow = c.Matched+n.Matched, c.NoEndpoint+n.NoEndpoint, c.Overflow+n.Overflow
	}
	return c
}

// program returns the statistics of one program.
func (p *plane) program(t testing.TB, name string) ProgramStats {
	t.Helper()
	stats, err := p.Stats()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range stats {
		if c.Name == name {
			return c
		}
	}
	t.Fatalf("there is no program %q: %+v", name, stats)
	return ProgramStats{}
}

// stores are the designs that tests run with. Naive waits for some milliseconds at each record that it writes, and
// shares its programs with pooled, so that only TestNaive uses it. Pooled makes its maps on demand, which is faster
// here.
var stores = []string{"snapshot", "value", "sized", "sized:ordered", "pooled:ondemand"}

// overStores runs f with each of some stores; with -short, as on an emulated processor, only with the first.
// TestWeights uses all of them even then.
func overStores(t *testing.T, f func(t *testing.T, store string), stores ...string) {
	if testing.Short() {
		stores = stores[:1]
	}
	for _, name := range stores {
		t.Run(name, func(t *testing.T) { f(t, name) })
	}
}
