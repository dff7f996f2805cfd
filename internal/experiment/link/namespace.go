package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
)

// Namespace is a network namespace without a name. It lives as long as this process keeps it open or a process runs in
// it, and its interfaces, routes and rules vanish with it: a killed run leaves only what its own processes hold.
type Namespace struct{ fd netns.NsHandle }

// NewNamespace makes a network namespace with only a loopback interface, which is up. A kernel without namespaces, or
// a lack of permission, is an error with the code fault.Machine.
func NewNamespace() (*Namespace, error) {
	n := &Namespace{netns.None()}
	err := elsewhere(func() (err error) {
		n.fd, err = netns.New() // this thread is now in it
		return err
	})
	if err != nil {
		hint := "run as root, or with CAP_SYS_ADMIN"
		if errors.Is(err, unix.EINVAL) {
			hint = "use a kernel with CONFIG_NET_NS"
		}
		return nil, fault.Wrap(err, fault.Machine, "", hint, "cannot make a network namespace")
	}
	if err := n.Do(func() error { return Configure("lo", "", netip.Prefix{}) }); err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// OpenNamespace opens the namespace at a path, such as one from Path.
func OpenNamespace(path string) (*Namespace, error) {
	fd, err := netns.GetFromPath(path)
	if err != nil {
		return nil, fmt.Errorf("opening a network namespace: %w", err)
	}
	return &Namespace{fd}, nil
}

// elsewhere calls do on a separate thread, which ends with do, so do may change the thread's namespaces.
func elsewhere(do func() error) error {
	done := make(chan error, 1)
	var run func()
	run = func() {
		runtime.LockOSThread()
		if unix.Gettid() == os.Getpid() {
			// The first thread of a process never ends, and /proc/self shows its namespaces: it must not call do, and waits
			// while another thread does.
			other := make(chan struct{})
			go func() {
				defer close(other)
				run()
			}()
			<-other
			runtime.UnlockOSThread()
			return
		}
		done <- do() // still locked: the runtime ends the thread with the goroutine
	}
	go run()
	return <-done
}

// Do calls do on a thread in the namespace. Sockets that do opens belong to the namespace; goroutines that it starts
// run outside.
func (n *Namespace) Do(do func() error) error {
	return elsewhere(func() error {
		if err := netns.Set(n.fd); err != nil {
			return fmt.Errorf("entering a network namespace: %w", err)
		}
		return do()
	})
}

// Path returns the path at which other processes find the namespace while this process has it open.
func (n *Namespace) Path() string { return fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), int(n.fd)) }

// FD returns the descriptor of the namespace, which is valid until Close.
func (n *Namespace) FD() int { return int(n.fd) }

// DialContext connects from inside the namespace to an IP address.
func (n *Namespace) DialContext(ctx context.Context, network, address string) (c net.Conn, err error) {
	if _, err := netip.ParseAddrPort(address); err != nil {
		return nil, fmt.Errorf("connecting in a network namespace: %w", err) // a name would be looked up on other threads
	}
	err = n.Do(func() error {
		d := net.Dialer{FallbackDelay: -time.Nanosecond} // one attempt, on this thread
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Close closes the namespace. It does nothing for a closed or nil Namespace.
func (n *Namespace) Close() error {
	if n == nil || !n.fd.IsOpen() {
		return nil
	}
	return n.fd.Close()
}

// Connect connects two namespaces with a pair of virtual interfaces, both named Inside, each with an address.
func Connect(a, b *Namespace, atA, atB netip.Prefix) error {
	err := a.Do(func() error {
		if err := MakePair(Inside, Inside, b); err != nil {
			return err
		}
		return Configure(Inside, "", atA)
	})
	if err != nil {
		return err
	}
	return b.Do(func() error { return Configure(Inside, "", atB) })
}

// RouteAll adds a default route to a namespace, through an address at the other end of its link.
func (n *Namespace) RouteAll(via netip.Addr) error {
	return n.Do(func() error {
		link, err := netlink.LinkByName(Inside)
		if err == nil {
			err = netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Gw: via.AsSlice()})
		}
		if err != nil {
			return fmt.Errorf("adding the default route of a network namespace: %w", err)
		}
		return nil
	})
}
