// Command controlplane measures a control plane that serves a fleet of light proxies, each with its own connection. The
// control plane is this project's, or go-control-plane's snapshot cache with the same mesh, and runs in a separate
// process. Each service is served by some of the proxies and, by policy, called by the proxies of the next ten
// services, so a proxy receives eleven services however large the mesh is.
//
//	go run ./test/bench/controlplane [-plane own|snapshot] [-proxies 10000] [-services 1000] [-world] [-tls]
//		[-changes 50] [-storms 5]
//
// With -storms N, all proxies disconnect and reconnect at once, 2N times: alternately all well-behaved, and with one in
// a hundred slow and one in a hundred endlessly asking for more. The time of a storm leaves out the last 1 % of proxies
// (the slow ones, if there are any) and those that ask endlessly.
//
// With -tls, which only the project's own control plane supports, proxies connect by mutual TLS and get secrets by
// discovery.
//
// It prints one line of JSON, with times in seconds and memory in bytes. Both control planes limit their garbage in the
// same way (controlplane.BoundGarbage). Memory is resident memory: memory_idle after a forced collection, the other
// values once the process has settled by itself. The figures are those of one run, without intervals.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"

	"tare/internal/lib/pace"
	"tare/internal/mesh/controlplane"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/proxyconfig"
	"tare/internal/mesh/fleet"
	"tare/internal/mesh/plane/snapshot"
	"tare/internal/scale/host/proc"
	"tare/test/ring"
)

// calls is how many services the proxies of each service call.
const calls = 10

type options struct {
	plane             string
	proxies, services int
	world, tls        bool
	changes, storms   int
	credentials       string // directory of the proxies' credentials; used only with tls
}

func main() {
	var o options
	flag.StringVar(&o.plane, "plane", "own", "own or snapshot")
	flag.IntVar(&o.proxies, "proxies", 10000, "how many")
	flag.IntVar(&o.services, "services", 1000, "how many; at most 60000")
	flag.BoolVar(&o.world, "world", false, "state of the world, not deltas")
	flag.IntVar(&o.changes, "changes", 50, "how many, one after the other")
	flag.IntVar(&o.storms, "storms", 0, "how many")
	flag.BoolVar(&o.tls, "tls", false, "mutual TLS")
	flag.StringVar(&o.credentials, "credentials", "", "for the control plane's process")
	serve := flag.Bool("serve", false, "be the control plane")
	flag.Parse()
	if o.tls && o.plane != "own" {
		fmt.Fprintln(os.Stderr, "controlplane: -tls is for the project's own")
		os.Exit(2)
	}
	run := weigh
	if *serve {
		run = o.serve
	}
	if err := run(o); err != nil {
		fmt.Fprintf(os.Stderr, "controlplane: %v\n", err)
		os.Exit(1)
	}
}

// ring returns the mesh that the options describe.
func (o options) ring() ring.Mesh {
	m := ring.Mesh{Services: o.services, Proxies: o.proxies, Calls: calls}
	if o.tls {
		m.MTLS = "strict"
	}
	return m
}

func markOf(a *endpointv3.ClusterLoadAssignment) fleet.Mark {
	service, change, ok := ring.ChangeOf(a)
	if !ok {
		return fleet.Mark{}
	}
	return fleet.Mark{Service: service + 1, Change: change}
}

// setter makes a change, given by its number, to one service.
type setter func(service, change int) error

// serve runs as the control plane's process: it prints its address, then for each line "SERVICE CHANGE" the times at
// which the change began and ended, in ns by pace.Now. For "0 0" it collects garbage instead.
func (o options) serve(options) error {
	defer controlplane.BoundGarbage()()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	var set setter
	if o.plane == "own" {
		set, err = o.own(l)
	} else {
		set, err = o.snapshot(l)
	}
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var service, change int
		if _, err := fmt.Sscan(lines.Text(), &service, &change); err != nil {
			return err
		}
		at := pace.Now()
		if change == 0 {
			for range 3 {
				runtime.GC() // stacks shrink as well
			}
			debug.FreeOSMemory()
		} else if err := set(service, change); err != nil {
			return err
		}
		fmt.Println(at, pace.Now())
	}
	return lines.Err()
}

func (o options) own(l net.Listener) (setter, error) {
	m, err := o.ring().Config(1).Compile()
	if err != nil {
		return nil, err
	}
	p, err := controlplane.NewPlane(context.Background(), m, controlplane.PlaneOptions{})
	if err != nil {
		return nil, err
	}
	if o.tls {
		if err := o.writeCredentials(p, m); err != nil {
			return nil, err
		}
	}
	go func() { fmt.Fprintln(os.Stderr, p.Serve(l)) }()
	return func(service, change int) error {
		of := map[string][]proxyconfig.Endpoint{ring.Service(service): ring.Endpoints(service, change)}
		_, err := p.SetEndpoints(context.Background(), of)
		return err
	}, nil
}

// writeCredentials writes the credentials with which proxies connect, in a directory for each service, because a
// service's proxies share its identity.
func (o options) writeCredentials(p *controlplane.Plane, m *proxyconfig.Mesh) error {
	for i := range min(o.services, o.proxies) {
		c, err := p.Authority().Credentials(m.Identity(ring.Proxy(i)))
		if err != nil {
			return err
		}
		dir := o.directory(i)
		if err := os.Mkdir(dir, 0o700); err != nil {
			return err
		}
		if err := c.WriteFiles(dir); err != nil {
			return err
		}
	}
	return nil
}

func (o options) directory(proxy int) string {
	return filepath.Join(o.credentials, ring.Service(proxy%o.services))
}

// tlsOf returns the TLS configuration of each proxy, or nil without -tls.
func (o options) tlsOf() (func(int) *tls.Config, error) {
	if !o.tls {
		return nil, nil
	}
	var all []*tls.Config
	for i := range min(o.services, o.proxies) {
		c, err := authority.ReadFiles(o.directory(i))
		if err != nil {
			return nil, err
		}
		all = append(all, authority.ClientTLS(func() (authority.Credentials, error) { return c, nil },
			authority.ControlPlane(authority.DefaultTrustDomain)))
	}
	return func(i int) *tls.Config { return all[i%len(all)] }, nil
}

// snapshot serves the mesh from go-control-plane's cache.
func (o options) snapshot(l net.Listener) (setter, error) {
	m, err := o.ring().Config(1).Compile()
	if err != nil {
		return nil, err
	}
	p, err := snapshot.New(context.Background(), m)
	if err != nil {
		return nil, err
	}
	go func() { fmt.Fprintln(os.Stderr, p.Serve(l)) }()
	return func(service, change int) error {
		of := map[string][]proxyconfig.Endpoint{ring.Service(service): ring.Endpoints(service, change)}
		_, err := p.SetEndpoints(context.Background(), of)
		return err
	}, nil
}

// plane is the process of a control plane.
type plane struct {
	cmd     *exec.Cmd
	in      interface{ Write([]byte) (int, error) }
	out     *bufio.Reader
	address string
}

func start(o options) (*plane, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &plane{cmd: exec.Command(self, append(os.Args[1:], "-serve", "-credentials", o.credentials)...)}
	p.cmd.Stderr = os.Stderr
	in, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.in, p.out = in, bufio.NewReader(out)
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	p.address, err = p.out.ReadString('\n')
	p.address = strings.TrimSpace(p.address)
	return p, err
}

// tell has the control plane make a change, and returns when the change began and ended, in ns by pace.Now.
func (p *plane) tell(service, change int) (from, to int64, err error) {
	if _, err := fmt.Fprintln(p.in, service, change); err != nil {
		return 0, 0, err
	}
	line, err := p.out.ReadString('\n')
	if err == nil {
		_, err = fmt.Sscan(line, &from, &to)
	}
	return from, to, err
}

// memory collects the garbage of the process, and returns its resident memory in bytes.
func (p *plane) memory() (float64, error) {
	if _, _, err := p.tell(0, 0); err != nil {
		return 0, err
	}
	return p.resident()
}

func (p *plane) resident() (float64, error) {
	now, _, err := proc.FS{}.Resident(p.cmd.Process.Pid)
	return float64(now), err
}

// settled waits until the process's resident memory, in bytes, has not fallen by more than 1 % for about 25 s, and
// returns it.
func (p *plane) settled() (least float64, err error) {
	for n := 0; n < 25; n++ {
		now, err := p.resident()
		if err != nil {
			return 0, err
		}
		if least == 0 || now < 0.99*least {
			least, n = now, 0
		}
		time.Sleep(time.Second)
	}
	return least, nil
}

// cpu is the CPU time of the process, in seconds.
func (p *plane) cpu() (float64, error) {
	used, err := proc.Runtime(p.cmd.Process.Pid)
	return used.Seconds(), err
}

func weigh(o options) (err error) {
	if o.credentials, err = os.MkdirTemp("", "tare-controlplane-"); err != nil {
		return err
	}
	defer os.RemoveAll(o.credentials)
	p, err := start(o)
	if err != nil {
		return err
	}
	defer func() { _ = p.cmd.Process.Kill(); _ = p.cmd.Wait() }()
	result := map[string]any{"plane": o.plane, "proxies": o.proxies, "services": o.services, "world": o.world,
		"tls": o.tls}
	secure, err := o.tlsOf()
	if err != nil {
		return err
	}
	put := func(name string, v float64) { result[name] = v }
	idle, err := p.memory()
	if err != nil {
		return err
	}
	put("memory_idle", idle)
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	f := fleet.New(o.proxies, fleet.Options{Address: p.address, Delta: !o.world, MarkOf: markOf, TLS: secure,
		Node:  func(i int) *corev3.Node { return &corev3.Node{Id: ring.Proxy(i)} },
		OnEnd: func(i int, err error) { fmt.Fprintf(os.Stderr, "proxy %d: %v\n", i, err) }})
	defer f.Close()
	cpu, err := p.cpu()
	if err != nil {
		return err
	}
	began := pace.Now()
	if err := f.Connect(ctx, 0, o.proxies); err != nil {
		return err
	}
	at, err := f.Complete(ctx)
	if err != nil {
		return err
	}
	put("rollout_seconds", float64(at[len(at)-1]-began)/1e9)
	put("rollout_median_seconds", float64(at[len(at)/2]-began)/1e9)
	after, err := p.cpu()
	if err != nil {
		return err
	}
	put("rollout_cpu_seconds", after-cpu)
	put("rollout_bytes", float64(f.Counts().Bytes))
	full, err := p.settled()
	if err != nil {
		return err
	}
	put("memory_per_proxy", (full-idle)/float64(o.proxies))
	if err := o.change(ctx, p, f, put); err != nil {
		return err
	}
	if err := o.storm(ctx, p, f, result); err != nil {
		return err
	}
	f.Close()
	left, err := p.settled()
	if err != nil {
		return err
	}
	put("memory_left", left)
	return json.NewEncoder(os.Stdout).Encode(result)
}

// storm has all proxies reconnect at once, again and again: alternately with all well-behaved, and with some
// misbehaving.
func (o options) storm(ctx context.Context, p *plane, f *fleet.Fleet, result map[string]any) error {
	good := func(int) fleet.Manner { return fleet.Manner{} }
	bad := func(i int) fleet.Manner {
		switch i % 100 {
		case 0:
			return fleet.Manner{Slow: time.Second}
		case 50:
			return fleet.Manner{Floods: true}
		}
		return fleet.Manner{}
	}
	took := map[bool][]float64{}
	for n := range 2 * o.storms {
		f.Disconnect(0, o.proxies)
		manner := good
		if n%2 == 1 {
			manner = bad
		}
		f.Behave(manner)
		began := pace.Now()
		if err := f.Connect(ctx, 0, o.proxies); err != nil {
			return err
		}
		at, err := f.Complete(ctx)
		if err != nil {
			return err
		}
		// Leave out the last hundredth of the proxies: in storms with slow ones, those are the slow ones.
		took[n%2 == 1] = append(took[n%2 == 1], float64(at[len(at)-1-o.proxies/100]-began)/1e9)
		if n%2 == 1 {
			memory, err := p.settled()
			if err != nil {
				return err
			}
			result["memory_storm"] = memory
		}
	}
	if o.storms > 0 {
		result["storm_seconds"], result["storm_with_bad_seconds"] = took[false], took[true]
	}
	return nil
}

// change changes one service at a time, and measures how long each change takes to reach the proxies that call the
// service.
func (o options) change(ctx context.Context, p *plane, f *fleet.Fleet, put func(string, float64)) error {
	var first, median, last, answered, set []float64
	before, err := p.cpu()
	if err != nil {
		return err
	}
	bytes := f.Counts().Bytes
	for n := range o.changes {
		service := n * 7 % o.services
		wait := f.Expect(fleet.Mark{Service: service + 1, Change: n + 2}, len(o.ring().Callers(service)))
		from, to, err := p.tell(service, n+2)
		if err != nil {
			return err
		}
		s, err := wait(ctx)
		if err != nil {
			return err
		}
		k := len(s.Received)
		set = append(set, float64(to-from)/1e9)
		first, median = append(first, float64(s.Received[0]-from)/1e9), append(median, float64(s.Received[k/2]-from)/1e9)
		last, answered = append(last, float64(s.Received[k-1]-from)/1e9), append(answered, float64(s.Answered[k-1]-from)/1e9)
	}
	after, err := p.cpu()
	if err != nil {
		return err
	}
	put("change_cpu_seconds", (after-before)/float64(o.changes))
	put("change_bytes", float64(f.Counts().Bytes-bytes)/float64(o.changes))
	for name, list := range map[string][]float64{"set": set, "first": first, "median": median, "last": last,
		"answered": answered} {
		slices.Sort(list)
		put("change_"+name+"_seconds", list[len(list)/2])
		put("change_"+name+"_max_seconds", list[len(list)-1])
	}
	return nil
}
