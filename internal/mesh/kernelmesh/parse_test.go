package kernelmesh

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"tare/internal/lib/fault"
	"tare/internal/lib/files"
)

func TestParse(t *testing.T) {
	services, err := Parse("s.yaml", []byte(`
# the shop
services:
  - address: 10.96.0.1:80
    endpoints:
      - {address: 127.0.0.1:8080, weight: 3}
      - {address: 127.0.0.1:8081}
  - address: "[fd00::1]:53"
    protocol: udp
    endpoints:
      - address: "[::1]:5353"
        weight: 0
      - address: '[::1]:5354'
  - {address: 10.96.0.2:80, protocol: tcp, endpoints: []}
  - {address: 10.96.0.1:80, protocol: udp, endpoints: [{address: "[::ffff:127.0.0.1]:80"}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort
	want := []Service{
		{at("10.96.0.1:80"), TCP, []Endpoint{{at("127.0.0.1:8080"), 3}, {at("127.0.0.1:8081"), 1}}},
		{at("[fd00::1]:53"), UDP, []Endpoint{{at("[::1]:5353"), 0}, {at("[::1]:5354"), 1}}},
		{at("10.96.0.2:80"), TCP, nil},
		{at("10.96.0.1:80"), UDP, []Endpoint{{at("[::ffff:127.0.0.1]:80"), 1}}},
	}
	if !reflect.DeepEqual(services, want) {
		t.Errorf("got  %v\nwant %v", services, want)
	}
	again, err := Parse("s.yaml", format(services))
	if err != nil || !reflect.DeepEqual(again, want) {
		t.Errorf("written and read again: %v, %v", again, err)
	}
	if s, err := Parse("s.yaml", []byte("services: []")); err != nil || len(s) != 0 {
		t.Errorf("no services: %v, %v", s, err)
	}
}

func TestParseRefuses(t *testing.T) {
	const ok = "services:\n  - address: 10.96.0.1:80\n    endpoints:\n      - {address: 127.0.0.1:8080, weight: 3}\n"
	tests := []struct{ name, yaml, where, what, hint string }{
		{"empty", "", "s.yaml", "the file is empty", "services: ["},
		{"comment only", "# nothing\n", "s.yaml", "the file is empty", "services: ["},
		{"not YAML", "services:\n  - {address: [", "s.yaml:2", "this is not YAML", ""},
		{"tab", "services:\n\t- address: 1", "s.yaml:2", "this is not YAML", ""},
		{"scalar", "hello", "s.yaml:1", "the file must be a mapping with services", "services: ["},
		{"two documents", ok + "---\n" + ok, "s.yaml:", "more than one document", "---"},
		{"top misspelt", "servces: []", "s.yaml:1", `there is no key "servces" in the file; did you mean "services"?`,
			"services"},
		{"top unknown", "services: []\nversion: 2", "s.yaml:2", `there is no key "version" in the file`,
			"the keys of the file are services"},
		{"services null", "services:\n", "s.yaml:1", "services must be a list", "services: ["},
		{"services a mapping", "services: {a: b}", "s.yaml:1", "services must be a list", "services: ["},
		{"service a scalar", "services:\n  - 10.96.0.1:80", "s.yaml:2",
			"a service must be a mapping with address, protocol, endpoints", ""},
		{"service key misspelt", strings.Replace(ok, "endpoints", "endpoint", 1), "s.yaml:3",
			`there is no key "endpoint" in a service; did you mean "endpoints"?`, "address, protocol, endpoints"},
		{"service without address", "services:\n  - endpoints: []", "s.yaml:2", "the address of the service is missing",
			"10.96.0.1:80"},
		{"service without endpoints", "services:\n  - address: 10.96.0.1:80", "s.yaml:2",
			"service tcp 10.96.0.1:80 has no endpoints", "endpoints: []"},
		{"key twice", "services: []\nservices: []", "s.yaml:2", "already defined", ""},
		{"address a name", "services:\n  - {address: shop:80, endpoints: []}", "s.yaml:2", `"shop:80" is not an address`,
			"names are not looked up"},
		{"address without port", "services:\n  - {address: 10.96.0.1, endpoints: []}", "s.yaml:2",
			`"10.96.0.1" is not an address`, "IP:port"},
		{"address a list", "services:\n  - {address: [1], endpoints: []}", "s.yaml:2",
			`"address" must be a single value, not a list`, ""},
		{"alias", "services:\n  - &a {address: 10.96.0.1:80, endpoints: []}\n  - *a", "s.yaml:2",
			"a service must be a mapping", ""},
		{"port too high", "services:\n  - {address: 10.96.0.1:65536, endpoints: []}", "s.yaml:2",
			`port 65536 of "10.96.0.1:65536" is out of range`, "1 to 65535"},
		{"port 0", "services:\n  - {address: 10.96.0.1:0, endpoints: []}", "s.yaml:2",
			"port 0 of 10.96.0.1:0 is out of range", ""},
		{"unspecified", "services:\n  - {address: 0.0.0.0:80, endpoints: []}", "s.yaml:2", "is the unspecified address", ""},
		{"multicast", "services:\n  - {address: 224.0.0.1:80, endpoints: []}", "s.yaml:2", "is a multicast address", ""},
		{"zone", "services:\n  - {address: \"[fe80::1%eth0]:80\", endpoints: []}", "s.yaml:2", "has a zone", ""},
		{"protocol misspelt", "services:\n  - {address: 10.96.0.1:80, protocol: tpc, endpoints: []}", "s.yaml:2",
			`there is no protocol "tpc"`, "tcp"},
		{"protocol upper case", "services:\n  - {address: 10.96.0.1:80, protocol: UDP, endpoints: []}", "s.yaml:2",
			`there is no protocol "UDP"`, "did you mean udp?"},
		{"service twice", ok + "  - {address: \"[::ffff:10.96.0.1]:80\", endpoints: []}", "s.yaml:5",
			"is given twice, first at s.yaml:2:5", "in one place"},
		{"endpoint a scalar", strings.Replace(ok, "{address: 127.0.0.1:8080, weight: 3}", "127.0.0.1:8080", 1), "s.yaml:4",
			"an endpoint must be a mapping", ""},
		{"endpoint without address", strings.Replace(ok, "address: 127.0.0.1:8080, ", "", 1), "s.yaml:4",
			"the address of an endpoint is missing", ""},
		{"endpoint key misspelt", strings.Replace(ok, "weight", "wieght", 1), "s.yaml:4",
			`there is no key "wieght" in an endpoint; did you mean "weight"?`, "address, weight"},
		{"endpoint twice", ok + "      - address: 127.0.0.1:8080", "s.yaml:5",
			"endpoint 127.0.0.1:8080 of service tcp 10.96.0.1:80 is given twice, first at s.yaml:4:9", "sum of the weights"},
		{"endpoint of another family", strings.Replace(ok, "127.0.0.1:8080", `"[::1]:8080"`, 1), "s.yaml:4",
			"of another address family", ""},
		{"weight negative", strings.Replace(ok, "weight: 3", "weight: -1", 1), "s.yaml:4",
			`weight "-1" of endpoint 127.0.0.1:8080 is out of range`, "0 to 1000000"},
		{"weight too high", strings.Replace(ok, "weight: 3", "weight: 1000001", 1), "s.yaml:4", "is out of range",
			"0 to 1000000"},
		{"weight a fraction", strings.Replace(ok, "weight: 3", "weight: 0.5", 1), "s.yaml:4", `weight "0.5"`, "whole number"},
		{"weight a word", strings.Replace(ok, "weight: 3", "weight: many", 1), "s.yaml:4", `weight "many"`, "whole number"},
		{"weights all 0", strings.Replace(ok, "weight: 3", "weight: 0", 1), "s.yaml:4",
			"the weights of service tcp 10.96.0.1:80 are all 0", ""},
		{"deep", "services:\n" + strings.Repeat("[", 1<<20), "s.yaml:2", "nested more than 100 deep", ""},
		{"deep list", "services:\n" + strings.Repeat("- ", 1<<19), "s.yaml:2", "nested more than 100 deep", ""},
		{"key a list", "services:\n  - {[a]: b}", "s.yaml:2", "", ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			services, err := Parse("s.yaml", []byte(test.yaml))
			var f *fault.Error
			if !errors.As(err, &f) {
				t.Fatalf("got %v, %v; want a fault", services, err)
			}
			if f.Code != fault.Usage || !strings.HasPrefix(f.Where, test.where) || !strings.Contains(f.What, test.what) ||
				!strings.Contains(f.Hint, test.hint) {
				t.Errorf("got  %d, %s: %s (%s)\nwant 2, %s: %s (%s)", f.Code, f.Where, f.What, f.Hint, test.where, test.what,
					test.hint)
			}
		})
	}
}

func TestReadFileMissing(t *testing.T) {
	_, err := ReadFile(t.TempDir() + "/none.yaml")
	if fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
		t.Errorf("got %v", err)
	}
}

func TestReadFileWithoutEnd(t *testing.T) {
	long := filepath.Join(t.TempDir(), "long.yaml")
	if err := os.WriteFile(long, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(long, maxFileBytes+1); err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{long: "has more than", "/dev/zero": files.ErrNotRegular.Error(),
		t.TempDir(): files.ErrNotRegular.Error()} {
		if _, err := ReadFile(file); fault.CodeOf(err) != fault.Usage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", file, err)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("services:\n  - address: 10.96.0.1:80\n    endpoints:\n      - {address: 127.0.0.1:8080, weight: 3}\n"))
	f.Add([]byte("services: [{address: \"[fd00::1]:80\", protocol: udp, endpoints: [{address: \"[::1]:1\"}]}]"))
	f.Add([]byte("services: &a [*a]\n---\n<<: *a"))
	f.Add([]byte("---\n---\n"))
	f.Add([]byte("? [a]\n: !!binary b\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		services, err := Parse("f", data)
		if err != nil {
			if fault.CodeOf(err) != fault.Usage {
				t.Fatalf("code %d: %v", fault.CodeOf(err), err)
			}
			return
		}
		again, err := Parse("f", format(services))
		if err != nil || fmt.Sprint(again) != fmt.Sprint(services) {
			t.Fatalf("%v was written and read again as %v, %v", services, again, err)
		}
		for _, s := range services {
			if err := s.check(); err != nil {
				t.Fatalf("parsed what Apply would refuse: %v", err)
			}
		}
	})
}

func BenchmarkParse(b *testing.B) {
	var services []Service
	for i := range 1000 {
		s := Service{Address: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80), Protocol: TCP}
		for j := range 20 {
			s.Endpoints = append(s.Endpoints, Endpoint{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(j), byte(i >> 8),
				byte(i)}), 8080), uint32(j + 1)})
		}
		services = append(services, s)
	}
	data := format(services)
	b.SetBytes(int64(len(data)))
	for b.Loop() {
		if _, err := Parse("b", data); err != nil {
			b.Fatal(err)
		}
	}
}

// format writes services in the form that Parse reads.
func format(services []Service) []byte {
	if len(services) == 0 {
		return []byte("services: []\n")
	}
	var b strings.Builder
	b.WriteString("services:\n")
	for _, s := range services {
		fmt.Fprintf(&b, "  - address: %q\n    protocol: %s\n    endpoints:", s.Address, s.Protocol)
		if len(s.Endpoints) == 0 {
			b.WriteString(" []")
		}
		b.WriteString("\n")
		for _, e := range s.Endpoints {
			fmt.Fprintf(&b, "      - {address: %q, weight: %d}\n", e.Address, e.Weight)
		}
	}
	return []byte(b.String())
}
