package child

import (
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Mark is the environment variable that names the tree of control groups (placement.Tree) to which a process belongs.
// Children inherit it. They also inherit an open file named after the tree, which remains if a program overwrites its
// environment.
const Mark = "TARE_RUN"

// Command is a program to start.
type Command struct {
	Argv    []string   // the program, by its path or its name on the PATH, and its arguments
	Path    string     // the program's path, if Argv[0] is only its name
	Env     []string   // variables added to those of this process
	OnlyEnv bool       // the process gets only the variables in Env
	Dir     string     // the working directory; empty: this process's
	Files   []*os.File // open files that become its descriptors 3, 4 and so on
	Session bool       // it leads a new session, which has no terminal

	Stdin          io.Reader // nil: it has no input
	Stdout, Stderr io.Writer // nil: as Options specify
}

// Starter starts a command in the right place, such as a control group.
type Starter func(*exec.Cmd) error

// On returns a Starter that calls do with a function that starts the command. do must call that function, on a thread
// of its choice: the process inherits the namespaces of that thread, and dies with the thread.
func On(do func(start func() error) error) Starter {
	return func(cmd *exec.Cmd) error {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
		return do(cmd.Start)
	}
}

// outliving is the Starter of processes that may outlive this one.
func outliving(cmd *exec.Cmd) error { return cmd.Start() }

func (c *Command) cmd() *exec.Cmd {
	cmd := exec.Command(c.Argv[0], c.Argv[1:]...)
	if c.Path != "" {
		cmd.Path, cmd.Err = c.Path, nil
	}
	cmd.Dir, cmd.ExtraFiles = c.Dir, c.Files
	cmd.Stdin, cmd.Stdout, cmd.Stderr = c.Stdin, c.Stdout, c.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: c.Session, Setpgid: !c.Session} // so Ctrl-C does not reach it
	switch {
	case c.OnlyEnv:
		cmd.Env = append([]string{}, c.Env...)
	case len(c.Env) > 0:
		cmd.Env = append(cmd.Environ(), c.Env...)
	}
	return cmd
}

// Run runs a command to its end and returns the error of Process.Err. When ctx ends, it stops the process
// (Process.Stop), or kills its group at once if Options.Stop is 0.
func Run(ctx context.Context, c Command, o Options) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	var p Process
	if err := Start(&p, c, o); err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() {
		if o.Stop == 0 {
			p.Kill()
		} else {
			p.Stop()
		}
	})()
	return p.Err()
}

// ErrNotFound matches the errors of Find and Start for a name without a slash that is not in the PATH. If a name with a
// slash does not exist, their errors match fs.ErrNotExist instead.
var ErrNotFound = exec.ErrNotFound

// Find returns the path of an executable program. A name with a slash is a path; any other is looked up in the PATH
// and then in dirs. It does not look in the working directory, which may be another user's.
func Find(name string, dirs ...string) (string, error) {
	path, err := exec.LookPath(name)
	if err == nil || strings.Contains(name, "/") {
		return path, err
	}
	for _, dir := range dirs {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}
