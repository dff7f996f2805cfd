package kind

import (
	"context"
	"fmt"

	"github.com/spf13/pflag"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
)

// PlayCommand is the hidden command as which the tare binary is the process of a Player. Its arguments are a role, the
// guest's name, and the values of the settings of its process as flags.
const PlayCommand = "_play"

// Command gives the arguments of the tare binary that start a guest's process at a site; those of the settings of its
// spec follow them. Its error is of a guest that does not play.
func Command(r Role, g Guest, at Site) ([]string, error) {
	about := g.About()
	if _, ok := g.(Player); !ok {
		return nil, fmt.Errorf("the %s %s is no process of tare", r, about.Name)
	}
	argv := []string{PlayCommand, string(r), about.Name}
	if s, ok := g.(Sited); ok {
		argv = append(argv, s.At(at).Args(about.ProcessSettings())...)
	}
	return argv, nil
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
