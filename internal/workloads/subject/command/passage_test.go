package command

import (
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
)

// TestPassage: connections that were there before the loads do not count, and one that was soon closed does.
func TestPassage(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	visit := func() {
		t.Helper()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
		if conn, err = l.Accept(); err != nil {
			t.Fatal(err)
		}
		_ = conn.Close()
	}
	visit() // as a readiness check does
	p, err := newPassage(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	p.watch(t.Context())
	if p.seen() {
		t.Error("a connection from before is seen")
	}
	visit()
	if !p.seen() {
		t.Error("a connection that was closed is not seen")
	}
	p.close()
	if !p.at(l.Addr().String()) || p.at("127.0.0.1:1") || p.at("") {
		t.Error("its address is not known")
	}
	if _, err := newPassage("nowhere"); err == nil {
		t.Error("an address without a port is taken")
	}
}

// TestLatePast: a load that begins to bypass the address late in the trial is noticed.
func TestLatePast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, looks := time.Now(), 0
		p := &passage{came: true, past: func() string {
			if looks++; time.Since(begin) < 20*time.Second {
				return ""
			}
			return "late"
		}}
		p.watch(t.Context())
		time.Sleep(time.Minute)
		if by := p.bypassed(); by != "late" || looks > 10 {
			t.Errorf("seen to go past is %q, after %d looks", by, looks)
		}
		p.close()
	})
}

// TestServed: the application that a command in the path of requests serves is found, or the error says what to write.
func TestServed(t *testing.T) {
	app, load := &kind.Part{}, func(to string) *kind.Part { return &kind.Part{To: to} }
	one := &kind.Setup{Applications: map[string]*kind.Part{"web": app}, Loads: map[string]*kind.Part{"a": load("web")}}
	two := &kind.Setup{Applications: map[string]*kind.Part{"web": app, "db": app},
		Loads: map[string]*kind.Part{"a": load("web"), "b": load("db"), "c": load("")}}
	none := &kind.Setup{Applications: map[string]*kind.Part{}, Loads: map[string]*kind.Part{"c": load("")}}
	for _, c := range []struct {
		setup *kind.Setup
		o     param.Values
		is    string
		says  string
	}{
		{one, param.Values{"command": "p {address}"}, "web", ""},
		{one, param.Values{"command": "p", "address": "127.0.0.1:80"}, "web", ""},
		{one, param.Values{"command": "p {port}"}, "", ""},
		{one, param.Values{"observe": "pid:1", "address": "127.0.0.1:80"}, "", ""},
		{two, param.Values{"command": "p", "serves": "db"}, "db", ""},
		{two, param.Values{"command": "p {host}"}, "", `say to which application, with "serves": loads go to db, web`},
		{two, param.Values{"command": "p", "serves": "dv"}, "", `serves "dv", and loads go to db, web`},
		{none, param.Values{"command": "p {address}"}, "", "no load goes to an application"},
		{one, param.Values{"command": "p {wed.address}"}, "", `of the application "wed", which does not exist`},
	} {
		err := Guest{}.CheckSetup(c.setup, "", &kind.Part{Options: c.o})
		is := ""
		if err == nil && InPath(c.o) {
			is, err = served(c.setup, c.o)
		}
		if is != c.is || (err == nil) != (c.says == "") || err != nil && !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: serves %q (%v), want %q (%s)", c.o, is, err, c.is, c.says)
		}
	}
}
