package clusterservices

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"math"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"time"

	"golang.org/x/sync/errgroup"

	"tare/internal/lib/fault"
	"tare/internal/lib/limit"
	"tare/internal/lib/pace"
	"tare/internal/mesh/services"
)

const (
	atOnce       = 16 // concurrent requests to the API server
	servicePort  = 80
	portName     = "tcp" // makes a mesh forward bytes without interpreting them: Istio takes the protocol from the name
	instance     = "app.kubernetes.io/instance"
	trial        = "tare/trial"            // label: the trial of a pod (package pods)
	madeLabel    = "tare/cluster-services" // label of the objects made here
	serviceLabel = "kubernetes.io/service-name"
)

// made holds the Services that the application has created, and the listeners of their endpoints.
type made struct {
	api     *api
	address netip.Addr // of this pod
	owner   object     // metadata of every object: labels, and this pod as owner, whose end removes the objects
	ready   services.Ready
	control net.Listener // for clients that ask for changes
	// now holds the listener of each Service's endpoint, and before that of its previous endpoint: until a change has
	// reached every node, connections may still go there.
	now, before []net.Listener
}

// serve creates the given number of Services (count) and calls ready. Until ctx ends, it then applies the changes that
// clients request at the given address (listen).
func serve(ctx context.Context, a *api, count int, listen string, ready func(services.Ready) error) (err error) {
	m := &made{api: a, now: make([]net.Listener, count), before: make([]net.Listener, count)}
	defer m.close()
	if m.address, err = a.address(ctx); err != nil {
		return err
	}
	if m.control, err = limit.TCP(ctx, listen); err != nil {
		return err
	}
	if err := m.describe(ctx); err != nil {
		return err
	}
	if err := m.removeOld(ctx); err != nil {
		return err
	}
	port := uint16(m.control.Addr().(*net.TCPAddr).Port)
	m.ready = services.Ready{Control: netip.AddrPortFrom(m.address, port).String(), Services: count, Endpoints: 1,
		Addresses: make([]netip.AddrPort, count), Key: rand.Text()}
	g, all := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range count {
		g.Go(func() error { return m.make(all, i) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := ready(m.ready); err != nil {
		return err
	}
	return services.ServeChanges(ctx, m.control, m.ready, math.MaxInt32, m.change)
}

// close ends all listeners. The cluster removes the objects, with the pod.
func (m *made) close() {
	for _, l := range append(append(m.now, m.before...), m.control) {
		if l != nil {
			_ = l.Close() // ServeChanges may have closed m.control already
		}
	}
}

// address returns the address of this pod from which it reaches the API server.
func (a *api) address(ctx context.Context) (netip.Addr, error) {
	c, err := new(net.Dialer).DialContext(ctx, "udp", a.server) // sends nothing
	if err != nil {
		return netip.Addr{}, fmt.Errorf("looking for the pod's address: %w", err)
	}
	defer c.Close()
	at := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap()
	if !at.Is4() {
		return at, fault.New(fault.Machine, at.String(), "run it in a cluster with IPv4",
			"this application does not support IPv6")
	}
	return at, nil
}

// describe reads this pod's labels and identity.
func (m *made) describe(ctx context.Context) error {
	var pod struct {
		Metadata struct {
			UID    string
			Labels map[string]string
		}
	}
	if err := m.api.call(ctx, http.MethodGet, pods, "/"+m.api.pod, nil, &pod); err != nil {
		return err
	}
	labels := object{madeLabel: "true"}
	for key, value := range pod.Metadata.Labels {
		labels[key] = value
	}
	m.owner = object{"labels": labels, "ownerReferences": []object{
		{"apiVersion": "v1", "kind": "Pod", "name": m.api.pod, "uid": pod.Metadata.UID}}}
	return nil
}

// removeOld removes the objects that this application has made in earlier trials of the run. The cluster also removes
// them with their pods, but takes minutes for thousands of objects, and would use CPU time for it in the window.
func (m *made) removeOld(ctx context.Context) error {
	labels := m.owner["labels"].(object)
	selector := "?labelSelector=" + url.QueryEscape(fmt.Sprintf("%s,%s=%s,%s!=%s", madeLabel, instance, labels[instance],
		trial, labels[trial]))
	for _, path := range []string{endpointSlices, servicesPath} {
		if err := m.api.call(ctx, http.MethodDelete, path, selector, nil, nil); err != nil {
			return err
		}
	}
	return nil
}

// meta returns the metadata of the objects of a Service.
func (m *made) meta(i int) object {
	meta := object{"name": m.name(i)}
	maps.Copy(meta, m.owner)
	return meta
}

func (m *made) name(i int) string { return m.api.pod + "-s" + strconv.Itoa(i) }

// make makes a Service and its endpoint.
func (m *made) make(ctx context.Context, i int) error {
	var service struct{ Spec struct{ ClusterIP string } }
	port := object{"name": portName, "port": servicePort, "protocol": "TCP"}
	err := m.api.call(ctx, http.MethodPost, servicesPath, "", object{"apiVersion": "v1", "kind": "Service",
		"metadata": m.meta(i), "spec": object{"ports": []object{port}}}, &service)
	if err != nil {
		return err
	}
	at, err := netip.ParseAddr(service.Spec.ClusterIP)
	if err != nil || !at.Is4() {
		return fault.New(fault.Machine, m.name(i), "run it in a cluster whose Services have IPv4 addresses",
			"the Service has the address %q", service.Spec.ClusterIP)
	}
	m.ready.Addresses[i] = netip.AddrPortFrom(at, servicePort)
	ports, err := m.endpoint(ctx, i, 1)
	if err != nil {
		return err
	}
	meta := m.meta(i)
	labels := object{serviceLabel: m.name(i), "endpointslice.kubernetes.io/managed-by": "tare"}
	maps.Copy(labels, meta["labels"].(object))
	meta["labels"] = labels
	return m.api.call(ctx, http.MethodPost, endpointSlices, "", object{"apiVersion": "discovery.k8s.io/v1",
		"kind": "EndpointSlice", "metadata": meta, "addressType": "IPv4", "ports": ports,
		"endpoints": []object{{"addresses": []netip.Addr{m.address}, "conditions": object{"ready": true}}}}, nil)
}

// endpoint starts the endpoint that a Service has after a change, and returns the ports for its EndpointSlice. It keeps
// the previous endpoint, and closes the one before that.
func (m *made) endpoint(ctx context.Context, service, change int) ([]object, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp4", netip.AddrPortFrom(m.address, 0).String())
	if err != nil {
		return nil, fmt.Errorf("listening at an endpoint of Service %d: %w", service, err)
	}
	if before := m.before[service]; before != nil {
		_ = before.Close()
	}
	m.before[service], m.now[service] = m.now[service], l
	go answer(l, services.Answer(service, change)) // ends with the listener
	return []object{{"name": portName, "port": l.Addr().(*net.TCPAddr).Port, "protocol": "TCP"}}, nil
}

// answer answers every connection to a listener, until the listener is closed.
func answer(l net.Listener, with []byte) {
	for {
		c, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return
		case err != nil: // the client has closed the connection, or too many are open: that client gets no answer
			time.Sleep(time.Millisecond)
			continue
		}
		_, _ = c.Write(with) // fits the socket's buffer; the client may have gone
		_ = c.Close()
	}
}

// change moves the given Services (of) to new endpoints, which answer with the number of the change. It returns once
// the API server has accepted every new endpoint, or has refused one.
func (m *made) change(ctx context.Context, number int, of []int) (c services.Change, err error) {
	moved := make([][]object, len(of))
	for k, i := range of {
		if moved[k], err = m.endpoint(ctx, i, number); err != nil {
			return c, err
		}
	}
	c.Set = pace.Now()
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for k, i := range of {
		g.Go(func() error {
			return m.api.call(ctx, http.MethodPatch, endpointSlices, "/"+m.name(i), object{"ports": moved[k]}, nil)
		})
	}
	err = g.Wait()
	c.Accepted = pace.Now() - c.Set
	return c, err
}
