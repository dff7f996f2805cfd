// Package usage reports errors in a command line, in the same words for each program.
package usage

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"tare/internal/lib/fault"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
)

// SeeHelp returns a hint that refers to the help of a command.
func SeeHelp(cmd *cobra.Command) string { return fmt.Sprintf("see '%s --help'", cmd.CommandPath()) }

// NoArgs is for the field Args of a cobra.Command that takes no arguments. It returns an error if there are any.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fault.New(fault.Usage, cmd.CommandPath()+" "+text.Clip(args[0]), SeeHelp(cmd), "unexpected argument")
	}
	return nil
}

// FlagError describes an error in a flag in plain words instead of those of the functions that parse numbers.
func FlagError(cmd *cobra.Command, err error) error {
	help := SeeHelp(cmd)
	var wrong *pflag.InvalidValueError
	if !errors.As(err, &wrong) {
		return fault.New(fault.Usage, cmd.CommandPath(), help, "%s", err)
	}
	f := wrong.GetFlag()
	if setting, ok := f.Value.(param.Flag); ok {
		return fault.New(fault.Usage, cmd.CommandPath()+" --"+f.Name, setting.Hint()+"; "+help, "%s", wrong.Unwrap())
	}
	says := map[string]string{
		"int": "must be a whole number", "int64": "must be a whole number",
		"uint32": "must be a whole number, 0 or more", "uint64": "must be a whole number, 0 or more",
		"float64": "must be a number", "bool": "must be true or false", "boolfunc": "must be true or false",
		"duration": "must be a duration with its unit, such as 300ms or 2s",
	}[f.Value.Type()]
	if says == "" || errors.Is(err, strconv.ErrRange) {
		says = "must be another value"
	}
	return fault.New(fault.Usage, cmd.CommandPath()+" --"+f.Name, f.Usage+"; "+help, "%s, not %q", says, wrong.GetValue())
}
