package kernelmesh

import (
	"fmt"
	"strconv"
	"strings"

	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/param"
)

// The keys of the settings about services. The process gets them as its services file and the sizes of its maps.
const (
	servicesKey  = "services"
	endpointsKey = "endpoints"
	protocolKey  = "protocol"
	thenKey      = "then-services"
	fitKey       = "fit"
)

var servicesSettings = []param.Setting{
	{
		Name: servicesKey, Type: param.TypeCount, Min: 1, Max: 1_000_000,
		Phrase: map[string]string{"": "with {} services", "1": "with one service"},
		Doc:    "number of services; nothing listens on endpoints of those that are not an application's",
	},
	{
		Name: endpointsKey, Type: param.TypeCount, Min: 1, Max: maxEach,
		Doc: "endpoints of each service that is not an application's; default 1",
	},
	{
		Name: protocolKey, Type: param.TypeWord, Words: []string{"tcp", "udp"},
		Doc: "protocol of services that are not an application's: `tcp` (default), or `udp` with loopback endpoints, for a " +
			"load of kind `connect`",
	},
	{
		Name: thenKey, Type: param.TypeCount, Min: 1, Max: 1_000_000,
		Doc: "services to keep after the load; memory is read before, and again when the others are gone",
	},
	{
		Name: fitKey, Type: param.TypeSwitch,
		Doc: "size the maps for the services and endpoints that exist, not for `max-services` and `max-endpoints`",
	},
}

// serviceIP returns the address of the n-th service, from 1, in 10.96.0.0/12, the usual range of Kubernetes services.
// It is meaningful only inside the trial's control group.
func serviceIP(n int) string {
	return fmt.Sprintf("10.%d.%d.%d:80", 96+n>>16, n>>8&0xff, n&0xff)
}

// fillerIP returns the n-th endpoint, from 1, of services without an application, in 198.18.0.0/15, which is reserved
// for benchmarks (RFC 2544).
func fillerIP(n int) string {
	return fmt.Sprintf("198.%d.%d.%d:%d", 18+n>>16&1, n>>8&0xff, n&0xff, 8080+n>>17)
}

// maxEach is the maximum number of endpoints of a service without an application.
const maxEach = 1000

// filler describes the services without an application.
type filler struct {
	each     int    // number of endpoints
	protocol string // empty: tcp
}

func fillerOf(o param.Values) filler {
	return filler{max(1, o.Int(endpointsKey)), o[protocolKey]}
}

// endpoint returns the n-th endpoint, counted over all services. For UDP it has a loopback address, to which a socket
// can connect on any machine, whatever its routes.
func (f filler) endpoint(n int) string {
	if f.protocol == "udp" {
		return fmt.Sprintf("127.%d.%d.%d:%d", 128+n>>16&0x3f, n>>8&0xff, n&0xff, 8080+n>>22)
	}
	return fillerIP(n)
}

// writeServicesFile writes the services file: first a service for each application, whose only endpoint is the
// application's address, and then filler services until the file has count services.
func writeServicesFile(file string, applications []string, count int, f filler) error {
	var b strings.Builder
	b.WriteString("services:\n")
	if count == 0 && len(applications) == 0 {
		b.WriteString("  []\n")
	}
	service := func(address, protocol string) {
		fmt.Fprintf(&b, "  - address: %s\n", strconv.Quote(address))
		if protocol != "" {
			fmt.Fprintf(&b, "    protocol: %s\n", protocol)
		}
		b.WriteString("    endpoints:\n")
	}
	endpoint := func(address string) { fmt.Fprintf(&b, "      - address: %s\n", strconv.Quote(address)) }
	for i, address := range applications {
		service(serviceIP(1+i), "")
		endpoint(address)
	}
	for n := len(applications) + 1; n <= count; n++ {
		service(serviceIP(n), f.protocol)
		for i := range f.each {
			endpoint(f.endpoint((n-1)*f.each + i + 1)) // from 1
		}
	}
	if err := files.Replace(file, []byte(b.String()), 0o644); err != nil {
		return fault.Wrap(err, fault.Machine, file, "make room, or set TMPDIR to a directory on another disk",
			"the subject's services cannot be written")
	}
	return nil
}
