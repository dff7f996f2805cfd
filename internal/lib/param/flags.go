package param

import (
	"strings"

	"github.com/spf13/pflag"
)

// Flags adds a flag for each setting. It returns the defaults, into which parsing stores the values of the command
// line.
func Flags(fs *pflag.FlagSet, settings ...Setting) Values {
	v := Defaults(settings)
	for _, s := range settings {
		usage := strings.ReplaceAll(s.Doc, "`", "'") // pflag takes a word in backquotes as the name of the value
		if r := s.Range(); r != "" {
			usage += "; " + r
		}
		if s.Many {
			usage += "; may be repeated"
		}
		f := fs.VarPF(Flag{s, v}, s.Name, "", usage)
		if s.Type == TypeSwitch {
			f.NoOptDefVal = "true"
		}
	}
	return v
}

// Flag is the flag of a setting.
type Flag struct {
	Setting
	values Values
}

// Set checks and stores a value. Its error is the same as for a value in a spec.
func (f Flag) Set(text string) error {
	c, err := f.Canonical(text)
	if err != nil {
		return err
	}
	if before, ok := f.values[f.Name]; ok && f.Many {
		c = before + separator + c
	}
	f.values[f.Name] = c
	return nil
}

func (f Flag) String() string { return f.values[f.Name] }

// Type returns the placeholder of the flag's value in the help, such as count.
func (f Flag) Type() string {
	switch f.Setting.Type {
	case TypeSwitch:
		return "bool" // the type of pflag's flags without a value
	case TypeWord:
		return strings.Join(f.Words, "|")
	}
	return strings.ReplaceAll(f.Accepts(), " or ", "|")
}
