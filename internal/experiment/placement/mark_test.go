package placement

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"tare/internal/scale/host/proc"
	"tare/test/rights"
)

// TestForeignMarks: an open file marks a process only if its own user or this one created the file, for a run that
// existed when the process started. Others can send files to a daemon that accepts them.
func TestForeignMarks(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to be somebody else")
	}
	self, err := proc.FS{}.Identify()
	if err != nil {
		t.Fatal(err)
	}
	memfd := func(name string) *os.File {
		fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		return os.NewFile(uintptr(fd), name)
	}
	const first = 3 // descriptor of a command's further files
	for _, c := range []struct {
		what   string
		name   string
		of     uint32 // the user of the process
		others bool   // the file belongs to another user
		marks  bool
	}{
		{"its own", fmt.Sprintf("tare-x-p4100000-t%d", self.Start), 0, false, true},
		{"this user's, in a process of another's", fmt.Sprintf("tare-x-p4100000-t%d", self.Start), 65534, false, true},
		{"another's, in a process of theirs", fmt.Sprintf("tare-x-p4100000-t%d", self.Start), 65534, true, true},
		{"another's, in a process of this user's", fmt.Sprintf("tare-x-p4100000-t%d", self.Start), 0, true, false},
		{"of a run that began later", fmt.Sprintf("tare-x-p4100000-t%d", uint64(1)<<40), 0, false, false},
		{"of no run", "tare", 0, false, false},
	} {
		t.Run(c.what, func(t *testing.T) {
			var file *os.File
			if c.others {
				rights.Without(t, func() { file = memfd(c.name) })
			} else {
				file = memfd(c.name)
			}
			defer file.Close()
			cmd := exec.CommandContext(t.Context(), "sleep", "60")
			cmd.ExtraFiles = []*os.File{file}
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: c.of, Gid: c.of}}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
			if got := markOfFD(cmd.Process.Pid, first); (got == c.name) != c.marks || got != "" && got != c.name {
				t.Errorf("%s marks it as of %q", c.name, got)
			}
		})
	}
}
