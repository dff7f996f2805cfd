package http

import (
	"context"
	"fmt"
	"slices"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
)

func init() { kind.Register(kind.Load, guest{}) }

// guest implements kind.Guest.
type guest struct{}

func (guest) About() kind.About {
	return kind.About{
		Name: "http", Summary: "a client of HTTP/1.1, HTTP/2, gRPC and TCP", Settings: Settings, Protocol: "http",
		InPods:  true,
		Process: slices.Concat(Settings, processSettings),
		Alone: &kind.Alone{Argument: urlKey, Examples: []string{
			"http://127.0.0.1:8080/ --rate 5000 --connections 16 --duration 10s",
			"http://127.0.0.1:8080/ --mode closed --connections 64 --keepalive=false",
			"http://127.0.0.1:8080/ --protocol http2 --rate 5000 --connections 4 --streams 32",
			"https://127.0.0.1:8443/ --tls unverified --rate 500 --keepalive=false",
			"http://127.0.0.1:8080/tare.Echo/Echo --protocol grpc --rate 1000 --request-body 1KiB",
		}},

		HoldsConnections: func(v param.Values) bool { return v.On("keepalive") },
		Rate: func(v param.Values) float64 {
			if v["mode"] == load.Closed {
				return 0
			}
			return v.Float("rate")
		},
		Saturates: func(v param.Values) bool { return v["mode"] == load.Closed },
		// Opening and closing takes 100 µs for each connection.
		TakesLonger: func(v param.Values) time.Duration {
			return time.Duration(v.Int("connections")) * 100 * time.Microsecond
		},
	}
}

// At implements kind.Sited. The URL of the application begins with http:// for every protocol.
func (guest) At(at kind.Site) param.Values {
	v := param.Values{urlKey: "http://" + at.Address + "/"}
	if at.Served {
		v[sourceKey] = string(SourceLoopback) // the data plane rewrites a service address to one on this machine
	}
	return v
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

// CheckSetup refuses an application of kind http that does not serve the load's protocol. With other kinds of
// applications, a mismatch shows only at run time.
func (guest) CheckSetup(s *kind.Setup, _ string, part *kind.Part) error {
	app := s.Applications[part.To]
	if app == nil || app.Name() != "http" {
		return nil
	}
	speaks, serves := part.Options["protocol"], app.Options["protocol"]
	// An HTTP/2 application also serves HTTP/1.1.
	if speaks != serves && !(speaks == string(HTTP1) && serves == string(HTTP2)) {
		return fmt.Errorf("it speaks %s, and %s serves %s: set the protocol of both", speaks, part.To, serves)
	}
	switch encrypts, wants := app.Options.On("tls"), TLS(part.Options["tls"]); {
	case encrypts && wants != TLSUnverified:
		return fmt.Errorf("%s serves TLS with a self-signed certificate: set tls to %s", part.To, TLSUnverified)
	case !encrypts && wants != TLSOff && wants != "":
		return fmt.Errorf("it speaks TLS, and %s does not: set tls of both", part.To)
	}
	return nil
}
