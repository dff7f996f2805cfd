package names

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/scale/ledger"
)

// Codes of warnings.
const (
	codeAbsent = "names-not-mounted"
	codeDenied = "names-denied"
)

// warnings explains why containers currently have no names: one warning for each reason. There is none if only a
// container's own files are missing, because it may have ended.
func (r *Resolver) warnings() []ledger.Warning {
	absent, denied, example := map[string]int{}, 0, error(nil)
	for _, e := range r.known {
		switch {
		case e.settled || e.why == nil:
		case e.why.Denied != nil:
			denied++
			if example == nil || e.why.Denied.Error() < example.Error() {
				example = e.why.Denied
			}
		case len(e.why.Absent) > 0:
			absent[volumeOf(e.why.Absent[0])]++
		}
	}
	var all []ledger.Warning
	for _, volume := range slices.Sorted(maps.Keys(absent)) {
		all = append(all, ledger.Warning{Code: codeAbsent, Message: fmt.Sprintf("%s without a name: their engine has no "+
			"files in %s. Where Tare runs in a container, mount the machine's %s there, read-only (in Kubernetes a hostPath "+
			"volume)", quantity.Counted(absent[volume], "container"), r.path(volume), volume)})
	}
	if denied > 0 {
		all = append(all, ledger.Warning{Code: codeDenied, Message: fmt.Sprintf("%s without a name: %s; run as root, or "+
			"with CAP_DAC_READ_SEARCH", quantity.Counted(denied, "container"), text.ClipLine(example.Error(), maxText))})
	}
	return all
}

// path returns where this process finds a path of the machine.
func (r *Resolver) path(p string) string { return path.Join("/", r.tree.Root, p) }

// volumeOf returns what to mount if a directory is missing: all of /run, because a directory below it is replaced when
// its engine restarts, and a mount of it alone would become stale.
func volumeOf(dir string) string {
	if strings.HasPrefix(dir, "/run/") {
		return "/run"
	}
	return dir
}
