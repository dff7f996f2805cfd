package http

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"tare/internal/experiment/load"
	"tare/internal/lib/pace"
	"tare/test/envoy"
	"tare/test/port"
)

// freeAddress returns a loopback address at which nothing listens.
func freeAddress(t *testing.T) (host, number string) {
	t.Helper()
	host, number, _ = net.SplitHostPort(port.Free(t))
	return host, number
}

// peer starts an independent server, and waits until it listens.
func peer(t *testing.T, address string, args ...string) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	said, err := os.Create(filepath.Join(t.TempDir(), "said"))
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	cmd.Stdout, cmd.Stderr = said, said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	t.Cleanup(func() {
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
	})
	for deadline := time.Now().Add(time.Minute); ; {
		c, err := net.Dial("tcp", address)
		if err == nil {
			c.Close()
			return
		}
		select {
		case <-ended:
			deadline = time.Time{}
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			b, _ := os.ReadFile(said.Name())
			t.Fatalf("%s does not listen: %v; it said %s", args[0], err, b)
		}
	}
}

// program returns the path of a program that test/setup installs.
func program(t *testing.T, name string) string {
	t.Helper()
	for _, at := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(at); err == nil {
			return path
		}
	}
	t.Skipf("needs %s: see test/setup", name)
	return ""
}

// works fails the test unless a server answers every request of an open loop, and some of a closed loop.
func works(t *testing.T, o Options, opens bool) {
	t.Helper()
	o.KeepAlive, o.Drain, o.Timeout, o.Arrivals = true, ample, ample, pace.Constant
	for _, rate := range []float64{400, 0} {
		if o.Rate = rate; o.Body > 1000 {
			o.Rate = rate / 10
		}
		r := runUntil(t, o, 200*time.Millisecond,
			func(r *load.Result) bool { return r.Done >= 5 && (rate > 0 || !opens || r.Opened > 0) })
		if r.Done < 5 || r.Done != r.Intended || len(r.Errors) > 0 {
			t.Errorf("%s, rate %g, body %d: %d of %d done, errors %v", o.Protocol, o.Rate, o.Body, r.Done, r.Intended, r.Errors)
		}
		if opened := r.Opened > 0; opened != opens && rate == 0 {
			t.Errorf("%s: %d requests, %d connections opened, want some: %v", o.Protocol, r.Done, r.Opened, opens)
		}
	}
}

func TestPeerNghttpd(t *testing.T) {
	t.Parallel()
	path := program(t, "nghttpd")
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	host, port := freeAddress(t)
	url := "http://" + net.JoinHostPort(host, port)
	// The server has an HPACK table of 0 bytes, so requests must not refer to it.
	peer(t, net.JoinHostPort(host, port), path, "--no-tls", "-a", host, "-d", dir, "--echo-upload",
		"--header-table-size=0", port)
	works(t, Options{Targets: []string{url + "/file"}, Protocol: HTTP2, Connections: 2, Streams: 3}, false)
	works(t, Options{Targets: []string{url + "/"}, Protocol: HTTP2, Connections: 2, Streams: 3, Body: 1 << 20}, false)

	certificate, key := pair(t, echoTLS(t))
	host, port = freeAddress(t)
	url = "https://" + net.JoinHostPort(host, port)
	peer(t, net.JoinHostPort(host, port), path, "-a", host, "-d", dir, "--echo-upload", port, key, certificate)
	works(t, Options{Targets: []string{url + "/file"}, TLS: TLSUnverified, Protocol: HTTP2, Connections: 2,
		Streams: 3}, false)
	works(t, Options{Targets: []string{url + "/"}, TLS: TLSUnverified, Protocol: HTTP2, Connections: 2, Streams: 3,
		Body: 1 << 20}, false)
}

func TestPeerNginx(t *testing.T) {
	t.Parallel()
	path := program(t, "nginx")
	host, port := freeAddress(t)
	_, port1 := freeAddress(t)
	_, port2 := freeAddress(t)
	certificate, key := pair(t, echoTLS(t))
	dir := t.TempDir()
	config := filepath.Join(dir, "nginx.conf")
	temps := ""
	for _, what := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
		temps += fmt.Sprintf("%s_temp_path %s/%s;\n", what, dir, what)
	}
	// nginx closes connections after 50 requests, without an error for any.
	text := fmt.Sprintf(`daemon off; worker_processes 1; pid %[1]s/pid; error_log %[1]s/errors;
events { worker_connections 100; }
http {
	access_log off; keepalive_requests 50; client_max_body_size 10m; %[2]s
	ssl_certificate %[6]s; ssl_certificate_key %[7]s;
	server { listen %[3]s:%[4]s http2; location / { return 200 "%[5]s"; } }
	server { listen %[3]s:%[8]s ssl; location / { return 200 "%[5]s"; } }
	server { listen %[3]s:%[9]s ssl http2; ssl_protocols TLSv1.2; location / { return 200 "%[5]s"; } }
}
`, dir, temps, host, port, strings.Repeat("x", 128), certificate, key, port1, port2)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	peer(t, net.JoinHostPort(host, port), path, "-e", dir+"/errors", "-p", dir, "-c", config)
	works(t, Options{Targets: []string{"http://" + net.JoinHostPort(host, port) + "/"}, Protocol: HTTP2, Connections: 2,
		Streams: 10}, true)
	works(t, Options{Targets: []string{"https://" + net.JoinHostPort(host, port1) + "/"}, TLS: TLSUnverified,
		Connections: 2}, true)
	works(t, Options{Targets: []string{"https://" + net.JoinHostPort(host, port2) + "/"}, TLS: TLSUnverified,
		Protocol:    HTTP2,
		Connections: 2, Streams: 10}, true)
}

// grpcEcho starts grpc-go's server with an echo method, and returns its address. Requests with a value of 7 bytes fail.
func grpcEcho(t *testing.T, options ...grpc.ServerOption) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer(options...)
	s.RegisterService(&grpc.ServiceDesc{
		ServiceName: "tare.Echo", HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{{MethodName: "Echo", Handler: func(_ any, _ context.Context, decode func(any) error,
			_ grpc.UnaryServerInterceptor) (any, error) {
			var in wrapperspb.BytesValue
			if err := decode(&in); err != nil {
				return nil, err
			}
			if len(in.Value) == 7 {
				return nil, status.Error(codes.ResourceExhausted, "seven")
			}
			return &in, nil
		}}},
	}, nil)
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(listener) }()
	t.Cleanup(func() { s.Stop(); <-ended })
	return listener.Addr().String()
}

func TestPeerGRPC(t *testing.T) {
	t.Parallel()
	url := "http://" + grpcEcho(t) + "/"
	for _, body := range []int{0, 100, 1 << 20} {
		works(t, Options{Targets: []string{url}, Protocol: GRPC, Connections: 2, Streams: 3, Body: body}, false)
	}
	for want, o := range map[string]Options{
		"grpc-status-8":  {Targets: []string{url}, Body: 7},
		"grpc-status-12": {Targets: []string{url + "tare.Echo/Other"}},
	} {
		o.Protocol, o.Connections, o.KeepAlive = GRPC, 1, true
		o.Rate, o.Arrivals, o.Drain, o.Timeout = 100, pace.Constant, ample, ample
		r := run(t, o, 0, 100*time.Millisecond)
		if r.Done != 0 || r.Errors[want] != 10 {
			t.Errorf("%d done, errors %v, want 10 of %s", r.Done, r.Errors, want)
		}
	}
}

// TestPeerEnvoy runs only where Envoy is installed, because Debian has no package of it.
func TestPeerEnvoy(t *testing.T) {
	t.Parallel()
	path := envoy.Path(t)
	_, backend, _ := net.SplitHostPort(grpcEcho(t))
	host, port := freeAddress(t)
	config := filepath.Join(t.TempDir(), "envoy.yaml")
	text := fmt.Sprintf(`
static_resources:
  listeners:
  - address: {socket_address: {address: %s, port_value: %s}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: in
          codec_type: AUTO
          common_http_protocol_options: {max_requests_per_connection: 10}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes:
              - match: {prefix: /tare.Echo/}
                route: {cluster: echo}
              - match: {prefix: /}
                direct_response: {status: 200, body: {inline_string: hello}}
  clusters:
  - name: echo
    connect_timeout: 5s
    type: STATIC
    typed_extension_protocol_options:
      envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
        "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
        explicit_http_config: {http2_protocol_options: {}}
    load_assignment:
      cluster_name: echo
      endpoints: [{lb_endpoints: [{endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: %s}}}}]}]
`, host, port, backend)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := net.JoinHostPort(host, port)
	peer(t, address, path, "-c", config, "--concurrency", "1", "--use-dynamic-base-id", "--log-level", "warn")
	works(t, Options{Targets: []string{"http://" + address + "/"}, Protocol: HTTP2, Connections: 2, Streams: 10}, true)
	for _, body := range []int{0, 1 << 20} {
		works(t, Options{Targets: []string{"http://" + address + "/"}, Protocol: GRPC, Connections: 2, Streams: 4,
			Body: body}, true)
	}
}

// BenchmarkClosedLoop2 is BenchmarkClosedLoop over HTTP/2.
func BenchmarkClosedLoop2(b *testing.B) {
	url := os.Getenv("TARE_BENCH_URL")
	if url == "" {
		b.Skip("needs TARE_BENCH_URL, say of nginx on another CPU")
	}
	var done, cpu float64
	var r *load.Result
	for b.Loop() {
		r = run(b, Options{Targets: []string{url}, Protocol: HTTP2, Connections: 4, Streams: 16, KeepAlive: true,
			Threads: 1}, 200*time.Millisecond, time.Second)
		done += float64(r.Done)
		cpu += r.CPUSeconds
	}
	b.ReportMetric(done/cpu, "answers/cpu-s")
}
