package sidecar

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/process"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
	"tare/internal/mesh/redirect"
	"tare/internal/scale/host/feature"
	"tare/test/vm/guest"
)

// fake is a kind of proxy that is never started.
type fake struct{}

func (fake) About() About {
	return About{Name: "fake", Program: "echo", Hint: "get it", VersionFlag: "fake 1.0",
		Version: text.LazyRegexp(`^fake (\S+)`)}
}

func (fake) Command(Place) (process.Command, error) { return process.Command{}, nil }

// TestIdentity: certificates have the one identity and the name that other proxies verify, are signed by the root
// beside them, and can be read only by their owner.
func TestIdentity(t *testing.T) {
	guest.KernelFree(t)
	a, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	id, err := identityOf(Client, "server")
	if err != nil {
		t.Fatal(err)
	}
	if err := issue(a, dir, id); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, IdentityFile)
	pair, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	roots, pool := mustRead(t, filepath.Join(dir, RootsFile)), x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	use := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: use, DNSName: nameOf(Client)}); err != nil {
		t.Error(err)
	}
	if len(leaf.URIs) != 1 || leaf.URIs[0].String() != "spiffe://mesh.local/ns/default/sa/client-of-server" || leaf.IsCA {
		t.Errorf("the certificate is of %v, CA: %v", leaf.URIs, leaf.IsCA)
	}
	if strings.Contains(string(roots), "PRIVATE") {
		t.Error("the roots have a key")
	}
	for _, name := range []string{IdentityFile, RootsFile} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

func mustRead(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// app is an application, by its protocol.
type app string

func (a app) About() kind.About { return kind.About{Name: string(a), Protocol: string(a)} }

// TestCheckSetup: HTTP proxies are refused for an application with another protocol, and if no load uses an
// application.
func TestCheckSetup(t *testing.T) {
	guest.KernelFree(t)
	for _, c := range []struct{ speaks, protocol, to, says string }{
		{"http", "http", "server", ""},
		{kind.AnyProtocol, "http", "server", ""},
		{"mesh", "tcp", "server", ""},
		{"", "http", "server", ""}, // an application without a protocol serves nobody
		{"mesh", "http", "server", "the application server speaks mesh: write protocol: tcp"},
		{"http2", "http", "server", ""}, // an HTTP/2 application also serves HTTP/1.1
		{"http2", "http2", "server", ""},
		{"grpc", "grpc", "server", ""},
		{"grpc", "tcp", "server", ""},
		{"http1", "http2", "server", "the application server speaks http1"},
		{"grpc", "http", "server", "understand http, and the application server speaks grpc"},
		{"tcp", "grpc", "server", "speaks tcp"},
		{"http", "http", "", "no load goes to an application"},
	} {
		g := Guest{fake{}}
		o := param.Defaults(g.About().Settings)
		o[settingProtocol] = c.protocol
		s := &kind.Setup{
			Applications: map[string]*kind.Part{"server": {Kind: app(c.speaks)}},
			Loads:        map[string]*kind.Part{"client": {Kind: app("http"), To: c.to}},
		}
		err := g.CheckSetup(s, "arms.a", &kind.Part{Kind: g, Options: o})
		if c.says == "" && err != nil || c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// driven is a kind of proxy with a control plane.
type driven struct{ fake }

func (driven) Drive(context.Context, Drive) (any, error)       { return nil, nil }
func (driven) Change(context.Context, any, Drive) (any, error) { return nil, nil }

// TestCheck: settings about the mesh that contradict others, or the kind of proxy, are refused.
func TestCheck(t *testing.T) {
	guest.KernelFree(t)
	for _, c := range []struct {
		proxy Proxy
		set   param.Values
		says  string
	}{
		{fake{}, param.Values{"rules": "1000"}, ""},
		{fake{}, param.Values{"rules": "1", "protocol": "grpc"}, ""},
		{fake{}, param.Values{"rules": "1", "protocol": "tcp"}, "who makes a request"},
		{fake{}, param.Values{"rules": "1", "mtls": "false"}, "who makes a request"},
		{fake{}, param.Values{"rules": "1", "hops": "1"}, "who makes a request"},
		{fake{}, param.Values{"services": "1000", "discovery": "permissive"}, ""},
		{fake{}, param.Values{"services": "10", "then-services": "1"}, "unlike those of fake"},
		{driven{}, param.Values{"services": "10", "then-services": "1"}, ""},
		{driven{}, param.Values{"services": "10", "then-services": "11"}, "is more than"},
		{fake{}, param.Values{"certificate-life": "2s"}, "unlike fake"},
		{driven{}, param.Values{"certificate-life": "2s"}, ""},
		{driven{}, param.Values{"certificate-life": "2s", "mtls": "false"}, "mtls"},
	} {
		g := Guest{c.proxy}
		o := param.Defaults(g.About().Settings)
		for k, v := range c.set {
			o[k] = v
		}
		if err := g.Check(o); c.says == "" && err != nil ||
			c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%v: %v", c.set, err)
		}
	}
}

// TestCallers: the number of rules is that of the option, all are different, and the last is the caller's.
func TestCallers(t *testing.T) {
	guest.KernelFree(t)
	for _, n := range []int{0, 1, 2, 1000} {
		all := callers(n, "spiffe://me")
		if len(all) != n || n > 0 && all[n-1] != "spiffe://me" ||
			len(slices.Compact(slices.Sorted(slices.Values(all)))) != n {
			t.Errorf("%d rules: %d, the last for %q", n, len(all), all[max(0, len(all)-1):])
		}
	}
}

// TestOthers: further services have separate addresses that nothing else uses, and only a client's proxy listens for
// them.
func TestOthers(t *testing.T) {
	guest.KernelFree(t)
	seen := map[string]bool{}
	for _, o := range others(Client, maxServices, "1234") {
		at, err := netip.ParseAddrPort(o.Listen)
		if err != nil || !netip.MustParsePrefix("127.64.0.0/10").Contains(at.Addr()) || at.Port() != 1234 || seen[o.Listen] {
			t.Fatalf("%s listens at %q, %v", o.Name, o.Listen, err)
		}
		to, err := netip.ParseAddrPort(o.To)
		if err != nil || !netip.MustParsePrefix("198.18.0.0/15").Contains(to.Addr()) || seen[o.To] {
			t.Fatalf("%s goes to %q, %v", o.Name, o.To, err)
		}
		seen[o.Listen], seen[o.To] = true, true
	}
	if o := others(Server, 1, ""); len(o) != 1 || o[0].Listen != "" {
		t.Errorf("the server's is called: %+v", o)
	}
}

// TestMTLS: mutual TLS, if it is turned on, is used between two proxies, and on no other connection.
func TestMTLS(t *testing.T) {
	guest.KernelFree(t)
	for _, c := range []struct {
		hops, mtls string
		want       bool
	}{{"0", "true", false}, {"1", "true", false}, {"2", "true", true}, {"2", "false", false}} {
		if got := MTLS(param.Values{settingHops: c.hops, settingMTLS: c.mtls}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// TestProbes: doctor prints where the program is, or how to get it.
func TestProbes(t *testing.T) {
	guest.KernelFree(t)
	s := Guest{fake{}}.probes()[0].Status()
	if !s.Available || !strings.HasSuffix(s.Detail, "/echo 1.0") {
		t.Errorf("%+v", s)
	}
	t.Setenv("PATH", t.TempDir())
	if s = (Guest{fake{}}).probes()[0].Status(); s.Available || s.Hint != "get it" || s.Detail != "not installed" {
		t.Errorf("%+v", s)
	}
}

// TestSidecars: experiments with sidecars need one of two programs, and the hint says how to install them.
func TestSidecars(t *testing.T) {
	guest.KernelFree(t)
	own, dir := systemDirs, t.TempDir()
	systemDirs = nil
	t.Cleanup(func() { systemDirs = own })
	t.Setenv("PATH", dir)
	err := newSidecars().Err()
	missing, is := errors.AsType[*feature.MissingError](err)
	if !is || !strings.Contains(missing.Hint, "make envoy") || !strings.Contains(missing.Hint, "apt-get install haproxy") {
		t.Errorf("without any: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "haproxy"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if s := newSidecars().Status(); !s.Available || s.Detail != filepath.Join(dir, "haproxy") {
		t.Errorf("with HAProxy: %+v", s)
	}
}

// picky is a kind of proxy that does not support one way of redirection.
type picky struct{ fake }

func (picky) Takes(way string) error {
	if way == redirect.TPROXY {
		return errors.New("not so")
	}
	return nil
}

// TestRedirectNeedsPods: connections are redirected only in pods, and only in ways that a kind of proxy supports.
func TestRedirectNeedsPods(t *testing.T) {
	guest.KernelFree(t)
	for _, c := range []struct{ network, way, says string }{
		{"host", "explicit", ""},
		{"pods", "explicit", ""},
		{"host", "iptables", `"redirect: iptables" works only in pods: write network: pods`},
		{"pods", "iptables", ""},
		{"pods", "tproxy", "not so"},
	} {
		o := param.Defaults(Settings())
		o[settingNetwork], o[settingRedirect] = c.network, c.way
		says := ""
		if err := (Guest{picky{}}).Check(o); err != nil {
			says = err.Error()
		}
		if says != c.says {
			t.Errorf("%s, %s: %q, want %q", c.network, c.way, says, c.says)
		}
	}
}

// A process that has dropped root reaches its files under any umask.
func TestMakeDir(t *testing.T) {
	at := filepath.Join(t.TempDir(), "proxy")
	old := unix.Umask(0o077)
	err := makeDir(at)
	unix.Umask(old)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.Stat(at); err != nil || got.Mode().Perm() != 0o711 {
		t.Errorf("mode %v (%v), want 0711", got.Mode(), err)
	}
}
