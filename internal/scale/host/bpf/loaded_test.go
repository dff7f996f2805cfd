package bpf

import (
	"maps"
	"os"
	"path/filepath"
	"testing"
)

// TestHeldIn: a process holds the programs of its descriptors of programs and of links, by any of the kernel's names.
func TestHeldIn(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"fd", "fdinfo"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for fd, of := range map[string][2]string{
		"3": {"anon_inode:bpf-prog", "prog_type:\t6\nprog_id:\t17\n"},
		"4": {"anon_inode:bpf_link", "link_type:\tcgroup\nlink_id:\t2\nprog_id:\t18\n"},
		"5": {"anon_inode:bpf-link", "link_id:\t3\nprog_id:\t19\n"},
		"6": {"anon_inode:bpf-map", "map_id:\t20\n"},
		"7": {"socket:[21]", "prog_id:\t21\n"},
	} {
		if err := os.Symlink(of[0], filepath.Join(dir, "fd", fd)); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "fdinfo", fd), []byte(of[1]), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, want := heldIn(dir), map[uint32]bool{17: true, 18: true, 19: true}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
