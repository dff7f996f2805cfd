package http

import (
	"strings"
	"testing"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
)

// serving is an application that has only a name.
type serving string

func (s serving) About() kind.About { return kind.About{Name: string(s)} }

// TestCheckSetup: the load can use an application of kind http only if that serves its protocol, and any application of
// another kind.
func TestCheckSetup(t *testing.T) {
	for _, c := range []struct {
		app            serving
		speaks, serves string
		fits           bool
	}{
		{"http", "http1", "http1", true}, {"http", "http1", "http2", true}, {"http", "http2", "http2", true},
		{"http", "grpc", "grpc", true}, {"http", "tcp", "tcp", true}, {"command", "grpc", "", true},
		{"http", "http2", "http1", false}, {"http", "grpc", "http2", false}, {"http", "http1", "tcp", false},
	} {
		part := &kind.Part{Kind: guest{}, To: "server", Options: param.Values{"protocol": c.speaks}}
		app := &kind.Part{Kind: c.app, Options: param.Values{"protocol": c.serves}}
		s := &kind.Setup{Applications: map[string]*kind.Part{"server": app}}
		if err := (guest{}).CheckSetup(s, "loads.client", part); (err == nil) != c.fits {
			t.Errorf("%+v: %v", c, err)
		}
	}
	for serves, speaks := range map[string]map[TLS]bool{
		"true":  {TLSUnverified: true, TLSOn: false, TLSOff: false},
		"false": {TLSUnverified: false, TLSOn: false, TLSOff: true},
	} {
		for tls, fits := range speaks {
			part := &kind.Part{Kind: guest{}, To: "server", Options: param.Values{"protocol": "http1", "tls": string(tls)}}
			app := &kind.Part{Kind: serving("http"), Options: param.Values{"protocol": "http1", "tls": serves}}
			s := &kind.Setup{Applications: map[string]*kind.Part{"server": app}}
			if err := (guest{}).CheckSetup(s, "loads.client", part); (err == nil) != fits {
				t.Errorf("tls: %s against tls: %s: %v", tls, serves, err)
			}
		}
	}
}

// TestOptionsOf: options with zero fields mean the same as the default settings.
func TestOptionsOf(t *testing.T) {
	v := param.Defaults(Settings)
	v["rate"] = "500"
	o, err := OptionsOf(v)
	if err != nil {
		t.Fatal(err)
	}
	open := Options{Targets: []string{"http://127.0.0.1:1/"}, Rate: 500, KeepAlive: true}
	o.Targets = open.Targets
	for name, o := range map[string]Options{"settings": o, "options": open} {
		if err := o.complete(); err != nil {
			t.Fatal(err)
		}
		if o.Connections != 64 || o.Timeout != 5*time.Second || o.Drain != time.Second || o.Arrivals != pace.Poisson ||
			!o.KeepAlive || o.Rate != 500 {
			t.Errorf("%s: %+v", name, o)
		}
	}

	v["drain"] = "0s" // 0s is a value here, and not the default
	if o, err = OptionsOf(v); err != nil {
		t.Fatal(err)
	}
	if o.Targets = open.Targets; o.complete() != nil || o.Drain != 0 {
		t.Errorf("drain: 0s waits for %v", o.Drain)
	}
	for _, c := range []struct{ mode, rate, says string }{
		{"open", "", `needs a "rate"`}, {"closed", "5", `"rate" does not apply`}, {"closed", "", ""},
	} {
		v := param.Defaults(Settings)
		if v["mode"] = c.mode; c.rate != "" {
			v["rate"] = c.rate
		}
		_, err := OptionsOf(v)
		if (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
