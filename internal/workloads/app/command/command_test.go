package command

import (
	"strings"
	"testing"

	"tare/internal/experiment/kind"
	"tare/internal/lib/fault"
	"tare/internal/lib/param"
)

func TestAddressOf(t *testing.T) {
	const offered = "127.0.0.1:4000"
	for name, c := range map[string]struct {
		listens string
		want    string // an address, or what the error says
	}{
		"nowhere":                {"", "listens on no TCP port"},
		"where it was told":      {"127.0.0.1:80 127.0.0.1:4000 127.0.0.1:9000", "127.0.0.1:4000"},
		"another address":        {"127.0.0.1:80 [::1]:4000", "[::1]:4000"},
		"one port of its own":    {"127.0.0.1:80", "127.0.0.1:80"},
		"one port, both IPs":     {"127.0.0.1:80 [::1]:80", "127.0.0.1:80"},
		"several of its own":     {"127.0.0.1:80 127.0.0.1:443", "listens at 127.0.0.1:80, 127.0.0.1:443"},
		"no part of the port is": {"127.0.0.1:40000 127.0.0.1:400", "listens at 127.0.0.1:40000, 127.0.0.1:400"},
	} {
		got, err := addressOf("server", offered, strings.Fields(c.listens))
		if err != nil {
			got = err.Error()
			if fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" {
				t.Errorf("%s: %v has no hint", name, err)
			}
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestAddressInside: a program in a separate network namespace is reached at the host that it was offered, even if its
// listening sockets are not visible from here.
func TestAddressInside(t *testing.T) {
	const offered = "198.18.0.2:4000"
	for listens, want := range map[string]string{
		"":                             offered,
		"198.18.0.2:4000":              offered,
		"127.0.0.1:4000 [::1]:4000":    offered, // all interfaces, as it reads from here
		"127.0.0.1:6379 [::1]:6379":    "198.18.0.2:6379",
		"198.18.0.2:80 198.18.0.2:443": "",
	} {
		if got, err := addressOf("server", offered, strings.Fields(listens)); got != want || (err != nil) != (want == "") {
			t.Errorf("%q: %q, %v", listens, got, err)
		}
	}
}

// TestInstalled: a missing program is reported before the run, and a name that is known only in the trial is not
// guessed.
func TestInstalled(t *testing.T) {
	for line, missing := range map[string]bool{
		"cat": false, "tare-no-such-program -x": true, "{dir}/made-by-nobody": false, "sh -c 'tare-no-such-program'": false,
	} {
		if err := (guest{}).Installed(t.Context(), param.Values{"command": line}); (err != nil) != missing {
			t.Errorf("%s: %v", line, err)
		}
	}
	if err := (guest{}).Installed(t.Context(), param.Values{observe: "pid:1"}); err != nil {
		t.Errorf("what is observed is not looked for: %v", err)
	}
}

// TestReaches: an application that is any program accepts loads of every protocol, but no load without a protocol.
func TestReaches(t *testing.T) {
	own := guest{}.About()
	for protocol, want := range map[string]bool{"http": true, kind.AnyProtocol: true, "": false} {
		if got := kind.Reaches(kind.About{Protocol: protocol}, own); got != want {
			t.Errorf("a load that speaks %q reaches it: %v", protocol, got)
		}
	}
	if kind.Reaches(kind.About{Protocol: "http"}, kind.About{Protocol: "mesh"}) {
		t.Error("a load reaches an application of another protocol")
	}
}
