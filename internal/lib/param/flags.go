package param

import (
	"strings"

	"github.com/spf13/pflag"
)

// Flags adds a flag for each setting. It returns the values: the defaults, and what the command line gives once it has
// been parsed.
func Flags(fs *pflag.FlagSet, settings ...Setting) Values {
	v := Defaults(settings)
	for _, s := range settings {
		usage := strings.ReplaceAll(s.Doc, "`", "'") // pflag takes a word in backquotes for the name of the value
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

// Set checks and takes a value; its error is that of a spec.
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

// Type is what help shows as the value.
func (f Flag) Type() string {
	switch f.Setting.Type {
	case TypeSwitch:
		return "bool" // to pflag this is a flag that needs no value
	case TypeWord:
		return strings.Join(f.Words, "|")
	}
	return strings.ReplaceAll(f.Accepts(), " or ", "|")
}
