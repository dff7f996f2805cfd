package kernelmesh

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"golang.org/x/sys/unix"

	"tare/internal/lib/document"
	"tare/internal/lib/fault"
	"tare/internal/lib/text"
)

// maxFileBytes bounds a services file: enough for some 500,000 endpoints.
const maxFileBytes = 32 << 20

// example is the hint for a file of the wrong shape.
const example = "services: [{address: 10.96.0.1:80, protocol: tcp, endpoints: [{address: 127.0.0.1:8080, weight: 3}]}]"

// ReadFile reads the services of a file; see Parse.
func ReadFile(path string) ([]Service, error) {
	const hint, what = "name a services file with --services", "the services file cannot be read"
	// A pipe could keep its reader for ever, and with it every signal to read the services again.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, path, hint, what)
	}
	defer f.Close()
	if info, err := f.Stat(); err != nil || !info.Mode().IsRegular() {
		return nil, fault.Wrap(errors.Join(err, errors.New("it is not a file")), fault.Usage, path, "name a file, not a directory, pipe or device", what)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFileBytes+1)) // some files have no end
	if err != nil {
		return nil, fault.Wrap(err, fault.Usage, path, hint, what)
	}
	return Parse(path, data)
}

// Parse reads services from YAML; name is the file's, for errors.
//
//	services:
//	  - address: 10.96.0.1:80      # or "[fd00::1]:80"
//	    protocol: tcp              # tcp (default) or udp
//	    endpoints:
//	      - {address: 127.0.0.1:8080, weight: 3}
//	      - {address: 127.0.0.1:8081}          # weight 1
//
// It is strict: whatever it does not know is a *fault.Error of code Usage that names file and line.
func Parse(name string, data []byte) ([]Service, error) {
	p := reader{name: name}
	if len(data) > maxFileBytes {
		return nil, fault.New(fault.Usage, name, "split the services over several data planes",
			"the services file has more than %d bytes", maxFileBytes)
	}
	if line, err := document.Guard(data); err != nil {
		return nil, fault.New(fault.Usage, fmt.Sprintf("%s:%d", name, line), example, "%s", err)
	}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		var at yaml.Error
		if errors.As(err, &at) && at.GetToken() != nil && at.GetToken().Position != nil {
			return nil, fault.New(fault.Usage, fmt.Sprintf("%s:%d", name, at.GetToken().Position.Line), "",
				"this is not YAML: %s", at.GetMessage())
		}
		return nil, fault.New(fault.Usage, name, "", "this is not YAML: %s", err)
	}
	var body ast.Node // of the one document that is not empty
	for _, d := range file.Docs {
		switch {
		case d.Body == nil:
		case body == nil:
			body = d.Body
		default:
			return nil, p.errorf(d.Body, "remove the line '---' and what follows", "there is more than one document in the file")
		}
	}
	if body == nil {
		return nil, fault.New(fault.Usage, name, example, "the file is empty")
	}
	return p.services(body)
}

// reader turns syntax nodes into services.
type reader struct{ name string }

func (p reader) errorf(at ast.Node, hint, format string, args ...any) error {
	where := p.name
	if line := lineOf(at); line > 0 {
		where = fmt.Sprintf("%s:%d", p.name, line)
	}
	return fault.New(fault.Usage, where, hint, format, args...)
}

func lineOf(at ast.Node) int {
	switch n := at.(type) {
	case *ast.MappingNode: // its own token is that of the first colon or brace
		if n.Start == nil && len(n.Values) > 0 {
			return lineOf(n.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return lineOf(n.Key)
	}
	if at == nil || at.GetToken() == nil || at.GetToken().Position == nil {
		return 0
	}
	return at.GetToken().Position.Line
}

func (p reader) services(root ast.Node) ([]Service, error) {
	top, err := p.mapping(root, "the file", "services")
	if err != nil {
		return nil, err
	}
	if top["services"] == nil {
		return nil, p.errorf(root, example, "services is missing")
	}
	list, err := p.sequence(top["services"], "services")
	if err != nil {
		return nil, err
	}
	type identity struct {
		address  netip.AddrPort
		protocol Protocol
	}
	seen := make(map[identity]int, len(list))
	services := make([]Service, 0, len(list))
	for _, node := range list {
		s, err := p.service(node)
		if err != nil {
			return nil, err
		}
		id := identity{canonical(s.Address), s.Protocol}
		if first, twice := seen[id]; twice {
			return nil, p.errorf(node, "put all of its endpoints in one place", "service %s is given twice, first in line %d", s, first)
		}
		seen[id] = lineOf(node)
		services = append(services, s)
	}
	return services, nil
}

func (p reader) service(node ast.Node) (Service, error) {
	s := Service{Protocol: TCP}
	keys, err := p.mapping(node, "a service", "address", "protocol", "endpoints")
	if err != nil {
		return s, err
	}
	if s.Address, err = p.address(node, keys["address"], "the service"); err != nil {
		return s, err
	}
	if at := keys["protocol"]; at != nil {
		raw, err := p.scalar(at, "protocol")
		if err != nil {
			return s, err
		}
		switch raw {
		case "tcp":
		case "udp":
			s.Protocol = UDP
		default:
			return s, p.errorf(at, text.Suggest(raw, []string{"tcp", "udp"}), "there is no protocol %s", quote(raw))
		}
	}
	if keys["endpoints"] == nil {
		return s, p.errorf(node, "write 'endpoints: []' for a service that refuses connections", "service %s has no endpoints", s)
	}
	list, err := p.sequence(keys["endpoints"], "endpoints")
	if err != nil {
		return s, err
	}
	seen := make(map[netip.AddrPort]int, len(list))
	for _, node := range list {
		e, err := p.endpoint(s, node)
		if err != nil {
			return s, err
		}
		if first, twice := seen[canonical(e.Address)]; twice {
			return s, p.errorf(node, "give it once, with the sum of the weights",
				"endpoint %s of service %s is given twice, first in line %d", e.Address, s, first)
		}
		seen[canonical(e.Address)] = lineOf(node)
		s.Endpoints = append(s.Endpoints, e)
	}
	if err := s.checkEndpoints(); err != nil {
		return s, p.errorf(keys["endpoints"], "", "%s", err)
	}
	return s, nil
}

func (p reader) endpoint(s Service, node ast.Node) (Endpoint, error) {
	e := Endpoint{Weight: 1}
	keys, err := p.mapping(node, "an endpoint", "address", "weight")
	if err != nil {
		return e, err
	}
	if e.Address, err = p.address(node, keys["address"], "an endpoint"); err != nil {
		return e, err
	}
	if at := keys["weight"]; at != nil {
		text, err := p.scalar(at, "weight")
		if err != nil {
			return e, err
		}
		weight, err := strconv.ParseInt(text, 10, 64)
		if err != nil || weight < 0 || weight > MaxWeight {
			return e, p.errorf(at, fmt.Sprintf("a weight is a whole number from 0 to %d", MaxWeight),
				"weight %s of endpoint %s is out of range", quote(text), e.Address)
		}
		e.Weight = uint32(weight)
	}
	if err := s.checkEndpoint(e); err != nil {
		return e, p.errorf(node, "", "%s", err)
	}
	return e, nil
}

func (p reader) address(parent, at ast.Node, of string) (netip.AddrPort, error) {
	var none netip.AddrPort
	if at == nil {
		return none, p.errorf(parent, "an address is IP:port, as 10.96.0.1:80 or \"[fd00::1]:80\"", "the address of %s is missing", of)
	}
	text, err := p.scalar(at, "address")
	if err != nil {
		return none, err
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		// A port out of range is the one part of an address whose fault deserves its own words.
		if colon := strings.LastIndexByte(text, ':'); colon > 0 {
			if port, e := strconv.Atoi(text[colon+1:]); e == nil && (port < 0 || port > math.MaxUint16) {
				return none, p.errorf(at, "a port is a number from 1 to 65535", "port %d of %s is out of range", port, quote(text))
			}
		}
		return none, p.errorf(at, "an address is IP:port, as 10.96.0.1:80 or \"[fd00::1]:80\"; names are not looked up",
			"%s is not an address", quote(text))
	}
	if err := checkAddress(a); err != nil {
		return none, p.errorf(at, "", "%s", err)
	}
	return a, nil
}

// mapping is the values of a mapping by key; all keys must be known, and given once.
func (p reader) mapping(node ast.Node, of string, known ...string) (map[string]ast.Node, error) {
	var entries []*ast.MappingValueNode
	switch n := node.(type) {
	case *ast.MappingNode:
		entries = n.Values
	case *ast.MappingValueNode:
		entries = []*ast.MappingValueNode{n}
	default:
		return nil, p.errorf(node, example, "%s must be a mapping with %s", of, strings.Join(known, ", "))
	}
	values := make(map[string]ast.Node, len(entries))
	for _, entry := range entries {
		key, ok := entry.Key.(*ast.StringNode)
		if !ok {
			return nil, p.errorf(entry, "there is "+strings.Join(known, ", "), "this key of %s is not a plain name", of)
		}
		found := false
		for _, k := range known {
			found = found || k == key.Value
		}
		if !found {
			return nil, p.errorf(entry, text.Suggest(key.Value, known), "%s has no key %s", of, quote(key.Value))
		}
		if values[key.Value] != nil {
			return nil, p.errorf(entry, "", "key %s is given twice", quote(key.Value))
		}
		if entry.Value == nil {
			return nil, p.errorf(entry, "", "%s is empty", key.Value)
		}
		values[key.Value] = entry.Value
	}
	return values, nil
}

func (p reader) sequence(node ast.Node, of string) ([]ast.Node, error) {
	n, ok := node.(*ast.SequenceNode)
	if !ok {
		return nil, p.errorf(node, example, "%s must be a list", of)
	}
	return n.Values, nil
}

// scalar is the text of a plain or quoted scalar, as written.
func (p reader) scalar(node ast.Node, of string) (string, error) {
	switch n := node.(type) {
	case *ast.StringNode:
		return n.Value, nil
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return n.GetToken().Value, nil
	}
	return "", p.errorf(node, "", "%s must be a plain value", of)
}

// quote puts text into quotes, cut to what fits on a line.
func quote(text string) string {
	if len(text) > 60 {
		text = text[:60] + "..."
	}
	return strconv.Quote(text)
}
