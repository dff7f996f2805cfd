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

// systemDirs are directories in which distributions such as Debian install programs for administrators. They may be on
// the PATH of root only.
var systemDirs = []string{"/usr/sbin", "/usr/local/sbin", "/usr/local/bin"}

// Find returns the absolute path of a proxy's program: the value of the setting program, or else a.Program. It looks
// for a name on the PATH, then beside the tare binary (where "make envoy" installs Envoy), and then in systemDirs. The
// error is of code fault.Machine if a name is not found, and of code fault.Usage if a path is invalid.
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

// nobody is the UID of the unprivileged user on most systems (the overflow UID of the kernel).
const nobody = 65534

// unprivileged sets the user and group that the proxy runs as. If this process is not root, they stay unset.
func (p *Place) unprivileged() error {
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.LookupId(strconv.Itoa(nobody))
	if err != nil {
		return fmt.Errorf("looking for the unprivileged user that proxies run as: %w", err)
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
