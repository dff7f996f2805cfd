package http

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
)

func init() { kind.Register(kind.Application, guest{}) }

// guest implements kind.Guest.
type guest struct{}

func (guest) About() kind.About {
	return kind.About{
		Name: "http", Summary: "an echo server of HTTP/1.1, HTTP/2, gRPC or TCP", Settings: Settings, Protocol: "http",
		InPods: true, AppProtocol: appProtocol,
		Process: slices.Concat(Settings, processSettings),
		Alone: &kind.Alone{Ready: kind.Worded(serving), Examples: []string{
			"--listen 127.0.0.1:8080 --body 1024",
			"--listen 127.0.0.1:8080 --delay 2ms",
			"--listen 127.0.0.1:8080 --protocol http2",
			"--listen 127.0.0.1:8443 --tls",
			"--listen 127.0.0.1:8080 --protocol grpc --echo=false",
			"--listen 127.0.0.1:8080 --delay-dist two-point:2ms:20ms:0.05 --stall 500ms --stall-every 2s",
		}},
	}
}

// serving formats the ready message for people.
func serving(v param.Values, r Ready) string {
	scheme := "http"
	switch {
	case Protocol(v["protocol"]) == TCP:
		scheme = "tcp"
	case v.On("tls"):
		scheme = "https"
	}
	return fmt.Sprintf("serving %s://%s/ (Ctrl-C ends it)", scheme, r.Address)
}

// appProtocol returns IANA's name of the protocol if there is one, and otherwise the name that Kubernetes and meshes
// use.
func appProtocol(v param.Values) string {
	p := Protocol(v["protocol"])
	switch {
	case p == TCP && v.On("tls"):
		return "tls"
	case p == TCP:
		return "tcp"
	case v.On("tls"):
		return "https"
	case p == GRPC:
		return "grpc"
	case p == HTTP2:
		return "kubernetes.io/h2c"
	}
	return "http"
}

// At implements kind.Sited.
func (guest) At(at kind.Site) param.Values {
	return param.Values{listenKey: net.JoinHostPort(cmp.Or(at.Host, "127.0.0.1"), strconv.Itoa(at.Port))}
}

func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	o, err := OptionsOf(v)
	if err != nil {
		return err
	}
	return Run(ctx, o, conn)
}

func (guest) Check(v param.Values) error {
	_, err := OptionsOf(v)
	return err
}
