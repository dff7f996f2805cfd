package calibrate

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"tare/internal/experiment/placement"
	"tare/internal/experiment/role"
)

const (
	childTimeout = 2 * time.Minute // of the longest life that a planted process has
	stopTimeout  = 5 * time.Second // from the end of its input to its exit
)

// child is a planted process, a load or a server, which speaks the role protocol.
type child struct {
	name   string
	cmd    *exec.Cmd
	conn   *role.Conn
	stdin  io.Closer
	stderr bytes.Buffer
	cancel context.CancelFunc
}

// start starts the tare binary with args in a group of its own, and waits until it is ready.
func (b *bench) start(ctx context.Context, limits placement.Limits, ready any, args ...string) (*child, *placement.Group, error) {
	g, err := b.group(limits)
	if err != nil {
		return nil, nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, childTimeout)
	c := &child{name: strings.Join(args[:2], " "), cmd: exec.CommandContext(ctx, b.o.Self, args...), cancel: cancel}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // Ctrl-C is for the calibration, which ends its processes in order
	c.cmd.Stderr, c.cmd.WaitDelay = &c.stderr, stopTimeout
	in, err := c.cmd.StdinPipe()
	if err == nil {
		var out io.ReadCloser
		if out, err = c.cmd.StdoutPipe(); err == nil {
			c.stdin, c.conn = in, role.NewConn(out, in)
			err = g.Start(c.cmd)
		}
	}
	if err != nil {
		cancel()
		return nil, nil, fmt.Errorf("starting %s: %w", c.name, err)
	}
	b.children[c.cmd.Process.Pid] = true
	if err := c.expect(role.Ready, ready); err != nil {
		return nil, nil, errors.Join(err, c.stop())
	}
	return c, g, nil
}

func (c *child) begin(data any) error { return c.conn.Send(role.Start, data) }

func (c *child) expect(event string, data any) error {
	if err := c.conn.Expect(event, data, nil); err != nil {
		return fmt.Errorf("waiting for %s to be %s: %w", c.name, event, err)
	}
	return nil
}

// finish closes its input and takes what it says at its end.
func (c *child) finish(data any) error {
	err := c.stdin.Close()
	if err == nil {
		err = c.expect(role.Result, data)
	}
	return err
}

// stop ends it and waits for it.
func (c *child) stop() error {
	_ = c.stdin.Close() // it may be closed already
	timer := time.AfterFunc(stopTimeout, c.cancel)
	defer timer.Stop()
	defer c.cancel()
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("%s: %w; its last words: %s", c.name, err, strings.TrimSpace(c.stderr.String()))
	}
	return nil
}
