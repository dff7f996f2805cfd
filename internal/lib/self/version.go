package self

import "runtime/debug"

// Version is the version of Tare. Releases set it with -ldflags -X.
var Version = "0.1.0-dev"

// Commit returns the revision that the build recorded, or "" if there is none, and reports whether the source differed
// from it.
func Commit() (revision string, modified bool) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", false
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			revision = s.Value
		case "vcs.modified":
			modified = s.Value == "true"
		}
	}
	return revision, modified
}

// Build returns the Go version and, if the build recorded it, the revision.
func Build() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	b := info.GoVersion
	revision, modified := Commit()
	if revision != "" {
		b += " revision=" + revision
	}
	if modified {
		b += " modified=true"
	}
	return b
}
