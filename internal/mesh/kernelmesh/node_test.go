package kernelmesh

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/lib/param"
	"tare/internal/mesh/xds"
	"tare/internal/mesh/xds/translate"
)

// TestNode: settings determine the data plane's node, and its own addresses.
func TestNode(t *testing.T) {
	o, err := OptionsOf(param.Values{
		"node":     "sidecar~10.0.0.7~web.shop~shop.svc.cluster.local",
		"metadata": "ISTIO_VERSION=1.31.1, INSTANCE_IPS=10.0.0.7,INSTANCE_IPS=fd00::7", "variant": "world",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"ISTIO_VERSION": "1.31.1", "INSTANCE_IPS": "10.0.0.7,fd00::7"}
	if !reflect.DeepEqual(o.Node.Metadata, want) || !o.StateOfTheWorld {
		t.Errorf("got %+v", o)
	}
	if again, err := nodeOf(o.Node.ID, o.Node.String()); err != nil || !reflect.DeepEqual(again, o.Node) {
		t.Errorf("%s is read as %+v, %v", o.Node, again, err)
	}
	var own []string
	for _, a := range o.Node.own() {
		own = append(own, a.String())
	}
	if strings.Join(own, " ") != "10.0.0.7 fd00::7" {
		t.Errorf("its addresses are %v", own)
	}
	if own := (Node{ID: "tare"}).own(); own != nil {
		t.Errorf("a node of another form has the addresses %v", own)
	}
	if _, err := OptionsOf(param.Values{"metadata": "ISTIO_VERSION"}); err == nil {
		t.Error("metadata without a value is taken")
	}
}

// TestWarnings: each warning is logged once, and the same warning about many resources is one line.
func TestWarnings(t *testing.T) {
	least := func(names ...string) (list []*translate.Warning) {
		for _, name := range names {
			list = append(list, &translate.Warning{Kind: "cluster", Name: name, Field: "lb_policy", What: "at random"})
		}
		return list
	}
	w := newWarnings()
	for _, step := range []struct {
		event xds.Event
		want  string
	}{
		{xds.Event{Warned: least("e", "d", "c", "b", "a")},
			`warning: cluster "e": lb_policy: at random (and 4 more: a, b, c, ...)`},
		{xds.Event{Warned: least("a", "f")}, `warning: cluster "f": lb_policy: at random`},
		{xds.Event{Warned: least("a"), Refused: []error{errors.New("x")}}, "refused: x"},
		{xds.Event{Refused: []error{errors.New("x")}}, ""},
	} {
		if got := strings.Join(w.lines(step.event), "\n"); got != step.want {
			t.Errorf("got  %s\nwant %s", got, step.want)
		}
	}
}

// TestWarningsAreEvidence: the record of a trial has what the data plane logged about its control plane's
// configuration.
func TestWarningsAreEvidence(t *testing.T) {
	x := &trial{apps: map[string]kind.App{"mesh": {Address: "127.0.0.1:1"}}}
	p := &trialProcess{log: make(chan string, 4)}
	j := join(t, x, param.Values{"xds": "mesh"})
	j.process = p
	if e := j.Evidence(); e != nil {
		t.Errorf("nothing was said, and the evidence is %+v", e)
	}
	for _, line := range []string{"control plane x: connected", `warning: cluster "a": lb_policy: at random`,
		`refused: listener "b": x`} {
		p.log <- line
	}
	want := &Evidence{Warnings: []string{`cluster "a": lb_policy: at random`}, Refused: []string{`listener "b": x`}}
	if e := j.Evidence(); !reflect.DeepEqual(e, want) {
		t.Errorf("got %+v", e)
	}
}
