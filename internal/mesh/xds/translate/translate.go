// Package translate translates resources of the xDS protocol (Envoy's, version 3) into the mesh's own types, as far as
// a data plane at connection level can honour them. A field that it cannot honour causes a warning, with resource and
// field, if connections still go to the right place, and otherwise a refusal. Nothing is dropped silently (docs/xds.md
// has the tables). The package only computes, and its input may be hostile.
package translate

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"tare/internal/lib/text"
)

// Refusal describes why a resource is refused.
type Refusal struct {
	Kind  string // cluster, endpoints, listener or routes
	Name  string // of the resource; empty if it cannot be decoded
	Field string // a path such as filter_chains[1].filters[0]; empty: the whole resource
	What  string
}

func (r *Refusal) Error() string {
	s := r.Kind
	if r.Name != "" {
		name, rest := r.Name, ""
		if len(name) > maxName {
			name, rest = strings.ToValidUTF8(name[:maxName], "?"), "..."
		}
		s += " " + strconv.Quote(name) + rest
	}
	if r.Field != "" {
		s += ": " + text.Line(r.Field)
	}
	return s + ": " + text.Line(r.What)
}

// maxName bounds the name of a resource in a refusal, in bytes.
const maxName = 256

// Warning describes a part of a resource that is not honoured, although connections go where they should.
type Warning Refusal

func (w *Warning) String() string { return (*Refusal)(w).Error() }

// reader is a position in a resource that is being parsed, and collects the resource's warnings and refusals. Only the
// first refusal counts: parsing may continue after it, because its result is not used.
type reader struct {
	field    string // path of the position in the resource
	index    int    // index of the current element, if field is a list; negative: the whole field
	warnings *[]*Warning
	first    *error // the first refusal
}

// newReader returns a reader at the beginning of a resource.
func newReader() reader { return reader{index: -1, warnings: new([]*Warning), first: new(error)} }

// apart returns a reader at the same position that collects refusals separately, so that they do not refuse the
// resource.
func (r reader) apart() reader {
	r.first = new(error)
	return r
}

// in returns a reader for a field.
func (r reader) in(field string) reader {
	r.field, r.index = r.path(field), -1
	return r
}

// item returns a reader for an element of the current list. The element's path is built only for a warning or refusal.
func (r reader) item(i int) reader {
	r.index = i
	return r
}

// path returns the path of a field, or that of the current position if field is empty.
func (r reader) path(field string) string {
	at := r.field
	if r.index >= 0 {
		at += "[" + strconv.Itoa(r.index) + "]"
	}
	return join(at, field)
}

// note adds a warning about a field.
func (r reader) note(field, format string, args ...any) {
	if r.failed() {
		return
	}
	*r.warnings = append(*r.warnings, &Warning{Field: r.path(field), What: fmt.Sprintf(format, args...)})
}

// noteIf adds a warning about a field if a condition holds.
func (r reader) noteIf(is bool, field, format string, args ...any) {
	if is {
		r.note(field, format, args...)
	}
}

// refuse refuses a field, and with it the resource.
func (r reader) refuse(field, format string, args ...any) {
	if !r.failed() {
		r.check(field, refuse(format, args...))
	}
}

// require refuses a field unless a condition holds.
func (r reader) require(is bool, field, format string, args ...any) {
	if !is {
		r.refuse(field, format, args...)
	}
}

// check refuses a field because of err, unless err is nil.
func (r reader) check(field string, err error) {
	if err != nil && !r.failed() {
		*r.first = in(r.path(field), err)
	}
}

// only refuses a field if its message m has fields set other than the given ones; see the function of the same name.
func (r reader) only(field string, m proto.Message, fields ...protoreflect.Name) {
	if !r.failed() {
		r.check(field, only(m, fields...))
	}
}

// failed reports whether there was a refusal.
func (r reader) failed() bool { return *r.first != nil }

// read decodes a resource into m, calls take to parse it, and returns the warnings. Its error is a *Refusal.
func read(kind string, b []byte, m proto.Message, name func() string, take func(reader)) ([]*Warning, error) {
	if err := decode(b, m); err != nil {
		return nil, Refused(kind, Name(b), err)
	}
	r := newReader()
	if take(r); r.failed() {
		return nil, Refused(kind, name(), *r.first)
	}
	return warnings(kind, name(), *r.warnings), nil
}

// warnings returns the warnings of a resource without duplicates.
func warnings(kind, name string, list []*Warning) (out []*Warning) {
	seen := make(map[Warning]bool, len(list))
	for _, w := range list {
		w.Kind, w.Name = kind, name
		if !seen[*w] {
			seen[*w] = true
			out = append(out, w)
		}
	}
	return out
}

func join(a, b string) string {
	if a == "" || b == "" || b[0] == '[' {
		return a + b
	}
	return a + "." + b
}

// Name returns the name of a resource, which is field 1 of all types. It works even if the rest of the resource cannot
// be decoded.
func Name(b []byte) (name string) {
	_ = Fields(b, func(f Field) error {
		if f.Is(1, protowire.BytesType) {
			name = strings.ToValidUTF8(string(f.Bytes), "?")
		}
		return nil
	}) // after an error, the name found before it counts
	return name
}

// wrong is a problem and the path of the field that has it. Each level of parsing prepends its field.
type wrong struct{ field, what string }

func (w *wrong) Error() string { return w.field + ": " + w.what }

func refuse(format string, args ...any) error { return &wrong{what: fmt.Sprintf(format, args...)} }

// in prepends a field to the path of a problem.
func in(field string, err error) error {
	var w *wrong
	if err == nil || !errors.As(err, &w) {
		return err
	}
	w.field = join(field, w.field)
	return w
}

// item prepends the index of a list element to the path of a problem.
func item(i int, err error) error {
	if err == nil {
		return nil
	}
	return in("["+strconv.Itoa(i)+"]", err)
}

// Refused returns the *Refusal of a resource for a problem.
func Refused(kind, name string, err error) error {
	r := &Refusal{Kind: kind, Name: name, What: err.Error()}
	var w *wrong
	if errors.As(err, &w) {
		r.Field, r.What = w.field, w.what
	}
	return r
}

// decode decodes a message, and refuses an invalid one.
func decode(b []byte, m proto.Message) error {
	if err := proto.Unmarshal(b, m); err != nil {
		return refuse("this is no %s", m.ProtoReflect().Descriptor().FullName())
	}
	return nil
}

// typed decodes an Any that must contain a message of m's type. It refuses a TypedStruct that represents the type.
func typed(a *anypb.Any, m proto.Message) error {
	if kind := held(a); kind != string(m.ProtoReflect().Descriptor().FullName()) {
		return refuse("%s is not supported", clip(kind))
	}
	return decode(a.GetValue(), m)
}

// held returns the name of the message type in an Any.
func held(a *anypb.Any) string { return last(a.GetTypeUrl()) }

func last(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }

// typeOf returns the name of the message type in an Any. For a TypedStruct it returns the name of the type that the
// struct represents.
func typeOf(a *anypb.Any) string {
	kind := held(a)
	if kind == "udpa.type.v1.TypedStruct" || kind == "xds.type.v3.TypedStruct" {
		return last(Name(a.GetValue())) // field 1 is the type's URL
	}
	return kind
}

// only returns an error if a message has a field set that is not one of the given fields, or that the generated decoder
// does not know.
func only(m proto.Message, fields ...protoreflect.Name) error {
	var bad error
	r := m.ProtoReflect()
	r.Range(func(f protoreflect.FieldDescriptor, _ protoreflect.Value) bool {
		if !slices.Contains(fields, f.Name()) {
			bad = in(string(f.Name()), refuse("is not supported"))
		}
		return bad == nil
	})
	if unknown := r.GetUnknown(); bad == nil && len(unknown) > 0 {
		number, _, _ := protowire.ConsumeTag(unknown)
		bad = refuse("field number %d is not known", number)
	}
	return bad
}

// place returns a socket address as an IP address and a port.
func place(a *corev3.Address) (netip.AddrPort, corev3.SocketAddress_Protocol, error) {
	host, port, protocol, err := hostPort(a)
	if err != nil {
		return netip.AddrPort{}, 0, err
	}
	ip, err := parseIP(host)
	if err != nil {
		return netip.AddrPort{}, 0, in("socket_address", in("address", err))
	}
	return netip.AddrPortFrom(ip, port), protocol, nil
}

// hostPort returns the host and port of a socket address. The host may be a name.
func hostPort(a *corev3.Address) (host string, port uint16, protocol corev3.SocketAddress_Protocol, err error) {
	if err := only(a, "socket_address"); err != nil {
		return "", 0, 0, err
	}
	s := a.GetSocketAddress()
	if s == nil {
		return "", 0, 0, in("socket_address", refuse("is missing"))
	}
	if err := only(s, "protocol", "address", "port_value"); err != nil {
		return "", 0, 0, in("socket_address", err)
	}
	if p := s.GetProtocol(); p != corev3.SocketAddress_TCP && p != corev3.SocketAddress_UDP {
		return "", 0, 0, in("socket_address", in("protocol", refuse("%d is not supported", p)))
	}
	if p := s.GetPortValue(); p == 0 || p > 65535 {
		return "", 0, 0, in("socket_address", in("port_value", refuse("must be 1 to 65535, not %d", p)))
	}
	return s.GetAddress(), uint16(s.GetPortValue()), s.GetProtocol(), nil
}

// parseIP parses an IP address into the form that all stores use: without zone, and IPv4 not mapped into IPv6.
func parseIP(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil || a.Zone() != "" {
		return netip.Addr{}, refuse("%q is no IP address", clip(s))
	}
	return a.Unmap(), nil
}

// cidr parses a range of addresses.
func cidr(r *corev3.CidrRange) (netip.Prefix, error) {
	if err := only(r, "address_prefix", "prefix_len"); err != nil {
		return netip.Prefix{}, err
	}
	a, err := netip.ParseAddr(r.GetAddressPrefix())
	if err != nil || a.Zone() != "" {
		return netip.Prefix{}, in("address_prefix", refuse("%q is no IP address", clip(r.GetAddressPrefix())))
	}
	n := int64(r.GetPrefixLen().GetValue()) // 0 if not given, as in Envoy
	if a.Is4In6() && n >= 96 {
		a, n = a.Unmap(), n-96
	}
	if n > int64(a.BitLen()) {
		return netip.Prefix{}, in("prefix_len", refuse("must be at most %d, not %d", a.BitLen(), n))
	}
	return netip.PrefixFrom(a, int(n)).Masked(), nil
}

// cidr returns the range in a field, as a list with one element.
func (r reader) cidr(field string, one *corev3.CidrRange) []netip.Prefix {
	p, err := cidr(one)
	r.check(field, err)
	return []netip.Prefix{p}
}

// cidrs returns the ranges in a field.
func (r reader) cidrs(field string, list []*corev3.CidrRange) (out []netip.Prefix) {
	for i, one := range list {
		p, err := cidr(one)
		r.check(field, item(i, err))
		out = append(out, p)
	}
	return out
}

// port returns the port in a field, which must be 1 to 65535.
func (r reader) port(field string, p uint32) uint16 {
	if p == 0 || p > math.MaxUint16 {
		r.refuse(field, "must be 1 to 65535, not %d", p)
	}
	return uint16(p)
}

// duration returns a duration, which must not be negative. If there is no duration, it returns the value of missing.
func (r reader) duration(field string, d *durationpb.Duration, missing time.Duration) time.Duration {
	if d == nil {
		return missing
	}
	r.require(d.CheckValid() == nil && d.GetSeconds() >= 0 && d.GetNanos() >= 0 &&
		d.GetSeconds() < int64(time.Duration(1<<63-1)/time.Second),
		field, "%ds %dns is no duration that can be waited", d.GetSeconds(), d.GetNanos())
	return d.AsDuration()
}

// clip shortens text from a control plane for use in a message.
func clip(s string) string {
	return text.ClipLine(s, 100)
}
