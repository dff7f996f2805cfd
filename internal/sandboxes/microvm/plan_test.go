package microvm

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// TestIgnoredErrorsLeaveArguments: the ignored errors of an instruction fill exactly the room before its first
// argument.
func TestIgnoredErrorsLeaveArguments(t *testing.T) {
	var all errnos
	for i := range all {
		all[i] = unix.Errno(i + 1)
	}
	const argument = 0x1122334455
	p := &plan{}
	p.add("anything", 1, argument).ignore = all
	instruction := p.encode()[8:]
	for i, errno := range all {
		if got := binary.LittleEndian.Uint32(instruction[12+4*i:]); got != uint32(errno) {
			t.Errorf("error %d is %d, want %d", i, got, errno)
		}
	}
	if got := binary.LittleEndian.Uint64(instruction[12+4*len(all):]); got != argument {
		t.Errorf("the first argument is %#x, want %#x", got, uint64(argument))
	}
}
