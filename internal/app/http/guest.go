package http

import (
	"cmp"
	"net"

	"tare/internal/kind"
)

func init() { kind.Register(kind.Application, guest{}) }

// guest is the application as the engine knows it.
type guest struct{}

func (guest) About() kind.About {
	return kind.About{Name: "http", Summary: "an HTTP/1.1 echo server", Settings: Settings, Protocol: "http"}
}

func (guest) Command(at kind.Site) []string {
	return []string{"app", "http", "--role", "--listen=" + net.JoinHostPort(cmp.Or(at.Host, "127.0.0.1"), "0")}
}
