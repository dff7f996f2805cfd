package sidecar

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"tare/internal/experiment/child"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
)

// systemDirs are the directories in which Debian and others install administrators' programs, and which may be on
// root's PATH only.
var systemDirs = []string{"/usr/sbin", "/usr/local/sbin", "/usr/local/bin"}

// Find returns the absolute path of a proxy's program. It looks on the PATH, then beside the tare binary (where "make
// envoy" installs Envoy), and then in systemDirs. The error is of code fault.Machine if a name is not found, and of
// code fault.Usage if a path is invalid.
func Find(a About, o param.Values) (string, error) {
	name := a.Program
	given := o[settingProgram]
	if given != "" {
		name = given
	}
	dirs := systemDirs
	if self, err := os.Executable(); err == nil {
		dirs = slices.Concat([]string{filepath.Dir(self)}, dirs)
	}
	path, err := child.Find(name, dirs...)
	if err == nil {
		return filepath.Abs(path)
	}
	if strings.Contains(name, "/") {
		return "", fault.Wrap(err, fault.Usage, name, "check the path, and that it may be executed (chmod +x)",
			"the program of the proxy cannot be run")
	}
	return "", fault.New(fault.Machine, name, a.Hint, "not installed, neither on the PATH nor beside tare nor in %s",
		strings.Join(systemDirs, ", "))
}

func (g Guest) program(o param.Values) (string, error) { return Find(g.Proxy.About(), o) }

// nobody is the number of the unprivileged user of most systems (Linux's overflow UID).
const nobody = 65534

// unprivileged sets the user that the proxy runs as. Without root, it leaves the user of this process.
func (p *Place) unprivileged() error {
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.LookupId(strconv.Itoa(nobody))
	if err != nil {
		return fmt.Errorf("looking for a user without rights to run a proxy as: %w", err)
	}
	g, err := user.LookupGroupId(u.Gid)
	if err != nil {
		return fmt.Errorf("looking for the group of the user %s: %w", u.Username, err)
	}
	p.User, p.Group = u.Username, g.Name
	p.UID, p.GID = nobody, nobody
	if gid, err := strconv.Atoi(u.Gid); err == nil {
		p.GID = gid
	}
	return nil
}
