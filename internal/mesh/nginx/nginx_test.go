package nginx

import (
	"os/exec"
	"strings"
	"testing"

	"tare/internal/mesh/sidecar"
	"tare/test/sidecartest"
	"tare/test/vm/guest"
)

func TestMain(m *testing.M) { sidecartest.Main(m) }

// TestConform runs real nginx.
func TestConform(t *testing.T) {
	sidecartest.Conform(t, proxy{}, sidecartest.Options{
		Files: true, Blind: true, Needs: "nginx-light",
		Validate: func(t *testing.T, f sidecar.Found, dir string) {
			// The check also binds the sockets, but does not fail for those that the running proxy has.
			cmd := exec.Command("/usr/sbin/nginx", "-t", "-p", dir+"/", "-c", configFile, "-e", "stderr")
			cmd.Dir = dir
			if out, err := cmd.CombinedOutput(); !strings.Contains(string(out), "syntax is ok") ||
				strings.Contains(string(out), "[warn]") {
				t.Errorf("%s: nginx says of its configuration: %v\n%s", f.Component, err, out)
			}
			if f.Own["requests"] < 1 {
				t.Errorf("%s counted %v", f.Component, f.Own)
			}
			sidecartest.RunsAs(t, f, "nginx", "65534")
		},
	})
}

// TestStatus parses the page of nginx's documentation, and parts of it.
func TestStatus(t *testing.T) {
	guest.KernelFree(t)
	const page = "Active connections: 291 \nserver accepts handled requests\n 16630948 16630947 31070465 \n" +
		"Reading: 6 Writing: 179 Waiting: 106 \n"
	own := parseStatus(page)
	for name, want := range map[string]float64{
		"active connections": 291, "accepts": 16630948, "handled": 16630947, "requests": 31070465,
		"reading": 6, "writing": 179, "waiting": 106,
	} {
		if own[name] != want {
			t.Errorf("%s is %g, want %g", name, own[name], want)
		}
	}
	for i := range page {
		parseStatus(page[:i])
	}
}
