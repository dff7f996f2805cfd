package cpio

import (
	"bytes"
	"os/exec"
	"strings"
	"testing"
)

// TestArchive: cpio(1) reads back what was written, each directory before the files in it.
func TestArchive(t *testing.T) {
	var a Archive
	a.File("/etc/x", 0o640, []byte("abc"))
	a.Dir("bin", 0o755)
	a.Add("bin/sh", Entry{Mode: 0o120777}, []byte("busybox"))
	a.Add("dev", Entry{Mode: 0o040755}, nil)
	a.Add("dev/null", Entry{Mode: 0o020666, UID: 7, GID: 8, Major: 1, Minor: 3}, nil)
	b := a.Bytes()
	if len(b)%4 != 0 || !bytes.HasPrefix(b, []byte("070701")) || !bytes.Contains(b, []byte("TRAILER!!!")) {
		t.Fatalf("not an archive: %q", b)
	}
	program, err := exec.LookPath("busybox")
	if err != nil {
		t.Skip("needs busybox (Debian package busybox-static)")
	}
	cmd := exec.Command(program, "cpio", "-t")
	cmd.Stdin = bytes.NewReader(b)
	out, err := cmd.Output()
	if want := "etc\netc/x\nbin\nbin/sh\ndev\ndev/null\n"; err != nil || strings.TrimPrefix(string(out), ".\n") != want {
		t.Errorf("%v: %q", err, out)
	}
}
