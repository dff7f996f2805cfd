package calibrate

import (
	"context"
	"errors"
	"strings"
	"time"

	"tare/internal/experiment/placement"
	"tare/internal/experiment/role"
	"tare/internal/lib/lists"
)

// childTimeout is longer than any planted process takes.
const childTimeout = 2 * time.Minute

// child is a planted process, a load or a server.
type child struct{ *role.Child }

// start starts the tare binary with args in a separate group, and waits until it is ready. If ready is not nil, the
// content of the child's ready message is decoded into it. The caller must stop the child.
func (b *bench) start(ctx context.Context, limits placement.Limits, ready any,
	args ...string) (*child, *placement.Group, error) {
	g, err := b.group(limits)
	if err != nil {
		return nil, nil, err
	}
	p, err := role.Launch(strings.Join(args[:2], " "), append([]string{b.o.Self}, args...), g.Start, func(error) {})
	if err != nil {
		return nil, nil, err
	}
	c := &child{p}
	b.children[p.PID()] = true
	said, err := p.Ready(ctx)
	if err == nil && ready != nil {
		err = p.Decode(said, "ready message", ready)
	}
	if err != nil {
		return nil, nil, errors.Join(err, c.stop())
	}
	return c, g, nil
}

// startOn starts a planted process of one kind on each of the pins, each in a separate group, and returns the groups'
// paths. The caller must stop the processes, even if err is not nil.
func (b *bench) startOn(ctx context.Context, pins []int, kind string) (children []*child, paths []string, err error) {
	for _, pin := range pins {
		c, g, err := b.start(ctx, placement.Limits{Pin: pin}, nil, WeightCommand, kind)
		if err != nil {
			return children, nil, err
		}
		children, paths = append(children, c), append(paths, g.Path())
	}
	return children, paths, nil
}

func stopAll(children []*child) error {
	return errors.Join(lists.Map(children, (*child).stop)...)
}

func (c *child) begin(data any) error { return c.Send(role.Start, data) }

// result waits for the child's result, and decodes it.
func (c *child) result(ctx context.Context, data any) error { return c.Result(ctx, childTimeout, data) }

// stop stops the child and waits for it.
func (c *child) stop() error {
	c.Stop()
	if c.Err() != nil {
		return c.Failure("when it was stopped")
	}
	return nil
}
