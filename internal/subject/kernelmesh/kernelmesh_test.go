package kernelmesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tare/internal/fault"
	"tare/internal/role"
)

// Services of the tests are addresses that nobody listens on. They are on the loopback too: should a test go wrong, nothing leaves the
// machine.
var (
	service4 = netip.MustParseAddrPort("127.10.96.1:80")
	other4   = netip.MustParseAddrPort("127.10.96.2:80")
	mapped4  = netip.MustParseAddrPort("[::ffff:127.10.96.1]:80")
	service6 = netip.MustParseAddrPort("[::1]:80")
)

// counted is the answer for n times one thing.
func counted(name any, n int) map[string]int { return map[string]int{fmt.Sprint(name): n} }

var none = map[string]int{}

// TestWeights also shows what a process outside the cgroup sees, and one that names no service.
func TestWeights(t *testing.T) {
	a, b, c := tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0")
	d, dir := newDataPlane(t, Options{}, Service{service4, TCP, []Endpoint{{a, 3}, {b, 1}, {c, 0}}})
	inside, outside := newClient(t, dir), newClient(t, "")
	const n = 2000
	got := inside.ask(t, request{Do: "tcp", To: service4, N: n})
	// 5 standard deviations: wrong by chance once in 1.7 million.
	if bound := 5 * math.Sqrt(n*0.75*0.25); math.Abs(float64(got.Banners[a.String()])-0.75*n) > bound {
		t.Errorf("weights 3:1 gave %v, want 1500:500 within %.0f", got.Banners, bound)
	}
	got.want(t, map[string]int{a.String(): got.Banners[a.String()], b.String(): n - got.Banners[a.String()]}, counted(service4, n), none)

	inside.ask(t, request{Do: "tcp", To: c, N: 3}).want(t, counted(c, 3), counted(c, 3), none)
	outside.ask(t, request{Do: "tcp", To: service4, N: 1}).want(t, none, none, counted("connect: connection refused", 1))
	outside.ask(t, request{Do: "tcp", To: c, N: 1}).want(t, counted(c, 1), counted(c, 1), none)

	stats, err := d.Stats()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range stats.Programs {
		if want := (ProgramStats{"km_connect4", n, 3, 0}); p.Name == want.Name && p != want {
			t.Errorf("got %+v, want %+v", p, want)
		}
	}
	s := stats.Services[0]
	if s.Matched != n || s.Endpoints[0].Established+s.Endpoints[1].Established != n || s.Endpoints[2].Opened != 0 {
		t.Errorf("%d connections, but %+v", n, s)
	}
	if got.Banners[a.String()] != int(s.Endpoints[0].Established) {
		t.Errorf("%d connections came to %s, %d were counted", got.Banners[a.String()], a, s.Endpoints[0].Established)
	}
}

func TestIPv6(t *testing.T) {
	a, b := tcpServer(t, "[::1]:0"), tcpServer(t, "127.0.0.1:0")
	_, dir := newDataPlane(t, Options{}, Service{service6, TCP, []Endpoint{{a, 1}}}, Service{service4, TCP, []Endpoint{{b, 1}}})
	c := newClient(t, dir)
	c.ask(t, request{Do: "tcp", Family: unix.AF_INET6, To: service6, N: 5}).want(t, counted(a, 5), counted(service6, 5), none)
	// An IPv6 socket that talks IPv4.
	c.ask(t, request{Do: "tcp", Family: unix.AF_INET6, To: mapped4, N: 5}).want(t, counted(b, 5), counted(mapped4, 5), none)
	c.ask(t, request{Do: "tcp", Family: unix.AF_INET6, To: a, N: 5}).want(t, counted(a, 5), counted(a, 5), none)
}

func TestUDP(t *testing.T) {
	a, b, c := udpServer(t, "127.0.0.1:0"), udpServer(t, "127.0.0.1:0"), udpServer(t, "[::1]:0")
	_, dir := newDataPlane(t, Options{}, Service{service4, UDP, []Endpoint{{a, 1}, {b, 1}}}, Service{other4, UDP, []Endpoint{{b, 1}}},
		Service{service6, UDP, []Endpoint{{c, 1}}})
	in := newClient(t, dir)
	for _, do := range []string{"udp", "udp-connected"} {
		t.Run(do, func(t *testing.T) {
			const n = 200
			peers := func(a netip.AddrPort, n int) map[string]int {
				if do == "udp" {
					return counted(a, n)
				}
				return map[string]int{a.String(): n, "peer " + a.String(): n}
			}
			got := in.ask(t, request{Do: do, To: service4, N: n})
			if x := got.Banners[a.String()]; x == 0 || x == n {
				t.Errorf("%d of %d went to the first of two equal endpoints", x, n)
			}
			got.want(t, map[string]int{a.String(): got.Banners[a.String()], b.String(): n - got.Banners[a.String()]}, peers(service4, n), none)
			in.ask(t, request{Do: do, Family: unix.AF_INET6, To: service6, N: 3}).want(t, counted(c, 3), peers(service6, 3), none)
			in.ask(t, request{Do: do, Family: unix.AF_INET6, To: mapped4, N: 1}).noErrors(t)
			in.ask(t, request{Do: do, To: a, N: 3}).want(t, counted(a, 3), peers(a, 3), none)
		})
	}
	t.Run("one socket", func(t *testing.T) {
		// Two services that share an endpoint, and the endpoint itself... the reply of each comes from whom it was sent to, and one
		// socket stays with one endpoint of a service.
		for range 20 {
			got := in.ask(t, request{Do: "udp-many", To: service4, Others: []netip.AddrPort{service4, service4}})
			if len(got.Banners) != 1 || got.Peers[service4.String()] != 3 {
				t.Fatalf("one socket: %+v", got)
			}
		}
		many := make([]netip.AddrPort, 20)
		for i := range many {
			many[i] = other4
		}
		in.ask(t, request{Do: "udp-many", To: other4, Others: many}).want(t, counted(b, 21), counted(other4, 21), none)
	})
}

// noErrors fails the test if the client met an error.
func (a answer) noErrors(t *testing.T) {
	t.Helper()
	if len(a.Errors) > 0 {
		t.Errorf("errors: %v", a.Errors)
	}
}

func TestNoEndpoint(t *testing.T) {
	d, dir := newDataPlane(t, Options{}, Service{service4, TCP, nil}, Service{service4, UDP, nil}, Service{service6, TCP, nil})
	c := newClient(t, dir)
	c.ask(t, request{Do: "tcp", To: service4, N: 2}).want(t, none, none, counted("connect: connection refused", 2))
	c.ask(t, request{Do: "tcp", Family: unix.AF_INET6, To: service6}).want(t, none, none, counted("connect: connection refused", 1))
	c.ask(t, request{Do: "udp", To: service4}).want(t, none, none, counted("send: connection refused", 1))
	stats, err := d.Stats()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint64{2, 1, 1} { // tcp, udp, IPv6 tcp: the order of addresses
		if s := stats.Services[i]; s.NoEndpoint != want || s.Matched != 0 {
			t.Errorf("service %s %s: %+v, want %d refused", s.Protocol, s.Address, s, want)
		}
	}
}

// endpoints is the statistics of the endpoints of the first service.
func endpoints(t *testing.T, d *DataPlane) []EndpointStats {
	t.Helper()
	stats, err := d.Stats()
	if err != nil {
		t.Fatal(err)
	}
	return stats.Services[0].Endpoints
}

// eventually waits for what the kernel does soon after; a minute is only there so that a defect ends.
func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); !is(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not so after a minute", what)
		}
	}
}

func TestConnectionCounts(t *testing.T) {
	a, b := tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0")
	closed := netip.MustParseAddrPort("127.0.0.1:1") // tcpmux: nobody listens
	d, dir := newDataPlane(t, Options{}, Service{service4, TCP, []Endpoint{{a, 1}}})
	c := newClient(t, dir)
	const n = 20
	c.ask(t, request{Do: "hold", To: service4, N: n}).want(t, counted(a, n), counted(service4, n), none)
	if e := endpoints(t, d)[0]; e.Active() != n || e.Opened != n || e.Failed != 0 {
		t.Errorf("with %d connections: %+v", n, e)
	}

	// A change of weights keeps the count; an endpoint that goes is kept until its connections end.
	apply := func(services ...Service) {
		t.Helper()
		if _, err := d.Store().Apply(context.Background(), services); err != nil {
			t.Fatal(err)
		}
	}
	apply(Service{service4, TCP, []Endpoint{{a, 7}, {b, 0}}})
	if e := endpoints(t, d)[0]; e.Active() != n {
		t.Errorf("after a change of weights: %+v", e)
	}
	apply(Service{service4, TCP, []Endpoint{{b, 1}}})
	if stats, err := d.Stats(); err != nil || stats.Retired != 1 {
		t.Errorf("one endpoint has gone, with connections: %+v, %v", stats, err)
	}
	c.ask(t, request{Do: "tcp", To: service4, N: 3}).want(t, counted(b, 3), counted(service4, 3), none)
	c.ask(t, request{Do: "release"})
	eventually(t, "retired endpoint given back", func() bool { stats, err := d.Stats(); return err == nil && stats.Retired == 0 })
	eventually(t, "no connection left", func() bool { return endpoints(t, d)[0].Active() == 0 })

	apply(Service{service4, TCP, []Endpoint{{closed, 1}}})
	c.ask(t, request{Do: "tcp", To: service4, N: 4}).want(t, none, none, counted("connect: connection refused", 4))
	if e := endpoints(t, d)[0]; e.Opened != 4 || e.Failed != 4 || e.Established != 0 {
		t.Errorf("4 refused connections: %+v", e)
	}
}

// TestReplace replaces the endpoints of a service as fast as it goes while connections are made: each connection must reach an endpoint
// of the old set or the new, and every one is counted or was chosen at the moment of change.
func TestReplace(t *testing.T) {
	a, b, c := tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0")
	sets := [][]Endpoint{{{a, 1}}, {{b, 2}, {c, 1}}, {{c, 1}, {a, 5}}}
	d, dir := newDataPlane(t, Options{MaxServices: 8, MaxEndpoints: 8}, Service{service4, TCP, sets[0]})
	client := newClient(t, dir)
	stop, stopped := make(chan struct{}), make(chan error)
	replaced := 0
	go func() {
		for {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			replaced++
			services := []Service{{service4, TCP, sets[replaced%3]}}
			if replaced%2 == 0 { // others come and go beside it
				services = append(services, Service{other4, TCP, sets[replaced%3]})
			}
			if _, err := d.Store().Apply(context.Background(), services); err != nil && fault.CodeOf(err) != fault.Usage {
				stopped <- err // Usage: retired endpoints still fill the small maps
				return
			}
		}
	}()
	const n = 3000
	got := client.ask(t, request{Do: "tcp", To: service4, N: n})
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	total := 0
	for banner, m := range got.Banners {
		if banner != a.String() && banner != b.String() && banner != c.String() {
			t.Errorf("%d connections reached %q", m, banner)
		}
		total += m
	}
	if total != n || len(got.Errors) > 0 || got.Peers[service4.String()] != n {
		t.Errorf("%d of %d connections: %+v", total, n, got)
	}
	t.Logf("%d connections during %d replacements", n, replaced)
}

// TestSteps weighs the planted weight. Only that more steps take longer is asserted.
func TestSteps(t *testing.T) {
	a := tcpServer(t, "127.0.0.1:0")
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Fatal(err)
	}
	defer stats.Close()
	perRun := func(t *testing.T, steps uint32, connections int) (connect, sockops float64) {
		d, dir := newDataPlane(t, Options{Steps: steps, SockopsSteps: steps / 10}, Service{service4, TCP, []Endpoint{{a, 1}}})
		client := newClient(t, dir)
		client.ask(t, request{Do: "tcp", To: service4, N: connections}).want(t, counted(a, connections), counted(service4, connections), none)
		client.stop()
		weigh := func(p *ebpf.Program) float64 {
			s, err := p.Stats()
			if err != nil || s.RunCount == 0 {
				t.Fatalf("statistics of %s: %+v, %v", p, s, err)
			}
			return float64(s.Runtime.Nanoseconds()) / float64(s.RunCount)
		}
		return weigh(d.objects.KmConnect4), weigh(d.objects.KmSockops)
	}
	var connect, sockops []float64
	steps := []uint32{0, 1000, 30_000, 1_000_000}
	for i, s := range steps {
		t.Run(fmt.Sprint(s), func(t *testing.T) {
			c, o := perRun(t, s, []int{500, 500, 100, 4}[i])
			connect, sockops = append(connect, c), append(sockops, o)
			t.Logf("%.0f ns per run of km_connect4 (%.3f ns per step); with %d steps %.0f ns of km_sockops",
				c, (c-connect[0])/max(1, float64(s)), s/10, o)
		})
	}
	if len(connect) < len(steps) {
		return // a failure above
	}
	for i := 1; i < len(steps); i++ {
		if i == 1 && testing.Short() {
			continue // on an emulated processor the first steps drown in the noise of everything else
		}
		if connect[i] <= connect[i-1] || sockops[i] <= sockops[i-1] {
			t.Errorf("from %d to %d steps a run did not get longer: connect %v, sockops %v", steps[i-1], steps[i], connect, sockops)
		}
	}
}

// subjectProcess is the data plane as a process of its own.
type subjectProcess struct {
	*process
	conn *role.Conn
}

func newSubject(t *testing.T, o Options, uid int) *subjectProcess {
	t.Helper()
	arg, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	p := start(t, "subject", string(arg), fmt.Sprint(uid))
	return &subjectProcess{p, role.NewConn(p.out, p.in)}
}

func (s *subjectProcess) ready(t *testing.T) Ready {
	t.Helper()
	var r Ready
	if err := s.conn.Expect(role.Ready, &r, nil); err != nil {
		t.Fatal(err)
	}
	return r
}

func (s *subjectProcess) log(t *testing.T) string {
	t.Helper()
	m, err := s.conn.Receive()
	var line string
	if err != nil || m.Event != role.Log || json.Unmarshal(m.Data, &line) != nil {
		t.Fatalf("waiting for a log line: %+v, %v", m, err)
	}
	return line
}

func writeServices(t *testing.T, file string, services ...Service) {
	t.Helper()
	if err := os.WriteFile(file, Format(services), 0o644); err != nil {
		t.Fatal(err)
	}
}

// left counts what is left in the kernel of what a data plane made.
func (r Ready) left() int {
	n := 0
	for _, p := range r.Programs {
		if p, err := ebpf.NewProgramFromID(ebpf.ProgramID(p.ID)); err == nil {
			p.Close()
			n++
		}
	}
	for _, m := range r.Maps {
		if m, err := ebpf.NewMapFromID(ebpf.MapID(m.ID)); err == nil {
			m.Close()
			n++
		}
	}
	for _, l := range r.Links {
		if l, err := link.NewFromID(link.ID(l.ID)); err == nil {
			l.Close()
			n++
		}
	}
	return n
}

func TestProcess(t *testing.T) {
	a, b := tcpServer(t, "127.0.0.1:0"), tcpServer(t, "127.0.0.1:0")
	for _, ending := range []string{"end of input", "kill -9"} {
		t.Run(ending, func(t *testing.T) {
			dir, file := testCgroup(t), filepath.Join(t.TempDir(), "services.yaml")
			writeServices(t, file, Service{service4, TCP, []Endpoint{{a, 1}}})
			s := newSubject(t, Options{ServicesFile: file, CgroupDir: dir}, 0)
			ready := s.ready(t)
			if ready.Services != 1 || ready.Endpoints != 1 || len(ready.Programs) != 9 || len(ready.Links) != 9 || len(ready.Maps) != 12 ||
				ready.ServicesFile != file {
				t.Errorf("ready: %+v", ready)
			}
			if n := ready.left(); n != 9+9+12 {
				t.Errorf("%d of 30 programs, links and maps are in the kernel", n)
			}
			c := newClient(t, dir)
			c.ask(t, request{Do: "tcp", To: service4, N: 2}).want(t, counted(a, 2), counted(service4, 2), none)

			hup := func() string {
				t.Helper()
				if err := s.cmd.Process.Signal(unix.SIGHUP); err != nil {
					t.Fatal(err)
				}
				return s.log(t)
			}
			writeServices(t, file, Service{service4, TCP, []Endpoint{{b, 1}}}, Service{other4, TCP, []Endpoint{{a, 1}}})
			if line := hup(); !strings.Contains(line, "1 services added, 1 changed, 0 removed, 0 unchanged") {
				t.Error(line)
			}
			c.ask(t, request{Do: "tcp", To: service4, N: 2}).want(t, counted(b, 2), counted(service4, 2), none)
			c.ask(t, request{Do: "tcp", To: other4, N: 2}).want(t, counted(a, 2), counted(other4, 2), none)
			if err := os.WriteFile(file, []byte("services:\n  - adress: 1\n"), 0o644); err != nil {
				t.Fatal(err)
			}
			if line := hup(); !strings.Contains(line, "services stay as they were: "+file+":2") {
				t.Error(line)
			}
			c.ask(t, request{Do: "tcp", To: service4, N: 2}).want(t, counted(b, 2), counted(service4, 2), none)
			writeServices(t, file)
			if line := hup(); !strings.Contains(line, "2 removed") {
				t.Error(line)
			}
			c.ask(t, request{Do: "tcp", To: service4}).want(t, none, none, counted("connect: connection refused", 1))

			if ending == "kill -9" {
				if err := s.cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
				_ = s.stop()
			} else {
				s.in.Close()
				if line := s.log(t); !strings.Contains(line, "km_connect4 9 runs (8 matched, 0 without endpoint)") {
					t.Error(line)
				}
				if err := s.stop(); err != nil {
					t.Error(err)
				}
			}
			eventually(t, "nothing left in the kernel", func() bool { return ready.left() == 0 })
		})
	}
}

func TestRunRefuses(t *testing.T) {
	dir := testCgroup(t)
	mount := cgroup2Mount()
	good := filepath.Join(t.TempDir(), "services.yaml")
	for _, readable := range []string{filepath.Dir(good), filepath.Dir(filepath.Dir(good))} { // to others, for the case without rights
		if err := os.Chmod(readable, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	writeServices(t, good, Service{service4, TCP, []Endpoint{{service4, 1}, {other4, 1}}}, Service{other4, TCP, nil})
	tests := []struct {
		name       string
		o          Options
		uid        int
		code       fault.Code
		what, mend string
	}{
		{"no file", Options{ServicesFile: good + "x", CgroupDir: dir}, 0, fault.Usage, "cannot be read", "--services"},
		{"no cgroup", Options{ServicesFile: good, CgroupDir: dir + "x"}, 0, fault.Usage, "no such control group", "mkdir"},
		{"not a cgroup", Options{ServicesFile: good, CgroupDir: "/proc"}, 0, fault.Usage, "not a cgroup v2 directory", mount},
		{"the root", Options{ServicesFile: good, CgroupDir: mount}, 0, fault.Usage, "root of the hierarchy", "--allow-root"},
		{"too many steps", Options{ServicesFile: good, CgroupDir: dir, Steps: MaxSteps + 1}, 0, fault.Usage, "too many", "8388608"},
		{"too many endpoints", Options{ServicesFile: good, CgroupDir: dir, MaxEndpoints: 1}, 0, fault.Usage, "do not fit", "--max-endpoints"},
		{"too many services", Options{ServicesFile: good, CgroupDir: dir, MaxServices: 1}, 0, fault.Usage, "more services", "--max-services"},
		{"no rights", Options{ServicesFile: good, CgroupDir: dir}, 65534, fault.Machine, "not permitted", "run as root"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := newSubject(t, test.o, test.uid)
			err := s.conn.Expect(role.Ready, nil, nil)
			var f *fault.Error
			if !errors.As(err, &f) || f.Code != test.code || !strings.Contains(err.Error(), test.what) || !strings.Contains(f.Mend, test.mend) {
				t.Errorf("got %#v", err)
			}
		})
	}
}

// TestExplainVerifier has the kernel refuse a program: the message must carry the verifier's last lines.
func TestExplainVerifier(t *testing.T) {
	testCgroup(t) // needs what the others need
	_, err := ebpf.NewProgram(&ebpf.ProgramSpec{Type: ebpf.CGroupSockAddr, AttachType: ebpf.AttachCGroupInet4Connect, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 7), asm.Return()}})
	err = explain(err, "loading")
	if fault.CodeOf(err) != fault.Machine || !strings.Contains(err.Error(), "verifier refuses") || !strings.Contains(err.Error(), "R0") {
		t.Errorf("got %v", err)
	}
}

func BenchmarkConnect(b *testing.B) {
	a := tcpServer(b, "127.0.0.1:0")
	_, dir := newDataPlane(b, Options{}, Service{service4, TCP, []Endpoint{{a, 1}}})
	for _, arm := range []struct {
		name string
		to   netip.AddrPort
	}{{"service", service4}, {"untouched", a}} {
		b.Run(arm.name, func(b *testing.B) {
			c := newClient(b, dir)
			for b.Loop() {
				c.ask(b, request{Do: "tcp", To: arm.to, N: 1})
			}
		})
	}
}
