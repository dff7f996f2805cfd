package sidecar

import (
	"context"
	"fmt"
	"net"
	"os"
)

// DialIn connects to the named Unix socket in a directory. The directory's path may be longer than a socket address
// allows. The connection has the context's deadline.
func DialIn(ctx context.Context, dir, name string) (net.Conn, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	c, err := new(net.Dialer).DialContext(ctx, "unix", fmt.Sprintf("/proc/self/fd/%d/%s", d.Fd(), name))
	if err != nil {
		return nil, err
	}
	if deadline, set := ctx.Deadline(); set {
		if err := c.SetDeadline(deadline); err != nil {
			_ = c.Close() // nothing was written
			return nil, err
		}
	}
	return c, nil
}
