package http

import (
	"fmt"
	"strconv"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/lib/param"
)

func init() { kind.Register(kind.Load, guest{}) }

// guest is the load as the engine knows it.
type guest struct{}

func (guest) About() kind.About {
	return kind.About{Name: "http", Summary: "a client of HTTP/1.1, HTTP/2, gRPC and TCP", Settings: Settings,
		Protocol: "http"}
}

func (guest) Command(at kind.Site) []string {
	seed := strconv.FormatUint(at.Seed, 10)
	args := []string{"load", "http", "--role", "--url=http://" + at.Address + "/", "--seed=" + seed}
	if at.Served {
		args = append(args, "--source=loopback") // what a service address is rewritten to is on this machine
	}
	return args
}

func (guest) Check(v param.Values) error {
	_, err := OptionsOf(v)
	return err
}

// CheckSetup refuses an application of kind http that does not serve what the load speaks. What others serve shows when
// they run.
func (guest) CheckSetup(s *kind.Setup, _ string, part *kind.Part) error {
	app := s.Applications[part.To]
	if app == nil || app.Name() != "http" {
		return nil
	}
	speaks, serves := part.Options["protocol"], app.Options["protocol"]
	if speaks != serves && !(speaks == string(HTTP1) && serves == string(HTTP2)) { // that one serves both
		return fmt.Errorf("it speaks %s, and %s serves %s: set the protocol of both", speaks, part.To, serves)
	}
	switch encrypts, wants := app.Options.On("tls"), TLS(part.Options["tls"]); {
	case encrypts && wants != TLSUnverified:
		return fmt.Errorf("%s serves TLS with a certificate of its own making: set tls to %s", part.To, TLSUnverified)
	case !encrypts && wants != TLSOff && wants != "":
		return fmt.Errorf("it speaks TLS, and %s does not: set tls of both", part.To)
	}
	return nil
}

// TakesLonger is what opening and closing its connections takes.
func (guest) TakesLonger(v param.Values) time.Duration {
	return time.Duration(v.Int("connections")) * 100 * time.Microsecond
}

func (guest) HoldsConnections(v param.Values) bool { return v.On("keepalive") }

func (guest) Saturates(v param.Values) bool { return v["mode"] == load.Closed }
