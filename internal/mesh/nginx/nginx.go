// Package nginx runs nginx as the sidecars of a mesh, configured by a file.
package nginx

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"tare/internal/experiment/process"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
	"tare/internal/mesh/redirect"
	"tare/internal/mesh/sidecar"
)

func init() { sidecar.Register(proxy{}) }

// proxy implements sidecar.Proxy.
type proxy struct{}

func (proxy) About() sidecar.About {
	return sidecar.About{
		Name: "nginx", Summary: "nginx as sidecars, configured by a file", Program: "nginx",
		Hint: "install it (apt-get install nginx-light)", VersionFlag: "-v", Version: version,
	}
}

var version = text.LazyRegexp(`(?m)^nginx version: nginx/(\S+)`)

// Check implements sidecar.Checker. It rejects HTTP/2 and gRPC, because the configuration uses only
// ngx_http_proxy_module, which speaks HTTP/1.1 to servers (HTTP/2 too, since nginx 1.29.4). It also rejects access
// rules.
func (proxy) Check(o param.Values) error {
	if p := sidecar.ProtocolOf(o); sidecar.OverHTTP2(p) {
		return fmt.Errorf("Tare does not set up nginx to speak %s to servers: set its protocol to %s, or leave it out", p,
			sidecar.ProtocolTCP)
	}
	if sidecar.Rules(o) > 0 {
		return errors.New("nginx does not know the identities of callers, which access rules need")
	}
	return nil
}

var (
	streamOption  = text.LazyRegexp(`--with-stream(=dynamic)?(\s|$)`)
	modulesOption = text.LazyRegexp(`--modules-path=(\S+)`)
)

// streamModule returns the path of the module that proxies TCP, or "" if the module is built into the program. If there
// is no module, the error is of code fault.Machine.
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

// plain matches paths that need no quoting in nginx's configuration.
var plain = text.LazyRegexp(`^[A-Za-z0-9_./+-]+$`)

// Lacks implements sidecar.Needer: Debian's nginx-light cannot proxy TCP without a further package.
func (proxy) Lacks(ctx context.Context, program string, o param.Values) error {
	if sidecar.ProtocolOf(o) != sidecar.ProtocolTCP {
		return nil
	}
	_, err := streamModule(ctx, program)
	return err
}

// Takes implements sidecar.Redirectable. All ways but tproxy work without support by nginx, which does not ask for the
// original destination of a connection: it forwards every connection to the server in its configuration.
func (proxy) Takes(way string) error {
	if way == redirect.TPROXY {
		return errors.New("nginx cannot open a socket that listens transparently (IP_TRANSPARENT): write " +
			"redirect: iptables or ebpf")
	}
	return nil
}

// The files in a proxy's directory, in addition to the files of its certificate. The directory is nginx's prefix, so
// file names in the configuration are relative to it.
const (
	configFile = "nginx.conf"
	statusFile = "status.sock"
)

// configuration is the template of nginx's configuration. Its data is a config.
//
//go:embed nginx.conf.tmpl
var configuration string

func (proxy) Command(p sidecar.Place) (process.Command, error) {
	c, err := configOf(context.Background(), p)
	if err == nil {
		err = sidecar.WriteTemplate(p.Dir, configFile, configuration, c, nil)
	}
	if err != nil {
		return process.Command{}, err
	}
	return process.Command{
		Argv: []string{p.Program, "-p", p.Dir + "/", "-c", configFile, "-e", "stderr"},
		Dir:  p.Dir,
	}, nil
}

// config is the data of the configuration template.
type config struct {
	sidecar.Place
	Module   string // path of the module that proxies TCP; empty: no module has to be loaded
	Sockets  int    // maximum connections of each worker, with clients and servers together
	Files    int    // maximum open files of each worker
	Services []service
}

// service is a service of the mesh. nginx accepts connections to the service at Listen, and forwards them to To. If
// Listen is empty, nginx accepts none.
type service struct {
	Name, Listen, To string
	Keep             int // maximum idle connections of a worker to the service; nginx allocates memory for each
}

// otherConnections limits service.Keep of services without callers.
const otherConnections = 64

// configOf returns the data of the configuration template for a proxy.
func configOf(ctx context.Context, p sidecar.Place) (c config, err error) {
	c.Place = p
	if p.Protocol == sidecar.ProtocolTCP {
		if c.Module, err = streamModule(ctx, p.Program); err != nil {
			return c, err
		}
	}
	// Each proxied connection takes two sockets. Listening sockets and status requests take some more.
	c.Sockets = 2*p.Connections + 64 + len(p.Others)
	c.Files = c.Sockets + 64
	c.Services = []service{{"to", p.Listen, p.To, p.Connections}}
	for _, o := range p.Others {
		c.Services = append(c.Services, service{o.Name, o.Listen, o.To, min(p.Connections, otherConnections)})
	}
	return c, nil
}
