package kind

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/spf13/pflag"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
)

// PlayCommand is the hidden command as which the tare binary is the process of a Player. Its arguments are a role, the
// guest's name, and the values of the settings of its process as flags.
const PlayCommand = "_play"

// Settings that Command fills in for a load whose process has them, beside what it is given by its At (Sited).
var (
	// SeedSetting is the seed of the site.
	SeedSetting = param.Setting{Name: "seed", Type: param.TypeCount, Default: "1", Max: math.MaxUint64,
		Doc: "seed of Poisson arrivals and of all other random choices"}
	// SubjectSetting is what the subject said of itself when it was ready. SubjectReady decodes it.
	SubjectSetting = param.Setting{Name: "subject-ready", Type: param.TypeText, Reach: param.ReachAddress,
		Doc: "ready message of the subject, JSON"}
)

// SubjectReady decodes the value of SubjectSetting, if there is one.
func SubjectReady(v param.Values, into any) error {
	text, ok := v[SubjectSetting.Name]
	if !ok {
		return nil
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("decoding the ready message of the subject: %w", err)
	}
	return nil
}

// Command gives the arguments of the tare binary that start a guest's process at a site; those of the settings of its
// spec follow them. Its error is of a guest that does not play.
func Command(r Role, g Guest, at Site) ([]string, error) {
	about := g.About()
	if _, ok := g.(Player); !ok {
		return nil, fmt.Errorf("the %s %s is no process of tare", r, about.Name)
	}
	v := param.Values{}
	if s, ok := g.(Sited); ok {
		v = s.At(at)
	}
	given := map[string]string{SeedSetting.Name: strconv.FormatUint(at.Seed, 10)}
	if len(at.SubjectReady) > 0 {
		given[SubjectSetting.Name] = string(at.SubjectReady)
	}
	for _, s := range about.Process {
		if value, ok := given[s.Name]; ok && r == Load {
			v[s.Name] = value
		}
	}
	return append([]string{PlayCommand, string(r), about.Name}, v.Args(about.ProcessSettings())...), nil
}

// Play is the body of PlayCommand: it has the guest that args name play on conn. Its errors are of code fault.Usage
// where args are none that Command gives, and otherwise the guest's.
func Play(ctx context.Context, conn *role.Conn, args []string) error {
	wrong := func(format string, a ...any) error {
		return fault.New(fault.Usage, PlayCommand, "tare calls this command itself", format, a...)
	}
	if len(args) < 2 {
		return wrong("the arguments are not a role, a name and settings")
	}
	guest := Find(Role(args[0]), args[1])
	player, ok := guest.(Player)
	if !ok {
		return wrong("there is no %s %q that plays", args[0], args[1])
	}
	flags := pflag.NewFlagSet(args[1], pflag.ContinueOnError)
	values := param.Flags(flags, guest.About().ProcessSettings()...)
	if err := flags.Parse(args[2:]); err != nil {
		return wrong("%s", err)
	}
	if err := Check(guest, values); err != nil {
		return wrong("%s", err)
	}
	return player.Play(ctx, conn, values)
}

// Check has a guest check the values of the settings of its process, as far as they are those of a spec: by its
// Checker. What else its process needs it checks itself, in Play.
func Check(g Guest, v param.Values) error {
	c, ok := g.(Checker)
	if !ok {
		return nil
	}
	about, shared := g.About(), param.Values{}
	for _, s := range about.Settings {
		own, has := param.Find(about.ProcessSettings(), s.Name)
		if value, given := v[s.Name]; has && given && own.Type == s.Type {
			shared[s.Name] = value
		}
	}
	return c.Check(shared)
}
