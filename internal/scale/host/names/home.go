package names

import (
	"path"
	"strconv"
	"strings"

	"tare/internal/lib/files"
)

// maxPasswd bounds /etc/passwd, in bytes.
const maxPasswd = 1 << 20

// home returns the home of a user, from the machine's /etc/passwd; empty if unknown.
func (r *Resolver) home(uid uint32) string {
	passwd, err := r.tree.Read("/etc/passwd", maxPasswd, files.OwnedBy(0))
	if err != nil {
		return ""
	}
	return homeIn(string(passwd), uid)
}

// homeIn finds the home of a user in the text of /etc/passwd (passwd(5)).
func homeIn(passwd string, uid uint32) string {
	const fieldUID, fieldHome, fields = 2, 5, 7
	for line := range strings.Lines(passwd) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) != fields || f[fieldUID] != strconv.FormatUint(uint64(uid), 10) {
			continue
		}
		if home := path.Clean(f[fieldHome]); path.IsAbs(home) && home != "/" {
			return home
		}
	}
	return ""
}
