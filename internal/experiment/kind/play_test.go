package kind

import (
	"context"
	"errors"
	"reflect"
	"strings"
	"testing"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
)

// actor is a guest that plays, and notes how.
type actor struct{ played *played }

type played struct {
	at     Site
	values param.Values
}

func (actor) About() About {
	return About{Name: "actor", Settings: []param.Setting{
		{Name: "lines", Type: param.TypeCount, Default: "3", Min: 1},
		{Name: "cue", Type: param.TypeText},
	}}
}

func (a actor) Play(_ context.Context, _ *role.Conn, at Site, v param.Values) error {
	*a.played = played{at, v}
	return nil
}

// Check refuses what its settings alone cannot.
func (actor) Check(v param.Values) error {
	if v["cue"] == "none" {
		return errors.New("it needs a cue")
	}
	return nil
}

// extra is a guest that nobody can start; and one with a command of its own.
type (
	extra  struct{}
	driver struct{ extra }
)

func (extra) About() About              { return About{Name: "extra"} }
func (driver) Command(at Site) []string { return []string{"drive", at.Address} }

// stage registers a load for the time of a test.
func stage(t *testing.T, g Guest) {
	t.Helper()
	Register(Load, g)
	t.Cleanup(func() { delete(registry[Load], g.About().Name) })
}

// TestPlay: what Command makes of a site and settings is what the guest's process gets.
func TestPlay(t *testing.T) {
	var got played
	stage(t, actor{&got})
	at := Site{Address: "127.0.0.1:80", Served: true, Ready: []byte(`{"a":"\u0000"}`), Seed: 1<<64 - 1, Subject: t}
	args, err := Command(Load, Find(Load, "actor"), at)
	if err != nil || args[0] != PlayCommand {
		t.Fatalf("%q, %v", args, err)
	}
	args = append(args[1:], param.Values{"lines": "7", "cue": "-x y"}.Args(actor{}.About().Settings)...)
	if err := Play(t.Context(), nil, args); err != nil {
		t.Fatal(err)
	}
	at.Subject = nil // which does not leave the process
	if want := (played{at, param.Values{"lines": "7", "cue": "-x y"}}); !reflect.DeepEqual(got, want) {
		t.Errorf("it played %+v, want %+v", got, want)
	}
}

func TestPlayWrongUse(t *testing.T) {
	stage(t, actor{&played{}})
	stage(t, extra{})
	for text, want := range map[string]string{
		"":                         "not a role",
		"load actor":               "not a role",
		"subject actor {}":         "no subject \"actor\"",
		"load extra {}":            "no load \"extra\"",
		"load actor nowhere":       "site",
		"load actor {} --lines=0":  "at least 1",
		"load actor {} --other=1":  "unknown flag",
		"load actor {} --cue=none": "it needs a cue",
	} {
		err := Play(t.Context(), nil, strings.Fields(text))
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestCommand: a command of its own goes first, and a guest without a process is an error.
func TestCommand(t *testing.T) {
	if got, err := Command(Load, driver{}, Site{Address: "x"}); err != nil || strings.Join(got, " ") != "drive x" {
		t.Errorf("%q, %v", got, err)
	}
	if got, err := Command(Subject, extra{}, Site{}); err == nil || !strings.Contains(err.Error(), "subject extra") {
		t.Errorf("%q, %v", got, err)
	}
}
