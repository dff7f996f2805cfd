package istiod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/role"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/mesh/services"
)

// made is a generated mesh under istiod: services as ServiceEntries in a Kubernetes API, and a listener at their
// endpoints.
type made struct {
	ready   services.Ready
	istiod  *Istiod
	control net.Listener // for clients that ask for changes
	all     net.Listener // for connections to endpoints
}

// startMesh starts a mesh with count generated services and with others, which do not change. It runs until Close.
func startMesh(
	ctx context.Context, count, endpoints int, debounce time.Duration, others []Service,
) (_ *made, err error) {
	m := &made{}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	if m.all, err = listenAll(ctx); err != nil {
		return nil, err
	}
	if m.control, err = new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
		return nil, fmt.Errorf("listening for changes: %w", err)
	}
	m.ready = services.Ready{
		Control: m.control.Addr().String(), Services: count, Endpoints: endpoints,
		Port: uint16(m.all.Addr().(*net.TCPAddr).Port),
	}
	all := []Object{}
	for i := range count {
		all = append(all, m.entry(i, 1))
	}
	for _, s := range others {
		all = append(all, s.Object())
	}
	m.istiod, err = Start(ctx, Options{Objects: all, Environment: Debounced(debounce)})
	if err != nil {
		return nil, err
	}
	m.ready.Address = m.istiod.XDS
	return m, nil
}

// listenAll listens at all addresses of the loopback interface, and at no others.
func listenAll(ctx context.Context) (net.Listener, error) {
	lo := func(_, _ string, c syscall.RawConn) (err error) {
		return errors.Join(c.Control(func(fd uintptr) {
			err = unix.SetsockoptString(int(fd), unix.SOL_SOCKET, unix.SO_BINDTODEVICE, "lo")
		}), err)
	}
	l, err := (&net.ListenConfig{Control: lo}).Listen(ctx, "tcp4", "0.0.0.0:0")
	if err != nil {
		return nil, fmt.Errorf("listening at endpoints: %w", err)
	}
	return l, nil
}

func entryName(service int) string { return fmt.Sprintf("service-%05d", service) }

// Debounced returns the environment of an istiod that does not push a change until no other change has come for the
// given time, but waits at most 10 s. Istio's default is 100 ms. The istiod does not support the Gateway API.
func Debounced(after time.Duration) []string {
	return []string{"PILOT_DEBOUNCE_AFTER=" + after.String(), "PILOT_DEBOUNCE_MAX=10s", "PILOT_ENABLE_EDS_DEBOUNCE=true",
		"PILOT_ENABLE_GATEWAY_API=false"}
}

// entry returns a service's ServiceEntry after a change.
func (m *made) entry(service, change int) Object {
	s := Service{Name: entryName(service), Address: m.ready.Service(service), Protocol: "TCP"}
	for i := range m.ready.Endpoints {
		s.Endpoints = append(s.Endpoints, m.ready.Endpoint(service, change, i))
	}
	return s.Object()
}

// Object returns the service's ServiceEntry.
func (s Service) Object() Object {
	endpoints := []object{}
	for _, e := range s.Endpoints {
		endpoints = append(endpoints, object{"address": e.Addr(), "ports": object{"main": e.Port()}})
	}
	return objectOf("ServiceEntry", cmp.Or(s.Namespace, defaultNamespace), s.Name, object{
		"hosts": []string{s.Host()}, "addresses": []netip.Addr{s.Address.Addr()},
		"ports":    []object{{"number": s.Address.Port(), "name": "main", "protocol": s.Protocol}},
		"location": "MESH_INTERNAL", "resolution": "STATIC", "endpoints": endpoints,
	})
}

// change makes one change. It does not report when istiod has sent it to data planes.
func (m *made) change(_ context.Context, number int, of []int) (services.Change, error) {
	changed := lists.Map(of, func(i int) Object { return m.entry(i, number) })
	c := services.Change{Set: pace.Now()}
	m.istiod.PutObjects(changed...)
	return c, nil
}

// serve accepts connections and changes until ctx ends. If istiod ends first, it returns an error.
func (m *made) serve(ctx context.Context) error {
	end := func() { _ = m.all.Close() } // accept ends only if its listener is closed
	return role.Together(ctx, end, func(context.Context) error { return m.accept() },
		func(ctx context.Context) error {
			return services.ServeChanges(ctx, m.control, m.ready, m.ready.Changes(), m.change)
		}, m.istiod.Watch)
}

// accept accepts connections to endpoints and closes them at once, because clients need only the address of the peer.
func (m *made) accept() error {
	for {
		c, err := m.all.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case errors.Is(err, unix.ECONNABORTED): // the client has already closed it
		case err != nil:
			return fmt.Errorf("accepting connections to endpoints: %w", err)
		default:
			_ = c.Close()
		}
	}
}

// Close ends the istiod, and closes the listeners.
func (m *made) Close() (err error) {
	for _, l := range []net.Listener{m.all, m.control} {
		if l != nil {
			_ = l.Close() // fails if serve has already closed it
		}
	}
	if m.istiod != nil {
		err = m.istiod.Close()
	}
	return err
}
