package sidecartest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tare/internal/experiment/kind"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/mesh/sidecar"
	apphttp "tare/internal/workloads/app/http"
	"tare/test/serving"
)

// Options describes how a kind of proxies differs from the others.
type Options struct {
	// Identities says that the proxy of the server checks the identity in a client's certificate, and not only who signed
	// the certificate.
	Identities bool
	// Files says that certificates are files in the directories of the proxies.
	Files bool
	// Blind says that the proxy does not learn the original destinations of redirected connections.
	Blind bool
	// Validate makes the proxy's own program check the configuration in a directory. It is nil if the program has no such
	// check.
	Validate func(t *testing.T, found sidecar.Found, dir string)
	// Needs is the program that the tests need; they are skipped without it.
	Needs string
}

// Conform tests that a kind of proxies does what all kinds must do.
func Conform(t *testing.T, p sidecar.Proxy, o Options) {
	g := sidecar.Guest{Proxy: p}
	defaults := Part(g, nil).Options
	if err := g.Installed(t.Context(), defaults); err != nil {
		t.Skipf("needs %s: %v", o.Needs, err)
	}
	t.Run("traffic", func(t *testing.T) { traffic(t, g, o) })
	t.Run("bytes", func(t *testing.T) { bytesThrough(t, g) })
	t.Run("protocols", func(t *testing.T) { protocols(t, g) })
	t.Run("strict", func(t *testing.T) { strict(t, g, o) })
	t.Run("rules", func(t *testing.T) { rules(t, g, o) })
	t.Run("services", func(t *testing.T) { services(t, g, o) })
	t.Run("killed", func(t *testing.T) { killed(t, g) })
	t.Run("unready", func(t *testing.T) { unready(t, g) })
	t.Run("redirected", func(t *testing.T) { redirected(t, g, o) })
	t.Run("missing", func(t *testing.T) { missing(t, g) })
	t.Run("version", func(t *testing.T) {
		name, version := g.Version(t.Context(), defaults, "own")
		if name != p.About().Name || version == "" || strings.ContainsAny(version, " \n") {
			t.Errorf("it is %q %q", name, version)
		}
	})
}

// temporary makes the test's temporary files go to a new directory, which it returns.
func temporary(t *testing.T) string {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o755); err != nil { // proxies that give up root must be able to pass through it
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(dir), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("TMPDIR", dir)
	return dir
}

// nothingLeft: the processes of the proxies have ended, and their files are gone.
func nothingLeft(t *testing.T, dir string, pids []int) {
	t.Helper()
	for _, pid := range pids {
		if !gone(pid) {
			t.Errorf("process %d is still running", pid)
		}
	}
	if left, err := filepath.Glob(filepath.Join(dir, "tare-scratch-*")); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
}

// pidsOf returns the IDs of all processes of some proxies.
func pidsOf(found []sidecar.Found) (pids []int) {
	for _, f := range found {
		for _, p := range f.Processes {
			pids = append(pids, p.PID)
		}
	}
	return pids
}

// traffic: requests get through any number of proxies, on connections that are kept open. The proxies have the
// requested number of workers, keep their certificates and keys private, and report on themselves.
func traffic(t *testing.T, g sidecar.Guest, o Options) {
	for _, c := range []struct{ hops, mtls, workers string }{
		{"0", "true", "1"}, {"1", "true", "1"}, {"2", "false", "1"}, {"2", "true", "2"},
	} {
		t.Run(fmt.Sprintf("hops %s mtls %s", c.hops, c.mtls), func(t *testing.T) {
			dir := temporary(t)
			app := NewApp(t, "server")
			x := NewTrial(t, map[string]string{"server": app.Address})
			p := x.MustStart(g, param.Values{"hops": c.hops, "mtls": c.mtls, "workers": c.workers})
			ready := app.Connections.Load()
			client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 4}}
			const requests = 200
			for i := range requests {
				path := fmt.Sprintf("/a%%20b?n=%d", i)
				if got, want := Get(t, client, p.Address("server"), path), "server GET "+path+" "; got != want {
					t.Fatalf("the answer is %q, want %q", got, want)
				}
			}
			// The client has one connection. Each worker may have connected to the application once because of it.
			if n := app.Connections.Load() - ready; n > 4 {
				t.Errorf("%d requests took %d connections to the application", requests, n)
			}
			evidence := p.Evidence()
			if len(evidence.Proxies) != int(c.hops[0]-'0') || evidence.MTLS != (c.hops == "2" && c.mtls == "true") {
				t.Errorf("%s hops: %+v", c.hops, evidence)
			}
			for _, f := range evidence.Proxies {
				looks(t, f, c.workers)
				if dirs := dirsOf(t, dir, f); o.Validate != nil {
					o.Validate(t, f, dirs)
				}
			}
			private(t, dir)
			x.NoFailure()
			p.Close()
			nothingLeft(t, dir, pidsOf(evidence.Proxies))
		})
	}
}

// bytesThrough: if the proxies carry bytes, what is not HTTP gets through as well, and one connection opens one at each
// hop.
func bytesThrough(t *testing.T, g sidecar.Guest) {
	set := param.Values{"protocol": sidecar.ProtocolTCP}
	if err := g.Installed(t.Context(), Part(g, set).Options); err != nil {
		t.Skipf("needs more than the program: %v", err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	temporary(t)
	x := NewTrial(t, map[string]string{"server": l.Addr().String()})
	x.Speaking("server", kind.AnyProtocol)
	p := x.MustStart(g, set)
	c, err := net.Dial("tcp", p.Address("server"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, said := range []string{"\x00\x01 not HTTP", strings.Repeat("b", 100_000)} {
		_ = c.SetDeadline(time.Now().Add(20 * time.Second))
		go io.WriteString(c, said)
		heard := make([]byte, len(said))
		if _, err := io.ReadFull(c, heard); err != nil || string(heard) != said {
			t.Fatalf("%d bytes came back otherwise: %v", len(said), err)
		}
	}
	x.NoFailure()
}

// protocols: HTTP/2 and gRPC get through with a body of 1 MiB, and reach the application in the same protocol.
func protocols(t *testing.T, g sidecar.Guest) {
	large := strings.Repeat("large ", 1<<20/6)
	for _, protocol := range []string{sidecar.ProtocolHTTP2, sidecar.ProtocolGRPC} {
		t.Run(protocol, func(t *testing.T) {
			set := param.Values{"protocol": protocol}
			if err := g.Check(Part(g, set).Options); err != nil {
				if !strings.Contains(err.Error(), protocol) { // proxies that do not carry the protocol must say so
					t.Error(err)
				}
				return
			}
			temporary(t)
			app := NewApp(t, "server")
			over := apphttp.HTTP2
			if protocol == sidecar.ProtocolGRPC {
				over = apphttp.GRPC
				app.Address = echo(t, over)
			}
			x := NewTrial(t, map[string]string{"server": app.Address})
			x.Speaking("server", string(over))
			p := x.MustStart(g, set)
			at := p.Address("server")
			if protocol == sidecar.ProtocolGRPC {
				c, err := grpc.NewClient(at, grpc.WithTransportCredentials(insecure.NewCredentials()))
				if err != nil {
					t.Fatal(err)
				}
				defer c.Close()
				var heard wrapperspb.BytesValue
				err = c.Invoke(t.Context(), "/tare.Echo/Echo", wrapperspb.Bytes([]byte(large)), &heard)
				if err != nil || string(heard.GetValue()) != large {
					t.Errorf("of %d bytes %d came back: %v", len(large), len(heard.GetValue()), err)
				}
				if err := c.Invoke(t.Context(), "/tare.Echo/None", &heard, &heard); status.Code(err) != codes.Unimplemented {
					t.Errorf("the status of the application does not get through: %v", err)
				}
			} else {
				ready := app.Connections.Load()
				client := over2()
				body := large
				for i := range 20 {
					path := fmt.Sprintf("/%d", i)
					if got, want := post(t, client, at, path, body), "server POST "+path+" "+body; got != want {
						t.Fatalf("%d bytes came back, not %d", len(got), len(want))
					}
					body = "small"
				}
				if n := app.Connections.Load() - ready; n > 2 {
					t.Errorf("20 requests took %d connections to the application", n)
				}
				if n := app.Over2.Load(); n < 20 {
					t.Errorf("%d requests reached the application over HTTP/2", n)
				}
			}
			x.NoFailure()
		})
	}
}

// over2 returns a client that speaks HTTP/2 without negotiation (prior knowledge).
func over2() *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	return &http.Client{Transport: &http.Transport{Protocols: p}}
}

// echo runs an HTTP application of experiments until the test ends, and returns its address.
func echo(t *testing.T, over apphttp.Protocol) string {
	t.Helper()
	return serving.Start(t, func(ctx context.Context, ready func(apphttp.Ready) error) error {
		return apphttp.Serve(ctx, apphttp.Options{Listen: "127.0.0.1:0", Protocol: over}, ready)
	}).Address
}

// post makes a request with a body and returns the body of the answer.
func post(t *testing.T, client *http.Client, address, path, body string) string {
	t.Helper()
	resp, err := client.Post("http://"+address+path, "text/plain", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	heard, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK || resp.ProtoMajor != 2 {
		t.Fatalf("status %d over %s, %v", resp.StatusCode, resp.Proto, err)
	}
	return string(heard)
}

// dirsOf returns the directory of a proxy.
func dirsOf(t *testing.T, dir string, f sidecar.Found) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(dir, "tare-scratch-sidecar-*", f.Component+"-"+f.App))
	if err != nil || len(found) != 1 {
		t.Fatalf("the directories of %s are %v, %v", f.Component, found, err)
	}
	return found[0]
}

// looks: a proxy has processes, at least the requested number of threads, and a command line, and its evidence lacks
// nothing.
func looks(t *testing.T, f sidecar.Found, workers string) {
	t.Helper()
	if len(f.Processes) == 0 || f.Unsaid != "" || f.Command == "" {
		t.Errorf("%s: %+v", f.Component, f)
	}
	// A proxy has as many threads, in one process or several, as workers were asked for, or more.
	threads := 0
	for _, p := range f.Processes {
		tasks, _ := os.ReadDir(fmt.Sprintf("/proc/%d/task", p.PID))
		threads += len(tasks)
	}
	if workers == "2" && threads < 2 {
		t.Errorf("%s has %d threads for two workers", f.Component, threads)
	}
}

// private: only their owner can read the certificates and keys (*.pem) of proxies.
func private(t *testing.T, dir string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() || e.Type()&fs.ModeSocket != 0 {
			return err
		}
		info, err := e.Info()
		if err == nil && info.Mode().Perm()&0o077 != 0 && strings.HasSuffix(path, ".pem") {
			t.Errorf("%s has mode %o", path, info.Mode().Perm())
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// serverOf returns the address at which the proxy of a server listens.
func serverOf(p *Proxies, app string) string { return p.Found(sidecar.Server, app).Listen }

// strict: with mTLS the proxy of the server accepts only requests with the right client's certificate, and no other
// request reaches the application.
func strict(t *testing.T, g sidecar.Guest, o Options) {
	dir := temporary(t)
	app, other := NewApp(t, "server"), NewApp(t, "other")
	x := NewTrial(t, map[string]string{"server": app.Address, "other": other.Address})
	p := x.MustStart(g, param.Values{"hops": "2", "mtls": "true"})
	at := serverOf(p, "server")
	before := app.Requests.Load()

	if said, err := rawRequest(at); err == nil && strings.Contains(said, "server GET") {
		t.Errorf("plaintext was answered with %q", said)
	}
	var own *tls.Certificate
	if o.Files {
		pair := readIdentity(t, dir, sidecar.Client, "server")
		own = &pair
	}
	stranger := foreign(t)
	for _, c := range []struct {
		name    string
		certs   []tls.Certificate
		refused bool
	}{
		{"no certificate", nil, true},
		{"a foreign certificate", []tls.Certificate{stranger}, true},
	} {
		if err := tlsRequest(at, c.certs); (err != nil) != c.refused {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if own != nil {
		if err := tlsRequest(at, []tls.Certificate{*own}); err != nil {
			t.Errorf("the right certificate, and what is refused above may be refused for another reason: %v", err)
		}
		before++
		alike(t, at, *own)
		// This certificate is signed by the same root, but for another identity.
		if err := tlsRequest(at, []tls.Certificate{readIdentity(t, dir, sidecar.Client, "other")}); o.Identities &&
			err == nil {
			t.Error("the certificate of another identity was taken")
		} else if !o.Identities && err != nil {
			t.Errorf("docs say that it does not check identities, and it does: %v", err)
		} else if err == nil {
			before++
		}
	}
	if n := app.Requests.Load() - before; n != 0 {
		t.Errorf("%d requests of strangers reached the application", n)
	}
	if got := Get(t, http.DefaultClient, p.Address("other"), "/x"); got != "other GET /x " {
		t.Errorf("the other application answers %q", got)
	}
	x.NoFailure()
}

// rawRequest makes a request without TLS.
func rawRequest(at string) (string, error) {
	c, err := net.DialTimeout("tcp", at, 30*time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"); err != nil {
		return "", err
	}
	said, err := io.ReadAll(io.LimitReader(c, 1<<16))
	return string(said), err
}

// tlsRequest makes a request over TLS with some certificates. It returns an error unless the application answered.
func tlsRequest(at string, certs []tls.Certificate) error {
	tr := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{
		Certificates: certs, InsecureSkipVerify: true, // the identity of the server does not matter here
	}}
	resp, err := (&http.Client{Transport: tr, Timeout: 30 * time.Second}).Get("https://" + at + "/")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.Header.Get("X-App") == "" {
		return fmt.Errorf("status %d", resp.StatusCode)
	}
	return nil
}

// alike: the server proxies of all kinds use the same TLS version, cipher suite and curve, resume no session, and
// refuse TLS 1.2.
func alike(t *testing.T, at string, cert tls.Certificate) {
	t.Helper()
	sessions := tls.NewLRUClientSessionCache(4)
	for range 2 {
		c, err := tls.Dial("tcp", at, &tls.Config{
			Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, ServerName: "a", ClientSessionCache: sessions,
		})
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(50 * time.Millisecond)) // not a deadline: tickets may come
		_, _ = c.Read(make([]byte, 1))                               // session tickets, if the proxy sends any
		s := c.ConnectionState()
		_ = c.Close()
		if s.Version != tls.VersionTLS13 || s.CipherSuite != tls.TLS_AES_128_GCM_SHA256 || s.CurveID != tls.X25519 ||
			s.DidResume {
			t.Errorf("TLS is %s, %s, %v, resumed: %v", tls.VersionName(s.Version), tls.CipherSuiteName(s.CipherSuite),
				s.CurveID, s.DidResume)
		}
	}
	old := &tls.Config{Certificates: []tls.Certificate{cert}, InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12}
	if c, err := tls.Dial("tcp", at, old); err == nil {
		_ = c.Close()
		t.Error("TLS 1.2 was taken")
	}
}

// rules: with access rules, the identity that the last rule names gets through. One that no rule names gets a refusal,
// and its requests do not reach the application.
func rules(t *testing.T, g sidecar.Guest, o Options) {
	set := param.Values{"rules": "60"}
	if err := g.Check(Part(g, set).Options); err != nil {
		if !strings.Contains(err.Error(), "rules") { // proxies without access rules must say so
			t.Error(err)
		}
		return
	}
	dir := temporary(t)
	app, other := NewApp(t, "server"), NewApp(t, "other")
	x := NewTrial(t, map[string]string{"server": app.Address, "other": other.Address})
	p := x.MustStart(g, set)
	if got := Get(t, http.DefaultClient, p.Address("server"), "/x"); got != "server GET /x " {
		t.Errorf("the application answers %q", got)
	}
	if e := p.Evidence(); e.Rules != 60 {
		t.Errorf("the evidence has %d rules", e.Rules)
	}
	if o.Files {
		before := app.Requests.Load()
		stranger := readIdentity(t, dir, sidecar.Client, "other")
		if err := tlsRequest(serverOf(p, "server"), []tls.Certificate{stranger}); err == nil ||
			err.Error() != fmt.Sprintf("status %d", http.StatusForbidden) {
			t.Errorf("an identity that no rule names: %v", err)
		}
		if n := app.Requests.Load() - before; n != 0 {
			t.Errorf("%d of its requests reached the application", n)
		}
	}
	x.NoFailure()
}

// services: under permissive discovery the client's proxy takes connections to every service of the mesh, and under
// discovery by policy only to that of its application. Proxies with a control plane forget services that are removed.
func services(t *testing.T, g sidecar.Guest, o Options) {
	const count = 40
	for _, discovery := range []string{sidecar.DiscoveryPolicy, sidecar.DiscoveryPermissive} {
		t.Run(discovery, func(t *testing.T) {
			dir := temporary(t)
			app := NewApp(t, "server")
			x := NewTrial(t, map[string]string{"server": app.Address})
			set := param.Values{"services": strconv.Itoa(count), "discovery": discovery}
			_, goesDown := g.Proxy.(sidecar.Changer)
			if goesDown {
				set["then-services"] = "11"
			} else if err := g.Check(Part(g, param.Values{"then-services": "1"}).Options); err == nil {
				t.Error("it accepts then-services, and cannot forget services")
			}
			p := x.MustStart(g, set)
			if got := Get(t, http.DefaultClient, p.Address("server"), "/x"); got != "server GET /x " {
				t.Errorf("the application answers %q", got)
			}
			known := 0
			if discovery == sidecar.DiscoveryPermissive {
				known = count - 1
			}
			client := []int{x.client(t)}
			if n := elsewhere(t, client); n != known {
				t.Errorf("the client's proxy listens for %d further services, not %d", n, known)
			}
			evidence := p.Evidence()
			if goesDown {
				known = min(known, 10)
				if len(x.Readings) != 1 {
					t.Errorf("the readings are %q", x.Readings)
				}
			}
			if n := elsewhere(t, client); n != known {
				t.Errorf("the client's proxy listens for %d further services in the end, not %d", n, known)
			}
			if got := Get(t, http.DefaultClient, p.Address("server"), "/y"); got != "server GET /y " {
				t.Errorf("the application answers %q in the end", got)
			}
			for _, f := range evidence.Proxies {
				if len(f.Own) > 100 || f.Unsaid != "" {
					t.Errorf("%s says %d things of itself: %s", f.Component, len(f.Own), f.Unsaid)
				}
				if o.Validate != nil {
					o.Validate(t, f, dirsOf(t, dir, f))
				}
			}
			x.NoFailure()
		})
	}
}

// elsewhere returns the number of addresses in 127.64.0.0/16 at which processes listen.
func elsewhere(t *testing.T, pids []int) (n int) {
	t.Helper()
	own := map[string]bool{}
	for _, pid := range pids {
		fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
		if err != nil {
			t.Fatal(err)
		}
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
				own[strings.Trim(to, "socket:[]")] = true
			}
		}
	}
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{} // by address, since each worker may have a socket for it
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		const address, state, inode = 1, 3, 9
		if len(f) > inode && own[f[inode]] && f[state] == "0A" && strings.HasSuffix(f[address][:8], "407F") {
			found[f[address]] = true
		}
	}
	return len(found)
}

func readIdentity(t *testing.T, dir, component, app string) tls.Certificate {
	t.Helper()
	file := filepath.Join(dirsOf(t, dir, sidecar.Found{Component: component, App: app}), sidecar.IdentityFile)
	pair, err := tls.LoadX509KeyPair(file, file)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// foreign returns a self-signed certificate for an identity of the mesh.
func foreign(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		URIs:        []*url.URL{{Scheme: "spiffe", Host: "mesh.local", Path: "/ns/default/sa/client-of-server"}},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// killed: a proxy that dies fails the trial with its name and the signal. So does a worker, even if the proxy's first
// process would replace it. Nothing of the proxy is left.
func killed(t *testing.T, g sidecar.Guest) {
	for _, component := range []string{sidecar.Client, sidecar.Server} {
		t.Run(component, func(t *testing.T) {
			dir := temporary(t)
			app := NewApp(t, "server")
			x := NewTrial(t, map[string]string{"server": app.Address})
			p := x.MustStart(g, nil)
			evidence := p.Evidence()
			if err := errors.New("any"); !errors.Is(p.part.(kind.Explainer).Explain(err), err) {
				t.Error("the proxies that live explain an error")
			}
			pids := pidsOf([]sidecar.Found{p.Found(component, "server")})
			slices.Sort(pids)
			if err := unix.Kill(pids[0], unix.SIGKILL); err != nil {
				t.Fatal(err)
			}
			err := x.Failure()
			if err == nil || !strings.Contains(err.Error(), component) || !strings.Contains(err.Error(), "killed") {
				t.Errorf("the trial failed because of %v", err)
			}
			if err := p.After(); err == nil {
				t.Error("the trial went on")
			}
			// A later error of something else is explained by the proxy's end; the proxy's own error stays as it is.
			other := errors.New("a load was refused a connection")
			explained := p.part.(kind.Explainer).Explain(other)
			if !errors.Is(explained, other) || !strings.HasPrefix(explained.Error(), component) {
				t.Errorf("the failure of a load is explained by %v", explained)
			}
			if again := p.part.(kind.Explainer).Explain(err); again.Error() != err.Error() {
				t.Errorf("%v became %v", err, again)
			}
			p.Close()
			nothingLeft(t, dir, pidsOf(evidence.Proxies))
		})
	}
	if _, driven := g.Proxy.(sidecar.Driven); driven {
		t.Run("control plane", func(t *testing.T) { killedPlane(t, g) })
	}
	t.Run("worker", func(t *testing.T) {
		app := NewApp(t, "server")
		x := NewTrial(t, map[string]string{"server": app.Address})
		p := x.MustStart(g, nil)
		pids := pidsOf([]sidecar.Found{p.Found(sidecar.Server, "server")})
		if len(pids) < 2 {
			t.Skip("it has one process")
		}
		slices.Sort(pids)
		if err := unix.Kill(pids[len(pids)-1], unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
		Eventually(t, "the worker has gone", func() bool { return gone(pids[len(pids)-1]) })
		err := p.After()
		if err == nil || !strings.Contains(err.Error(), sidecar.Server) ||
			!strings.Contains(err.Error(), fmt.Sprintf("process %d", pids[len(pids)-1])) {
			t.Errorf("a worker was killed, and the trial says %v", err)
		}
	})
}

// killedPlane: a control plane that dies fails the trial with its name and the signal, and nothing is left.
func killedPlane(t *testing.T, g sidecar.Guest) {
	dir := temporary(t)
	x := NewTrial(t, map[string]string{"server": NewApp(t, "server").Address})
	p := x.MustStart(g, nil)
	evidence := p.Evidence()
	if len(x.started) != 1 {
		t.Fatalf("%d control planes were started", len(x.started))
	}
	if err := unix.Kill(x.started[0].PID(), unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := x.Failure(); err == nil || !strings.Contains(err.Error(), "controlplane") ||
		!strings.Contains(err.Error(), "killed") {
		t.Errorf("the trial failed because of %v", err)
	}
	p.Close()
	nothingLeft(t, dir, append(pidsOf(evidence.Proxies), x.started[0].PID()))
}

// unready: if the application does not serve, no request gets through the proxies, and their start fails with an error
// of the machine that says so.
func unready(t *testing.T, g sidecar.Guest) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close() // no process listens there now
	dir := temporary(t)
	x := NewTrial(t, map[string]string{"server": address})
	p, err := x.Start(g, param.Values{"ready-timeout": "300ms"}) // deadline under test
	if err == nil || !strings.Contains(err.Error(), "no request got through the proxies to server within 300ms") ||
		fault.CodeOf(err) != fault.Machine {
		t.Errorf("it is ready: %v", err)
	}
	p.Close()
	nothingLeft(t, dir, nil)
}

// missing: if the program is not installed, the error is one of the machine and says how to get it. If the program's
// path is wrong, the error is one of use.
func missing(t *testing.T, g sidecar.Guest) {
	t.Setenv("PATH", t.TempDir())
	o := Part(g, param.Values{"program": "no-such-proxy"}).Options
	if err := g.Installed(t.Context(), o); fault.CodeOf(err) != fault.Machine || fault.HintOf(err) == "" ||
		!strings.Contains(err.Error(), "no-such-proxy: not installed") {
		t.Errorf("not installed: %v", err)
	}
	o["program"] = filepath.Join(t.TempDir(), "none")
	if err := g.Installed(t.Context(), o); fault.CodeOf(err) != fault.Usage || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no such path: %v", err)
	}
	o["hops"] = "0"
	if err := g.Installed(t.Context(), o); err != nil {
		t.Errorf("without any proxy: %v", err)
	}
	if g.Optional(o) {
		t.Error("the arm is optional by default")
	}
	if o["optional"] = "true"; !g.Optional(o) {
		t.Error("the arm is not optional with optional: true")
	}
}

// RunsAs checks that at least one process named comm, the name of the processes that carry requests, has no rights: its
// real, effective and saved user ID are uid.
func RunsAs(t *testing.T, f sidecar.Found, comm, uid string) {
	t.Helper()
	without := 0
	for _, p := range f.Processes {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/status")
		if err != nil {
			t.Error(err)
		}
		if strings.Contains(string(status), "\nUid:\t"+uid+"\t"+uid+"\t"+uid) && p.Comm == comm {
			without++
		}
	}
	if without == 0 {
		t.Errorf("none of the processes of %s runs as %s: %+v", f.Component, uid, f.Processes)
	}
}
