package sidecartest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/link"
	"tare/internal/lib/param"
	"tare/internal/mesh/redirect"
	"tare/internal/mesh/sidecar"
)

// loadEnv is the environment variable that turns the test's binary into a load: it makes requests to the address in the
// variable, each on a new connection, and prints the answers.
const loadEnv = "TARE_TEST_LOAD"

const loadRequests = 5

func load(address string) {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	for range loadRequests {
		resp, err := client.Get("http://" + address + "/x")
		if err != nil {
			fmt.Println(err)
			continue
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		fmt.Println(resp.StatusCode, string(body))
	}
}

// redirected: in pods, requests from processes of the load to redirected addresses get through, in each way of
// redirection that the proxy supports. No client gets past the proxies, or reaches them in another way.
func redirected(t *testing.T, g sidecar.Guest, o Options) {
	for _, c := range []struct{ way, hops string }{
		{redirect.Explicit, "0"}, {redirect.Explicit, "2"}, {redirect.IPTables, "2"}, {redirect.TPROXY, "1"},
		{redirect.TPROXY, "2"}, {redirect.EBPF, "2"},
	} {
		t.Run(c.way+" "+c.hops, func(t *testing.T) {
			set := param.Values{"network": "pods", "redirect": c.way, "hops": c.hops}
			part := Part(g, set)
			if err := g.Check(part.Options); err != nil {
				if r, ok := g.Proxy.(sidecar.Redirectable); !ok || r.Takes(c.way) == nil {
					t.Fatal(err)
				}
				return // Check and Takes agree that these proxies do not support this way
			}
			temporary(t)
			x := NewTrial(t, nil)
			p, err := x.join(g, set)
			if err != nil {
				t.Fatal(err)
			}
			app := appInPod(t, x)
			if err := p.part.(kind.Starter).Start(t.Context()); err != nil {
				t.Fatal(err)
			}
			before := app.Requests.Load()
			answers := loadInPod(t, x, p.Address("server"))
			if want := strings.Repeat("200 server GET /x \n", loadRequests); answers != want {
				t.Errorf("the load was answered %q, want %q", answers, want)
			}
			if n := app.Requests.Load() - before; n != loadRequests {
				t.Errorf("the application had %d requests, want %d", n, loadRequests)
			}
			e := p.Evidence()
			if e.Redirect != c.way || e.Network != "pods" {
				t.Errorf("connections came %q in %q", e.Redirect, e.Network)
			}
			if c.way != redirect.Explicit {
				notPast(t, x, e, o)
			}
			x.NoFailure()
		})
	}
}

// appInPod starts an application in its pod, and makes it known to the trial.
func appInPod(t *testing.T, x *Trial) *App {
	t.Helper()
	at, err := x.part.(kind.Networked).Network(kind.Application, "server")
	if err != nil {
		t.Fatal(err)
	}
	host, err := x.part.(kind.Hoster).Host("server")
	if err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	in(t, at, func() error {
		l, err = net.Listen("tcp", net.JoinHostPort(host, "0"))
		return err
	})
	app := newApp(t, "server", l)
	x.apps = map[string]kind.App{"server": {Address: app.Address}}
	x.setup.Applications["server"] = &kind.Part{Kind: application(sidecar.ProtocolHTTP)}
	x.setup.Loads["client"] = &kind.Part{To: "server"}
	return app
}

// in calls a function on a thread that is in a network namespace.
func in(t *testing.T, path string, do func() error) {
	t.Helper()
	n, err := link.OpenNamespace(path)
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.Do(do); err != nil {
		t.Fatal(err)
	}
}

// loadInPod runs a load in its pod, and returns the answers that it gets.
func loadInPod(t *testing.T, x *Trial, address string) string {
	t.Helper()
	begin, err := x.Begin(t.Context(), "client")
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	cmd := exec.Command(x.Self())
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), loadEnv+"="+address), &out, &out
	if err := begin(cmd); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	return out.String()
}

// notPast: connections to the pod of the applications reach the proxy, which requires TLS if the evidence has mTLS. A
// proxy that learns the original destination of connections accepts none whose destination was the proxy itself.
func notPast(t *testing.T, x *Trial, e *sidecar.Evidence, o Options) {
	t.Helper()
	pod, err := x.part.(kind.Networked).Network(kind.Load, "client")
	if err != nil {
		t.Fatal(err)
	}
	get := func(address string) (status int, err error) {
		in(t, pod, func() error {
			d := net.Dialer{}
			c, dialled := d.DialContext(context.Background(), "tcp", address)
			if dialled != nil {
				err = dialled
				return nil
			}
			// The connection belongs to the pod, whichever thread reads from it.
			client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
				DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}}
			resp, got := client.Get("http://" + address + "/past")
			if err = got; err == nil {
				status = resp.StatusCode
				resp.Body.Close()
			}
			return nil
		})
		return status, err
	}
	for _, f := range e.Proxies {
		if f.From == "" {
			t.Errorf("nothing is redirected to %s", f.Component)
		}
		if f.Component == sidecar.Server && e.MTLS {
			if status, err := get(f.From); err == nil && status == http.StatusOK {
				t.Errorf("a connection to %s without TLS gets past the proxy", f.From)
			}
		}
		if status, err := get(f.Listen); !o.Blind && err == nil && status == http.StatusOK {
			t.Errorf("%s takes connections that were not redirected", f.Component)
		}
	}
}
