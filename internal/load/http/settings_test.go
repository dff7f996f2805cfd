package http

import (
	"strings"
	"testing"
	"time"

	"tare/internal/pace"
	"tare/internal/param"
)

// TestOptionsOf: options that leave something open and settings that do mean the same.
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

	v["drain"] = "0s" // is no default that is left open
	if o, err = OptionsOf(v); err != nil {
		t.Fatal(err)
	}
	if o.Targets = open.Targets; o.complete() != nil || o.Drain != 0 {
		t.Errorf("drain: 0s waits for %v", o.Drain)
	}
	for _, c := range []struct{ mode, rate, says string }{
		{"open", "", `needs a "rate"`}, {"closed", "5", `"rate" has no meaning`}, {"closed", "", ""},
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
