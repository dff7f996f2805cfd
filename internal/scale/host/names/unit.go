package names

import (
	"slices"
	"strconv"
	"strings"
)

// unitTypes are the types of systemd units that have groups.
var unitTypes = []string{".service", ".scope", ".slice", ".socket", ".mount", ".swap"}

// maxUnit bounds the name of a unit (UNIT_NAME_MAX in systemd).
const maxUnit = 256

// unitOf returns the unit that a group belongs to, and the path of the unit's group: the deepest unit that is not a
// slice or, if there is none, the slice whose own group it is. Groups below a slice that are in no other unit were not
// created by systemd.
func unitOf(group string) (unit, top string) {
	for at := 0; at < len(group); {
		element, _, _ := strings.Cut(group[at+1:], "/")
		at += 1 + len(element)
		name, ok := unitName(element)
		if ok && (!strings.HasSuffix(name, ".slice") || at == len(group) && unit == "") {
			unit, top = name, group[:at]
		}
	}
	return clip(unit), top
}

// unitName returns the name of the unit for a path element, as people write it, and whether there is one. systemd puts
// an underscore before names that could clash with a kernel file (cg_escape in src/basic/cgroup-util.c), and escapes
// special characters as \xHH (unit_name_escape in src/basic/unit-name.c).
func unitName(element string) (string, bool) {
	element = strings.TrimPrefix(element, "_")
	dot := strings.LastIndexByte(element, '.')
	if dot <= 0 || len(element) >= maxUnit || !slices.Contains(unitTypes, element[dot:]) {
		return "", false
	}
	for i := 0; i < len(element); i++ {
		c := element[i]
		letter := c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && strings.IndexByte(`:-_.\@`, c) < 0 {
			return "", false
		}
	}
	return unescape(element), true
}

// unescape replaces each \xHH with the byte that it represents.
func unescape(s string) string {
	if !strings.Contains(s, `\x`) {
		return s
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if strings.HasPrefix(s[i:], `\x`) && len(s) >= i+4 {
			if c, err := strconv.ParseUint(s[i+2:i+4], 16, 8); err == nil {
				b.WriteByte(byte(c))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

// userOf returns the user whose systemd manager a group is below, and who may therefore create groups there; 0 for
// root.
func userOf(group string) uint32 {
	rest, ok := strings.CutPrefix(group, "/user.slice/user-")
	if !ok {
		return 0
	}
	number, rest, _ := strings.Cut(rest, ".slice/")
	uid, err := strconv.ParseUint(number, 10, 32)
	if err != nil || !strings.HasPrefix(rest, "user@"+number+".service/") {
		return 0
	}
	return uint32(uid)
}
