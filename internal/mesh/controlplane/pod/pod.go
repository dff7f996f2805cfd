// Package pod runs next to Envoy in an injected pod, and does what Envoy cannot: it gets Envoy's certificate with the
// token of the pod's service account, renews it, and answers the kubelet's probes for the other containers. Start at
// Run.
package pod

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"tare/internal/experiment/child"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/limit"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/bootstrap"
	"tare/internal/mesh/controlplane/injection/probes"
)

// Options configures Run.
type Options struct {
	ControlPlane string // host:port
	Node         string // the proxy's node id
	Identity     string // SPIFFE ID of the pod's service account
	TokenFile    string // the file with the account's token, read again each time the token is needed
	Roots        []byte // PEM: the roots of the mesh's certificates
	// Envoy is the command that starts Envoy, to which "-c FILE" is appended.
	Envoy []string

	Probes    string // address at which to answer probes; empty: probes are not answered
	Table     probes.Table
	ProbeHost string // the host at which the other containers are probed

	Output *os.File          // where Envoy's output goes
	Log    func(line string) // gets a line when a request for a certificate fails and will be retried
}

const (
	maxToken = 64 << 10         // bytes
	grace    = 10 * time.Second // how long Envoy may take to exit after SIGTERM before it is killed
)

// Run gets a certificate, then starts Envoy, and returns when ctx ends, Envoy ends, or the control plane refuses the
// pod. It answers probes from the beginning.
func Run(ctx context.Context, o Options) (err error) {
	dir, err := files.NewScratch("", "pod")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dir.Close()) }()
	certified := make(chan struct{})
	once := sync.OnceFunc(func() { close(certified) })
	agent := authority.Agent{
		Address: o.ControlPlane, Identity: o.Identity, Roots: o.Roots, ReadToken: o.readToken, Log: o.Log,
		OnChange: func(c authority.Credentials) error { // a running Envoy notices the new file itself
			b := bootstrap.Envoy{Node: o.Node, Cluster: o.Node, ControlPlane: o.ControlPlane}
			if err := c.WriteEnvoy(dir.Path(), b); err != nil {
				return err
			}
			once()
			return nil
		},
	}
	run := []func(context.Context) error{agent.Run, func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-certified:
			return o.serve(ctx, dir.Path())
		}
	}}
	if o.Probes != "" {
		l, err := limit.TCP(ctx, o.Probes)
		if err != nil {
			return fmt.Errorf("listening for probes: %w", err)
		}
		run = append(run, func(ctx context.Context) error { return o.answerProbes(ctx, l) })
	}
	return role.Together(ctx, func() {}, run...)
}

func (o Options) readToken() (authority.Token, error) {
	text, err := files.Read(o.TokenFile, maxToken)
	return authority.Token(strings.TrimSpace(string(text))),
		fault.Wrap(err, fault.Machine, o.TokenFile, "", "the token cannot be read")
}

// serve runs Envoy until it ends, or ctx does.
func (o Options) serve(ctx context.Context, dir string) error {
	argv := slices.Concat(o.Envoy, []string{"-c", filepath.Join(dir, authority.EnvoyBootstrapFile)})
	err := child.Run(ctx, child.Command{Argv: argv, Stdout: o.Output, Stderr: o.Output},
		child.Options{Name: "Envoy", Stop: syscall.SIGTERM, Grace: grace, Linger: grace})
	switch {
	case ctx.Err() != nil:
		return nil
	case err == nil:
		err = errors.New("it exited unexpectedly (status 0)")
	}
	return fault.Wrap(err, fault.Machine, o.Envoy[0], "", "Envoy has ended")
}

// answerProbes answers probes at l until ctx ends. It closes l.
func (o Options) answerProbes(ctx context.Context, l net.Listener) error {
	return limit.Serve(ctx, l, &http.Server{
		Handler: probes.New(o.Table, o.ProbeHost), ReadTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: log.New(io.Discard, "", 0), // only clients' errors would be logged
	})
}
