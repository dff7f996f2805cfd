package redirect

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/link"
	"tare/internal/experiment/placement"
	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
)

// The test binary runs as a load that connects to an address and prints what it receives, or as a proxy that prints
// where it listens.
const (
	clientEnv = "TARE_TEST_CONNECT"
	proxyEnv  = "TARE_TEST_PROXY"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == placement.EnterCommand {
		err := placement.Enter(os.Args[2:])
		fmt.Fprintln(os.Stderr, err)
		os.Exit(int(fault.CodeOf(err)))
	}
	if os.Getenv(proxyEnv) != "" {
		l, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		fmt.Println(l.Addr())
		answer(l, "client")
	}
	if to := os.Getenv(clientEnv); to != "" {
		fmt.Print(told(net.Dial("tcp", to)))
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// told returns what a connection receives.
func told(c net.Conn, err error) string {
	if err != nil {
		return err.Error()
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	text, err := io.ReadAll(c)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// serve listens in a namespace until the test ends, and answers.
func serve(t *testing.T, n *link.Namespace, name, address string, transparent bool) netip.AddrPort {
	t.Helper()
	var l net.Listener
	err := n.Do(func() (err error) {
		c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
			if !transparent {
				return nil
			}
			_ = raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_TRANSPARENT, 1) })
			return err
		}}
		l, err = c.Listen(context.Background(), "tcp4", address)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go answer(l, name)
	return l.Addr().(*net.TCPAddr).AddrPort()
}

// answer sends each client the server's name and the original destination of the connection.
func answer(l net.Listener, name string) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		fmt.Fprintf(c, "%s: %s", name, destination(c.(*net.TCPConn)))
		c.Close()
	}
}

// proxyIn starts a proxy in a control group and a namespace, and returns where it listens.
func proxyIn(t *testing.T, g *placement.Group, n *link.Namespace) netip.AddrPort {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env, cmd.Stderr = append(os.Environ(), proxyEnv+"=1"), os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = g.StartIn(cmd, n.Path())
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var at string
	if _, err := fmt.Fscan(out, &at); err != nil {
		t.Fatal(err)
	}
	return netip.MustParseAddrPort(at)
}

// TestWays: in each way the proxies of both pods get the redirected connections with their destinations, and the
// application gets connections from its own pod.
func TestWays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	layout, err := cgroup.Discover(cgroup.Roots{})
	if err != nil {
		t.Fatal(err)
	}
	tree, err := placement.NewTree(layout, "redirect-test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tree.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, way := range Ways[1:] {
		t.Run(way, func(t *testing.T) {
			loads, err := tree.Group(way+"/loads", placement.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			p, err := NewPods()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := p.Close(); err != nil {
					t.Error(err)
				}
			})
			app := serve(t, p.Server, "app", netip.AddrPortFrom(Server, 0).String(), false)
			server := serve(t, p.Server, "server", netip.AddrPortFrom(Server, 0).String(), way == TPROXY)
			own, err := tree.Group(way+"/proxy", placement.Limits{})
			if err != nil {
				t.Fatal(err)
			}
			client := proxyIn(t, own, p.Client)
			service := netip.AddrPortFrom(Service, app.Port())
			taking := Taking{Way: way, Connections: 8, Loads: loads.V2Dir(), Proxies: []string{own.V2Dir()},
				Outbound: []Taken{{service, client}}, Inbound: []Taken{{app, server}}}
			r, err := taking.Install(p)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := r.Close(); err != nil {
					t.Error(err)
				}
			})
			connect := func(g *placement.Group, to netip.AddrPort) string {
				var out strings.Builder
				cmd := exec.Command("/proc/self/exe")
				cmd.Env = append(os.Environ(), clientEnv+"="+to.String())
				cmd.Stdout, cmd.Stderr = &out, &out
				if err := g.StartIn(cmd, p.Client.Path()); err != nil {
					t.Fatal(err)
				}
				_ = cmd.Wait()
				return out.String()
			}
			for range 3 {
				if got, want := connect(loads, service), "client: "+service.String(); got != want {
					t.Errorf("a load that connects to the service is told %q, want %q", got, want)
				}
			}
			dial := func(n *link.Namespace, to netip.AddrPort) string {
				return told(n.DialContext(t.Context(), "tcp", to.String()))
			}
			if got, want := dial(p.Client, app), "server: "+app.String(); got != want {
				t.Errorf("who connects to the application is told %q, want %q", got, want)
			}
			if got, want := dial(p.Server, app), "app: "+app.String(); got != want {
				t.Errorf("the proxy beside the application is told %q, want %q", got, want)
			}
			if n := len(r.Objects().Programs); (n > 0) != (way == EBPF) {
				t.Errorf("%d programs", n)
			}
		})
	}
}

// TestCheck: Check succeeds for what this machine can do, and otherwise its error says what is missing.
func TestCheck(t *testing.T) {
	for _, way := range Ways {
		err := Check(way)
		if err == nil {
			continue
		}
		if os.Geteuid() == 0 {
			t.Errorf("%s: %v", way, err)
		}
		if fault.CodeOf(err) != fault.Machine || fault.HintOf(err) == "" {
			t.Errorf("%s: %v is of code %d, with the hint %q", way, err, fault.CodeOf(err), fault.HintOf(err))
		}
	}
}

// TestCheckWithoutV2: where programs cannot be attached to the loads, ebpf is refused before anything is made.
func TestCheckWithoutV2(t *testing.T) {
	const tree = "../../scale/host/cgroup/testdata/v1"
	err := check(EBPF, cgroup.Roots{Proc: tree + "/proc", Prefix: tree})
	if fault.CodeOf(err) != fault.Machine || !strings.Contains(fault.HintOf(err), "cgroup2") {
		t.Errorf("%v, with the hint %q", err, fault.HintOf(err))
	}
}
