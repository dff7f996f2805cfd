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

// PlayCommand is the hidden command under which the tare binary runs the process of a Player. Its arguments are a
// role, the guest's name, and the values of the settings of its process as flags.
const PlayCommand = "_play"

// Settings that Command fills in for a load whose process has them, in addition to those from Sited.At.
var (
	// SeedSetting passes Site.Seed.
	SeedSetting = param.Setting{Name: "seed", Type: param.TypeCount, Default: "1", Max: math.MaxUint64,
		Doc: "seed of Poisson arrivals and of all other random choices"}
	// SubjectSetting passes the subject's ready message (Site.SubjectReady). SubjectReady decodes it.
	SubjectSetting = param.Setting{Name: "subject-ready", Type: param.TypeText, Reach: param.ReachAddress,
		Doc: "ready message of the subject, JSON"}
)

// SubjectReady decodes the value of SubjectSetting, if v has one.
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

// Command returns the arguments of the tare binary that start a guest's process at a site, to be followed by the flags
// for the settings of its spec. It returns an error for a guest that is not a Player.
func Command(r Role, g Guest, at Site) ([]string, error) {
	about := g.About()
	if _, ok := g.(Player); !ok {
		return nil, fmt.Errorf("the %s %s is not a process of tare", r, about.Name)
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

// Play is the body of PlayCommand: it runs the guest that args name over conn. Its errors have the code fault.Usage if
// args are not as Command makes them; all others are the guest's.
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

// Check calls the guest's Checker, if it has one, with the process settings that specs have too. Player.Play checks
// the others.
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
