package kernelmesh

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"tare/internal/lib/document"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/text"
)

// maxFileBytes is the maximum size of a services file in bytes. It is enough for about 500,000 endpoints.
const maxFileBytes = 32 << 20

// example is the hint for a file that has the wrong structure.
const example = "services: [{address: 10.96.0.1:80, protocol: tcp, endpoints: [{address: 127.0.0.1:8080, weight: 3}]}]"

// ReadFile reads the services of a file; see Parse.
func ReadFile(path string) ([]Service, error) {
	f, err := files.Open(path)
	if err != nil {
		hint := "name a services file with --services"
		if errors.Is(err, files.ErrNotRegular) {
			hint = "name a file, not a directory, pipe or device"
		}
		return nil, fault.Wrap(errors.Unwrap(err), fault.Usage, path, hint, "the services file cannot be read")
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1)) // the file may grow while it is read
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, path, "", "the services file cannot be read")
	}
	return Parse(path, data)
}

// Parse parses services in YAML; name is the file's name, for errors.
//
//	services:
//	  - address: 10.96.0.1:80      # or "[fd00::1]:80"
//	    protocol: tcp              # tcp (default) or udp
//	    endpoints:
//	      - {address: 127.0.0.1:8080, weight: 3}
//	      - {address: 127.0.0.1:8081}          # weight 1
//
// Parse is strict: anything unknown is a *fault.Error of code Usage, with its position.
func Parse(name string, data []byte) ([]Service, error) {
	p := reader{document.File(name)}
	if len(data) > maxFileBytes {
		return nil, fault.New(fault.Usage, name, "split the services over several data planes",
			"the services file has more than %d bytes", maxFileBytes)
	}
	switch documents, err := p.File.Parse(data, document.Limit{Hint: example, Bytes: maxFileBytes}); {
	case err != nil:
		return nil, err
	case len(documents) == 0:
		return nil, fault.New(fault.Usage, name, example, "the file is empty")
	case len(documents) > 1:
		return nil, p.Fail(documents[1], "remove the line '---' and what follows",
			"there is more than one document in the file")
	default:
		return p.services(documents[0])
	}
}

// reader converts the nodes of a YAML document to services.
type reader struct{ document.File }

func (p reader) services(root document.Node) ([]Service, error) {
	top, err := p.mapping(root, "the file", "services")
	if err != nil {
		return nil, err
	}
	if top["services"] == nil {
		return nil, p.Fail(root, example, "services is missing")
	}
	list, err := p.sequence(top["services"], "services")
	if err != nil {
		return nil, err
	}
	type identity struct {
		address  netip.AddrPort
		protocol Protocol
	}
	seen := make(map[identity]document.Node, len(list))
	services := make([]Service, 0, len(list))
	for _, node := range list {
		s, err := p.service(node)
		if err != nil {
			return nil, err
		}
		id := identity{canonical(s.Address), s.Protocol}
		if first, twice := seen[id]; twice {
			return nil, p.Fail(node, "put all of its endpoints in one place", "service %s is given twice, first at %s", s,
				p.Place(first))
		}
		seen[id] = node
		services = append(services, s)
	}
	return services, nil
}

func (p reader) service(node document.Node) (Service, error) {
	s := Service{Protocol: TCP}
	keys, err := p.mapping(node, "a service", "address", "protocol", "endpoints")
	if err != nil {
		return s, err
	}
	if s.Address, err = p.address(node, keys["address"], "the service"); err != nil {
		return s, err
	}
	if at := keys["protocol"]; at != nil {
		raw, err := p.Scalar(at, "protocol")
		if err != nil {
			return s, err
		}
		switch raw {
		case "tcp":
		case "udp":
			s.Protocol = UDP
		default:
			return s, p.Fail(at, text.Suggest(raw, []string{"tcp", "udp"}), "there is no protocol %q", text.Clip(raw))
		}
	}
	if keys["endpoints"] == nil {
		return s, p.Fail(node, "write 'endpoints: []' for a service that refuses connections",
			"service %s has no endpoints", s)
	}
	list, err := p.sequence(keys["endpoints"], "endpoints")
	if err != nil {
		return s, err
	}
	seen := make(map[netip.AddrPort]document.Node, len(list))
	for _, node := range list {
		e, err := p.endpoint(s, node)
		if err != nil {
			return s, err
		}
		if first, twice := seen[canonical(e.Address)]; twice {
			return s, p.Fail(node, "give it once, with the sum of the weights",
				"endpoint %s of service %s is given twice, first at %s", e.Address, s, p.Place(first))
		}
		seen[canonical(e.Address)] = node
		s.Endpoints = append(s.Endpoints, e)
	}
	if err := s.checkEndpoints(); err != nil {
		return s, p.Fail(keys["endpoints"], "", "%s", err)
	}
	return s, nil
}

func (p reader) endpoint(s Service, node document.Node) (Endpoint, error) {
	e := Endpoint{Weight: 1}
	keys, err := p.mapping(node, "an endpoint", "address", "weight")
	if err != nil {
		return e, err
	}
	if e.Address, err = p.address(node, keys["address"], "an endpoint"); err != nil {
		return e, err
	}
	if at := keys["weight"]; at != nil {
		raw, err := p.Scalar(at, "weight")
		if err != nil {
			return e, err
		}
		weight, err := strconv.ParseInt(raw, 10, 64)
		if err != nil || weight < 0 || weight > MaxWeight {
			return e, p.Fail(at, fmt.Sprintf("a weight is a whole number from 0 to %d", MaxWeight),
				"weight %q of endpoint %s is out of range", text.Clip(raw), e.Address)
		}
		e.Weight = uint32(weight)
	}
	if err := s.checkEndpoint(e); err != nil {
		return e, p.Fail(node, "", "%s", err)
	}
	return e, nil
}

func (p reader) address(parent, at document.Node, of string) (netip.AddrPort, error) {
	var none netip.AddrPort
	if at == nil {
		return none, p.Fail(parent, "an address is IP:port, as 10.96.0.1:80 or \"[fd00::1]:80\"",
			"the address of %s is missing", of)
	}
	raw, err := p.Scalar(at, "address")
	if err != nil {
		return none, err
	}
	a, err := netip.ParseAddrPort(raw)
	if err != nil {
		// Only a port out of range gets a separate message.
		if colon := strings.LastIndexByte(raw, ':'); colon > 0 {
			if port, e := strconv.Atoi(raw[colon+1:]); e == nil && (port < 0 || port > math.MaxUint16) {
				return none, p.Fail(at, "a port is a number from 1 to 65535", "port %d of %q is out of range", port, text.Clip(raw))
			}
		}
		return none, p.Fail(at, "an address is IP:port, as 10.96.0.1:80 or \"[fd00::1]:80\"; names are not looked up",
			"%q is not an address", text.Clip(raw))
	}
	if err := checkAddress(a); err != nil {
		return none, p.Fail(at, "", "%s", err)
	}
	return a, nil
}

// mapping returns the values of a mapping by key; all keys must be known.
func (p reader) mapping(node document.Node, of string, known ...string) (map[string]document.Node, error) {
	if !document.IsMapping(node) {
		return nil, p.Fail(node, example, "%s must be a mapping with %s", of, strings.Join(known, ", "))
	}
	values := make(map[string]document.Node, len(known))
	err := p.Each(node, of, func(key string, at, value document.Node) error {
		if !slices.Contains(known, key) {
			return p.Unknown(at, key, of, known)
		}
		values[key] = value
		return nil
	})
	return values, err
}

func (p reader) sequence(node document.Node, of string) ([]document.Node, error) {
	n, ok := node.(*ast.SequenceNode)
	if !ok {
		return nil, p.Fail(node, example, "%s must be a list", of)
	}
	return n.Values, nil
}
