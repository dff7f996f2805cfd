package http

import (
	"strconv"

	"tare/internal/kind"
	"tare/internal/load"
	"tare/internal/param"
)

func init() { kind.Register(kind.Load, guest{}) }

// guest is the load as the engine knows it.
type guest struct{}

func (guest) About() kind.About {
	return kind.About{Name: "http", Summary: "an HTTP/1.1 client", Settings: Settings, Protocol: "http"}
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

func (guest) HoldsConnections(v param.Values) bool { return v.On("keepalive") }

func (guest) Saturates(v param.Values) bool { return v["mode"] == load.Closed }
