package command

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/process"
	"tare/internal/experiment/process/part"
	"tare/internal/lib/fault"
)

// started is an application that the trial starts.
type started struct {
	part.Part
	command process.Command
	served  bool   // whether a load connects to it
	address string // its address once it is ready; empty if that is in another network namespace
}

func newStarted(t kind.Trial, name string, p *kind.Part) (*started, error) {
	c, err := process.OptionsOf(p.Options)
	if err != nil {
		return nil, err
	}
	s := &started{Part: part.Part{Trial: t, Name: name}, command: c}
	for _, l := range t.Setup().Loads {
		s.served = s.served || l.To == name
	}
	return s, nil
}

// Serve starts the program, waits until it is ready, and finds its address.
func (s *started) Serve(ctx context.Context) (kind.App, error) {
	place, err := s.Place()
	if err != nil {
		return kind.App{}, err
	}
	host, err := s.Trial.Host(s.Name)
	if err != nil {
		return kind.App{}, err
	}
	offered := net.JoinHostPort(host, strconv.Itoa(place.Port))
	place.Address = offered
	c, err := s.command.At(place)
	if err != nil {
		return kind.App{}, err
	}
	if s.served && c.Ready == (process.Ready{}) {
		// A program without conditions counts as ready after half a second, but it might not listen yet at that time.
		if c.Ready.Port = c.Address; c.Address == "" {
			c.Ready.Listen, c.Ready.Offered = true, offered
		}
	}
	if ctx.Err() != nil {
		return kind.App{}, context.Cause(ctx)
	}
	running, err := s.Start(ctx, c, s.Trial.Fail)
	if err != nil {
		return kind.App{}, err
	}
	if err := running.Ready(ctx); err != nil {
		return kind.App{}, err
	}
	app := kind.App{Address: c.Address}
	if app.Address == "" && s.served {
		if app.Address, err = addressOf(c.Name(), offered, running.Listening()); err != nil {
			return app, err
		}
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsLoopback() && s.served {
		s.address = app.Address
	}
	app.Ready, err = json.Marshal(struct {
		Address string `json:"address"`
	}{app.Address})
	return app, err
}

// After warns if a process outside the trial serves the application's address.
func (s *started) After(context.Context) error {
	if s.address != "" {
		s.ServedElsewhere(s.address)
	}
	return nil
}

// addressOf returns the address of a program, given the addresses at which it listens. That is the address that it was
// offered, or otherwise its only one. A program that was offered an address outside this machine's loopback is in a
// separate network namespace. Its address is then at the offered host, whatever its sockets show. If it has its own
// kernel, its sockets are not visible at all.
func addressOf(name, offered string, listens []string) (string, error) {
	host, port, _ := net.SplitHostPort(offered)
	ip := net.ParseIP(host)
	apart := ip != nil && !ip.IsLoopback()
	if apart {
		listens = slices.Clone(listens)
		for i, l := range listens {
			if h, p, err := net.SplitHostPort(l); err == nil && net.ParseIP(h).IsLoopback() {
				listens[i] = net.JoinHostPort(host, p)
			}
		}
	}
	at := func(address string) bool { _, p, _ := net.SplitHostPort(address); return p == port }
	if i := slices.IndexFunc(listens, at); i >= 0 {
		return listens[i], nil
	}
	switch len(ports(listens)) {
	case 0:
		if apart {
			return offered, nil
		}
		return "", fault.New(fault.Usage, name, `say where it is reached: address: "127.0.0.1:PORT"; and when it is ready, `+
			"such as ready-port: PORT", "listens on no TCP port, and a load goes to it")
	case 1:
		return listens[0], nil
	}
	return "", fault.New(fault.Usage, name, fmt.Sprintf("say which of them the loads go to: address: %q", listens[0]),
		"listens at %s", strings.Join(listens, ", "))
}

// ports returns the distinct ports of addresses.
func ports(addresses []string) []string {
	var all []string
	for _, a := range addresses {
		if _, p, err := net.SplitHostPort(a); err == nil && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}
