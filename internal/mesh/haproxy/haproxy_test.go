package haproxy

import (
	"fmt"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"tare/internal/lib/param"
	"tare/internal/mesh/sidecar"
	"tare/test/sidecartest"
	"tare/test/vm/guest"
)

func TestMain(m *testing.M) { sidecartest.Main(m) }

// TestConform runs real HAProxy.
func TestConform(t *testing.T) {
	sidecartest.Conform(t, proxy{}, sidecartest.Options{
		Identities: true, Files: true, Needs: "haproxy",
		Validate: func(t *testing.T, f sidecar.Found, dir string) {
			cmd := exec.Command("haproxy", "-c", "-f", configFile)
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); err != nil || strings.Contains(string(out), "WARNING") {
				t.Errorf("%s: haproxy says of its configuration: %v\n%s", f.Component, err, out)
			}
			if f.Own["CumReq"] < 1 {
				t.Errorf("%s counted %v", f.Component, f.Own)
			}
			sidecartest.RunsAs(t, f, "haproxy", "65534")
		},
	})
}

// TestKeeps: connections to the next proxy are kept open while many clients have connections.
func TestKeeps(t *testing.T) {
	g := sidecar.Guest{Proxy: proxy{}}
	set := param.Values{"connections": "50"}
	if err := g.Installed(t.Context(), sidecartest.Part(g, set).Options); err != nil {
		t.Skipf("needs haproxy: %v", err)
	}
	app := sidecartest.NewApp(t, "server")
	x := sidecartest.NewTrial(t, map[string]string{"server": app.Address})
	p := x.MustStart(g, set)
	for range 40 {
		c, err := net.Dial("tcp", p.Address("server"))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	const requests = 50
	before := p.Found(sidecar.Server, "server").Own["CumSslConns"]
	for i := range requests {
		sidecartest.Get(t, http.DefaultClient, p.Address("server"), fmt.Sprintf("/%d", i))
	}
	if n := p.Found(sidecar.Server, "server").Own["CumSslConns"] - before; n > 5 {
		t.Errorf("%d requests took %g handshakes", requests, n)
	}
}

// TestURI: HAProxy searches a certificate for the complete name.
func TestURI(t *testing.T) {
	guest.KernelFree(t)
	for uri, want := range map[string]string{
		"spiffe://a":             "860A7370696666653A2F2F61",
		strings.Repeat("a", 200): "8681C8" + strings.Repeat("61", 200),
		strings.Repeat("a", 300): "8682012C" + strings.Repeat("61", 300),
	} {
		if got := uriInDER(uri); got != want {
			t.Errorf("%s: %s, want %s", uri, got, want)
		}
	}
}
