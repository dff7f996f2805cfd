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

// actor is a guest with a process that records its settings.
type actor struct{ played *played }

type played struct{ values param.Values }

func (actor) About() About {
	return About{Name: "actor", Settings: []param.Setting{
		{Name: "lines", Type: param.TypeCount, Default: "3", Min: 1},
		{Name: "cue", Type: param.TypeText},
		{Name: "prompter", Type: param.TypeCount},
	}, Process: []param.Setting{
		{Name: "lines", Type: param.TypeCount, Default: "3", Min: 1},
		{Name: "cue", Type: param.TypeText},
		{Name: "prompter", Type: param.TypeText}, // a name, unlike the setting of a spec, which is a number
		{Name: "to", Type: param.TypeText},
		SeedSetting, SubjectSetting,
		{Name: "said", Type: param.TypeText, Many: true},
	}}
}

func (actor) At(at Site) param.Values {
	return param.Values{"to": at.Address, "said": string(at.Ready) + "\n2"}
}

func (a actor) Play(_ context.Context, _ *role.Conn, v param.Values) error {
	*a.played = played{v}
	return nil
}

// Check rejects combinations that single settings allow.
func (actor) Check(v param.Values) error {
	if v["cue"] == "none" || v["prompter"] != "" {
		return errors.New("it needs a cue")
	}
	return nil
}

// extra is a guest without a process.
type extra struct{}

func (extra) About() About { return About{Name: "extra"} }

// stage registers a load for the duration of a test.
func stage(t *testing.T, g Guest) {
	t.Helper()
	Register(Load, g)
	t.Cleanup(func() { delete(registry[Load], g.About().Name) })
}

// TestPlay: the guest's process gets the site and settings that Command encoded. Settings of the process that differ
// from those of a spec with the same name are not checked as the latter.
func TestPlay(t *testing.T) {
	var got played
	stage(t, actor{&got})
	at := Site{Address: "127.0.0.1:80", Ready: []byte(`{"a":"\u0000"}`), Seed: 1<<64 - 1,
		SubjectReady: []byte(`{"ready":1}`)}
	args, err := Command(Load, Find(Load, "actor"), at)
	if err != nil || args[0] != PlayCommand {
		t.Fatalf("%q, %v", args, err)
	}
	args = append(args[1:], "--lines=7", "--cue=-x y", "--prompter=7")
	if err := Play(t.Context(), nil, args); err != nil {
		t.Fatal(err)
	}
	want := param.Values{
		"lines": "7", "cue": "-x y", "prompter": "7", "to": "127.0.0.1:80", "seed": "18446744073709551615",
		"subject-ready": `{"ready":1}`, "said": `{"a":"\u0000"}` + "\n2",
	}
	if !reflect.DeepEqual(got.values, want) {
		t.Errorf("it played %+v, want %+v", got.values, want)
	}
}

func TestPlayWrongUse(t *testing.T) {
	stage(t, actor{&played{}})
	stage(t, extra{})
	for text, want := range map[string]string{
		"":                      "not a role",
		"load":                  "not a role",
		"subject actor":         "no subject \"actor\"",
		"load extra":            "no load \"extra\"",
		"load actor --lines=0":  "at least 1",
		"load actor --other=1":  "unknown flag",
		"load actor --cue=none": "it needs a cue",
	} {
		err := Play(t.Context(), nil, strings.Fields(text))
		if fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestCommand: a guest without a process cannot be started.
func TestCommand(t *testing.T) {
	if got, err := Command(Subject, extra{}, Site{}); err == nil || !strings.Contains(err.Error(), "subject extra") {
		t.Errorf("%q, %v", got, err)
	}
}
