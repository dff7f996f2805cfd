package kind

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/spf13/pflag"

	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
)

// PlayCommand is the hidden command as which the tare binary is the process of a Player. Its arguments are a role, the
// guest's name, its site as JSON, and the values of its settings as flags.
const PlayCommand = "_play"

// Command gives the arguments of the tare binary that start a guest's process at a site; those of its settings follow
// them. Its error is of a guest that neither has a command nor plays.
func Command(r Role, g Guest, at Site) ([]string, error) {
	name := g.About().Name
	if c, ok := g.(Commander); ok {
		return c.Command(at), nil
	}
	if _, ok := g.(Player); !ok {
		return nil, fmt.Errorf("the %s %s says no way to start it", r, name)
	}
	site, err := json.Marshal(at)
	if err != nil {
		return nil, fmt.Errorf("encoding the site of the %s %s: %w", r, name, err)
	}
	return []string{PlayCommand, string(r), name, string(site)}, nil
}

// Play is the body of PlayCommand: it has the guest that args name play on conn. Its errors are of code fault.Usage
// where args are none that Command gives, and otherwise the guest's.
func Play(ctx context.Context, conn *role.Conn, args []string) error {
	wrong := func(format string, a ...any) error {
		return fault.New(fault.Usage, PlayCommand, "tare calls this command itself", format, a...)
	}
	if len(args) < 3 {
		return wrong("the arguments are not a role, a name, a site and settings")
	}
	guest := Find(Role(args[0]), args[1])
	player, ok := guest.(Player)
	if !ok {
		return wrong("there is no %s %q that plays", args[0], args[1])
	}
	var at Site
	if err := json.Unmarshal([]byte(args[2]), &at); err != nil {
		return wrong("the site is %q: %s", args[2], err)
	}
	flags := pflag.NewFlagSet(args[1], pflag.ContinueOnError)
	values := param.Flags(flags, guest.About().Settings...)
	if err := flags.Parse(args[3:]); err != nil {
		return wrong("%s", err)
	}
	if c, ok := guest.(Checker); ok {
		if err := c.Check(values); err != nil {
			return wrong("%s", err)
		}
	}
	return player.Play(ctx, conn, at, values)
}
