package http

import (
	"cmp"
	"net"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
)

func init() { kind.Register(kind.Application, guest{}) }

// guest is the application as the engine knows it.
type guest struct{}

func (guest) About() kind.About {
	return kind.About{Name: "http", Summary: "an echo server of HTTP/1.1, HTTP/2, gRPC or TCP", Settings: Settings,
		Protocol: "http"}
}

func (guest) Command(at kind.Site) []string {
	return []string{"app", "http", "--role", "--listen=" + net.JoinHostPort(cmp.Or(at.Host, "127.0.0.1"), "0")}
}

func (guest) Check(v param.Values) error {
	_, err := OptionsOf(v)
	return err
}
