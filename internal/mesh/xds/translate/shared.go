package translate

import (
	"net/netip"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
)

// What follows is for data planes that understand more than connections, and have a translation of their own: the same
// words, so that a refusal by one reads like a refusal by the other.

// Refuse is a problem of the message at hand. In and Item put the path to it before it, and Refused makes a Refusal of
// it.
func Refuse(format string, args ...any) error { return refuse(format, args...) }

// In says of what field a problem is; nil stays nil.
func In(field string, err error) error { return in(field, err) }

// Item says of which element of a list a problem is; nil stays nil.
func Item(i int, err error) error { return item(i, err) }

// Refused is the *Refusal of a resource for a problem.
func Refused(kind, name string, err error) error { return refusal(kind, name, err) }

// Only refuses a message in which a field is set that is not among those named, or that this version does not know.
func Only(m proto.Message, fields ...protoreflect.Name) error { return only(m, fields...) }

// Decode reads a message, and refuses what is not one.
func Decode(b []byte, m proto.Message) error { return decode(b, m) }

// TypeOf is the name of the message in an Any; empty where there is none.
func TypeOf(a *anypb.Any) string { return held(a) }

// Unsupported is the problem that an extension of such a name and type is not supported.
func Unsupported(name, kind string) error { return unsupported(name, kind) }

// Address reads a socket address whose host is an IP address.
func Address(a *corev3.Address) (netip.AddrPort, corev3.SocketAddress_Protocol, error) {
	return place(a)
}

// CIDR reads a range of addresses.
func CIDR(r *corev3.CidrRange) (netip.Prefix, error) { return cidr(r) }

// Duration reads a duration that is not negative; none is 0.
func Duration(d *durationpb.Duration) (time.Duration, error) { return duration(d) }

// Clip shortens what others chose, so that it does not fill a message.
func Clip(s string) string { return clip(s) }
