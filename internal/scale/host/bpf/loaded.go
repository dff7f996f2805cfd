package bpf

import (
	"os"
	"path/filepath"
	"strings"
)

// Loaded returns the programs that are loaded on the machine, without what they are attached to and who holds them.
// Own marks those that a descriptor of this process holds. It needs no Inventory, and the same privilege as Open.
func Loaded() ([]Program, error) {
	v := &Inventory{}
	programs, err := v.readPrograms()
	if err != nil {
		return nil, err
	}
	own := heldIn("/proc/self")
	for i := range programs {
		programs[i].Own = own[programs[i].ID]
	}
	return programs, nil
}

// heldIn returns the ids of the programs that a process holds, itself or by a link, given its directory in procfs. It
// leaves out what it cannot read.
func heldIn(process string) map[uint32]bool {
	held := map[uint32]bool{}
	fds, _ := filepath.Glob(filepath.Join(process, "fd", "*")) // the pattern is valid
	for _, fd := range fds {
		if target, err := os.Readlink(fd); err != nil || !strings.HasPrefix(target, "anon_inode:bpf") {
			continue
		}
		text, _ := os.ReadFile(filepath.Join(process, "fdinfo", filepath.Base(fd)))
		if id, ok := fdinfoField(text, "prog_id"); ok { // those of links have it too
			held[uint32(id)] = true
		}
	}
	return held
}
