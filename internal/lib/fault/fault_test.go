package fault

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"testing"
)

func TestCodeOf(t *testing.T) {
	denied := &os.PathError{Op: "open", Path: "/x", Err: syscall.EACCES}
	for _, c := range []struct {
		err  error
		want Code
	}{
		{nil, OK},
		{errors.New("x"), Internal},
		{New(Usage, "", "", "x"), Usage},
		{fmt.Errorf("doing: %w", Wrap(New(Usage, "", "", "x"), Machine, "", "", "y")), Machine},
		{denied, Machine},
		{fmt.Errorf("doing: %w", syscall.ENOSPC), Machine},
		{Wrap(denied, Usage, "/x", "", "it cannot be opened"), Usage},
		{os.NewSyscallError("bpf", syscall.EINVAL), Internal},
		{os.NewSyscallError("read", syscall.EBADF), Internal},
	} {
		if got := CodeOf(c.err); got != c.want {
			t.Errorf("%v: code %d, want %d", c.err, got, c.want)
		}
	}
}

func TestMendOf(t *testing.T) {
	const files = "raise the limit of open files: ulimit -n 65536"
	inner := New(Usage, "a", "inner hint", "wrong")
	for _, c := range []struct {
		name string
		err  error
		want string
	}{
		{"no error", nil, ""},
		{"no hint", errors.New("x"), ""},
		{"a hint", inner, "inner hint"},
		{"the outermost", Wrap(inner, Machine, "", "outer hint", "more"), "outer hint"},
		{"an outer one without", fmt.Errorf("doing: %w", Wrap(inner, Machine, "", "", "more")), "inner hint"},
		{"open files, whatever else is said", Wrap(&os.PathError{Op: "open", Path: "/x", Err: syscall.EMFILE}, Machine, "/x",
			"name another directory", "cannot write"), files},
		{"open files, without a fault", fmt.Errorf("reading: %w", syscall.EMFILE), files},
		{"open files, joined", errors.Join(inner, os.NewSyscallError("pipe2", syscall.EMFILE)), files},
		{"the machine's open files", Wrap(syscall.ENFILE, Machine, "", "other", "x"),
			"raise the machine's limit of open files: sysctl fs.file-max"},
	} {
		if got := HintOf(c.err); got != c.want {
			t.Errorf("%s: got %q, want %q", c.name, got, c.want)
		}
	}
}
