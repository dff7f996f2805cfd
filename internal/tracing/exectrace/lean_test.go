package exectrace

import (
	"reflect"
	"testing"
)

// TestDroppable: mappings that were written or may disappear, and mappings of other files than the binary, are left
// alone.
func TestDroppable(t *testing.T) {
	const smaps = `00400000-011f6000 r-xp 00000000 fe:00 10240213                           /opt/my tools/tare
Rss:               10240 kB
Anonymous:             0 kB
VmFlags: rd ex mr mw me sd
011f6000-0224f000 r--p 00df6000 fe:00 10240213                           /opt/my tools/tare
Anonymous:             0 kB
0224f000-02250000 r--p 01e4f000 fe:00 10240213                           /opt/my tools/tare
Anonymous:             4 kB
02250000-02251000 rw-p 00000000 00:00 0 
Anonymous:             0 kB
02252000-02300000 rw-p 01e50000 fe:00 10240213                           /opt/my tools/tare
Anonymous:             0 kB
02300000-02301000 r--s 00000000 fe:00 10240213                           /opt/my tools/tare
Anonymous:             0 kB
2c800000-2cc00000 rw-p 00000000 00:00 0                                  [heap]
Anonymous:             0 kB
7ff729ab9000-7ff729ffc000 r--p 00000000 00:17 48                         /sys/kernel/btf/vmlinux
Anonymous:             0 kB
7f61a0039000-7f61a018f000 r-xp 00026000 fe:00 326269                     /usr/lib/x86_64-linux-gnu/libc.so.6
Anonymous:             0 kB
7f61a018f000-7f61a0190000 r-xp 00026000 fe:00 326269                     /tmp/opt/my tools/tare
Anonymous:             0 kB
garbage-more r-xp 00026000 fe:00 326269                     /opt/my tools/tare
Anonymous:             0 kB
7fff00000000-7fff00002000 r-xp 00000000 00:00 0                          [vdso]
Anonymous:             0 kB
`
	want := []mapping{{0x400000, 0x11f6000}, {0x11f6000, 0x224f000}}
	if got := droppable([]byte(smaps), "/opt/my tools/tare"); !reflect.DeepEqual(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	for _, smaps := range []string{"", "Anonymous: 0 kB\n", "x\ny z\n"} {
		if got := droppable([]byte(smaps), "/opt/my tools/tare"); got != nil {
			t.Errorf("%q: %x", smaps, got)
		}
	}
}

// TestDropCode: pages of a real process can be dropped.
func TestDropCode(t *testing.T) {
	if err := dropCode(); err != nil {
		t.Error(err)
	}
}
