package charge

import (
	"embed"
	"io/fs"
	"path"
	"strings"

	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/text"
)

//go:embed profiles
var profiles embed.FS

const profileDir, profileSuffix = "profiles", ".yaml"

// Profiles returns the names of the profiles, which are files of rules embedded in this program.
func Profiles() []string {
	entries, err := profiles.ReadDir(profileDir)
	if err != nil {
		panic(err) // cannot happen: it is embedded
	}
	return lists.Map(entries, func(e fs.DirEntry) string { return strings.TrimSuffix(e.Name(), profileSuffix) })
}

// Profile returns the rules of a profile. They must come after user-written rules, which then apply first. where is the
// source of the name, such as a flag, for the error about an unknown name.
func Profile(name, where string) ([]Rule, error) {
	file := path.Join(profileDir, name+profileSuffix)
	data, err := profiles.ReadFile(file)
	if err != nil {
		hint := text.Suggest(name, Profiles())
		if strings.ContainsAny(name, "/.") {
			hint = "give a file of rules by --rules " + clip(name)
		}
		return nil, fault.New(fault.Usage, where, hint, "there is no profile %q", clip(name))
	}
	rules, err := ParseFile("profile "+name, data)
	for i := range rules {
		rules[i].Profile = true
	}
	return rules, err
}
