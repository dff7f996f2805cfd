// Package nginx is nginx as the sidecars of a mesh, configured by a file.
package nginx

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"tare/internal/experiment/process"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
	"tare/internal/mesh/redirect"
	"tare/internal/mesh/sidecar"
)

func init() { sidecar.Register(proxy{}) }

// proxy is nginx as package sidecar knows it.
type proxy struct{}

func (proxy) About() sidecar.About {
	return sidecar.About{
		Name: "nginx", Summary: "nginx as sidecars, configured by a file", Program: "nginx",
		Hint: "install it (apt-get install nginx-light)",
	}
}

var version = text.LazyRegexp(`^nginx version: nginx/(\S+)`)

func (proxy) Version(ctx context.Context, program string) string {
	if m := version().FindStringSubmatch(process.FirstLine(ctx, program, "-v")); m != nil {
		return m[1]
	}
	return ""
}

// Check refuses what nginx cannot do: to servers it speaks HTTP/1.1, and HTTP/2 only where all requests are of gRPC, by
// another module.
func (proxy) Check(o param.Values) error {
	if p := sidecar.ProtocolOf(o); sidecar.OverHTTP2(p) {
		return fmt.Errorf("nginx does not speak %s to servers: set its protocol to %s, or leave it out", p,
			sidecar.ProtocolTCP)
	}
	if sidecar.Rules(o) > 0 {
		return errors.New("nginx knows no identities of callers, which access rules are about")
	}
	return nil
}

var (
	streamOption  = text.LazyRegexp(`--with-stream(=dynamic)?(\s|$)`)
	modulesOption = text.LazyRegexp(`--modules-path=(\S+)`)
)

// streamModule is the module that carries TCP: empty where it is in the program.
func streamModule(ctx context.Context, program string) (path string, err error) {
	built := process.Printed(ctx, program, "-V")
	stream := streamOption().FindStringSubmatch(built)
	missing := func(why string) error {
		return fault.New(fault.Machine, program, "install it (apt-get install libnginx-mod-stream)",
			"nginx carries TCP by its module stream, and %s", why)
	}
	switch {
	case stream == nil:
		return "", missing("was built without it")
	case stream[1] == "":
		return "", nil
	}
	modules := modulesOption().FindStringSubmatch(built)
	if modules == nil {
		return "", missing("does not say where its modules are")
	}
	path = filepath.Join(modules[1], "ngx_stream_module.so")
	if _, err := os.Stat(path); err != nil {
		return "", missing("the module is not installed")
	}
	if !plain().MatchString(path) {
		return "", missing("the path of its modules cannot be written into a configuration")
	}
	return path, nil
}

// plain are paths that mean themselves in nginx's configuration, quoted or not.
var plain = text.LazyRegexp(`^[A-Za-z0-9_./+-]+$`)

// Lacks is sidecar.Needer's: Debian's nginx-light carries no TCP.
func (proxy) Lacks(ctx context.Context, program string, o param.Values) error {
	if sidecar.ProtocolOf(o) != sidecar.ProtocolTCP {
		return nil
	}
	_, err := streamModule(ctx, program)
	return err
}

// Takes is sidecar.Redirectable's. nginx never asks where a redirected connection was going, and goes where its
// configuration says.
func (proxy) Takes(way string) error {
	if way == redirect.TPROXY {
		return errors.New("nginx cannot open a socket that listens transparently (IP_TRANSPARENT): write " +
			"redirect: iptables or ebpf")
	}
	return nil
}

// The files in a proxy's directory, beside those of its certificate. nginx works there, so that its configuration names
// no path that depends on where the directory is.
const (
	configFile = "nginx.conf"
	statusFile = "status.sock"
)

func (proxy) Command(p sidecar.Place) (process.Command, error) {
	module := ""
	if p.Protocol == sidecar.ProtocolTCP {
		var err error
		if module, err = streamModule(context.Background(), p.Program); err != nil {
			return process.Command{}, err
		}
	}
	if err := sidecar.WriteFile(p.Dir, configFile, []byte(config(p, module))); err != nil {
		return process.Command{}, err
	}
	return process.Command{
		Argv: []string{p.Program, "-p", p.Dir + "/", "-c", configFile, "-e", "stderr"},
		Dir:  p.Dir,
	}, nil
}

// How all proxies speak TLS: see docs/mesh-proxies.md, which says for each what stands for this.
const (
	cipherSuite = "TLS_AES_128_GCM_SHA256"
	curve       = "X25519"
)

// idle is how long connections stay open on which nothing happens, and endless how many requests they carry.
const (
	idle    = "1h"
	endless = 1_000_000_000
)

// block is a block of directives. Each is a line that ends as nginx wants it.
type block struct {
	b     *strings.Builder
	depth int
}

func (k block) line(format string, args ...any) {
	fmt.Fprintf(k.b, strings.Repeat("  ", k.depth)+format+"\n", args...)
}

func (k block) in(name string, body func(block)) {
	k.line("%s {", name)
	body(block{k.b, k.depth + 1})
	k.line("}")
}

// config is the configuration of a proxy. module is the path of the module that carries TCP; empty where none is to be
// loaded.
func config(p sidecar.Place, module string) string {
	var b strings.Builder
	top := block{&b, 0}
	if module != "" {
		top.line("load_module %s;", module)
	}
	top.line("daemon off;")
	top.line("master_process on;")
	top.line("worker_processes %d;", p.Workers)
	// A connection on either side, and some for the listening sockets and for who asks how it is doing.
	sockets := 2*p.Connections + 64 + len(p.Others)
	top.line("worker_rlimit_nofile %d;", sockets+64)
	if p.User != "" {
		top.line("user %s %s;", p.User, p.Group)
	}
	top.line("pid nginx.pid;")
	top.line("error_log stderr warn;")
	top.in("events", func(k block) { k.line("worker_connections %d;", sockets) })
	top.in("http", func(k block) {
		k.line("access_log off;")
		for _, name := range []string{"client_body", "proxy", "fastcgi", "uwsgi", "scgi"} {
			k.line("%s_temp_path %s_temp;", name, name)
		}
		k.in("server", func(k block) {
			k.line("listen unix:%s;", statusFile)
			k.in("location = /status", func(k block) { k.line("stub_status;") })
		})
		if p.Protocol == sidecar.ProtocolHTTP {
			requests(k, p, service{"to", p.Listen, p.To, p.Connections})
			for _, o := range p.Others {
				requests(k, p, service{o.Name, o.Listen, o.To, min(p.Connections, otherConnections)})
			}
		}
	})
	if p.Protocol == sidecar.ProtocolTCP {
		top.in("stream", func(k block) {
			bytesOf(k, p, p.Listen, p.To)
			for _, o := range p.Others {
				if o.Listen != "" {
					bytesOf(k, p, o.Listen, o.To)
				}
			}
		})
	}
	return b.String()
}

// bytesOf is the part that carries the connections of a service.
func bytesOf(k block, p sidecar.Place, listen, to string) {
	k.in("server", func(k block) {
		k.line("listen %s%s;", listen, onlyTLS(p))
		k.line("proxy_timeout %s;", idle)
		k.line("proxy_connect_timeout 5s;")
		k.line("proxy_pass %s;", to)
		acceptTLS(k, p)
		if p.DialTLS {
			k.line("proxy_ssl on;")
		}
		dialTLS(k, p)
	})
}

// service is where requests come to and go.
type service struct {
	name, listen, to string
	keep             int // idle connections to it, for which nginx sets memory aside
}

// otherConnections is how many idle connections are kept to a service that nobody calls.
const otherConnections = 64

// requests is the part that carries HTTP/1.1 to a service.
func requests(k block, p sidecar.Place, s service) {
	k.in("upstream "+s.name, func(k block) {
		k.line("server %s max_fails=0;", s.to)
		k.line("keepalive %d;", s.keep)
		k.line("keepalive_requests %d;", endless)
		k.line("keepalive_timeout %s;", idle)
	})
	if s.listen == "" {
		return
	}
	k.in("server", func(k block) {
		k.line("listen %s%s;", s.listen, onlyTLS(p))
		k.line("keepalive_requests %d;", endless)
		k.line("keepalive_timeout %s;", idle)
		k.line("client_max_body_size 0;")
		acceptTLS(k, p)
		k.in("location /", func(k block) {
			scheme := "http"
			if p.DialTLS {
				scheme = "https"
			}
			k.line("proxy_pass %s://%s;", scheme, s.name)
			k.line("proxy_http_version 1.1;")
			k.line(`proxy_set_header Connection "";`)
			k.line("proxy_set_header Host $http_host;")
			k.line("proxy_next_upstream off;")
			k.line("proxy_connect_timeout 5s;")
			k.line("proxy_read_timeout %s;", idle)
			k.line("proxy_send_timeout %s;", idle)
			dialTLS(k, p)
		})
	})
}

func onlyTLS(p sidecar.Place) string {
	if p.AcceptTLS {
		return " ssl"
	}
	return ""
}

// acceptTLS demands a certificate that a root has signed. nginx knows the URIs of no certificate, so whose it is stays
// unchecked.
func acceptTLS(k block, p sidecar.Place) {
	if !p.AcceptTLS {
		return
	}
	k.line("ssl_certificate %s;", sidecar.IdentityFile)
	k.line("ssl_certificate_key %s;", sidecar.IdentityFile)
	k.line("ssl_client_certificate %s;", sidecar.RootsFile)
	k.line("ssl_verify_client on;")
	k.line("ssl_protocols TLSv1.3;")
	k.line("ssl_conf_command Ciphersuites %s;", cipherSuite)
	k.line("ssl_ecdh_curve %s;", curve)
	k.line("ssl_session_cache off;")
	k.line("ssl_session_tickets off;")
}

func dialTLS(k block, p sidecar.Place) {
	if !p.DialTLS {
		return
	}
	k.line("proxy_ssl_certificate %s;", sidecar.IdentityFile)
	k.line("proxy_ssl_certificate_key %s;", sidecar.IdentityFile)
	k.line("proxy_ssl_trusted_certificate %s;", sidecar.RootsFile)
	k.line("proxy_ssl_verify on;")
	k.line("proxy_ssl_name %s;", p.PeerName)
	k.line("proxy_ssl_server_name on;")
	k.line("proxy_ssl_protocols TLSv1.3;")
	k.line("proxy_ssl_conf_command Ciphersuites %s;", cipherSuite)
	k.line("proxy_ssl_session_reuse off;")
}
