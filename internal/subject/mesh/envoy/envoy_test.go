package envoy

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"tare/internal/role"
	"tare/internal/subject/mesh/controlplane"
	"tare/internal/subject/mesh/sidecar"
	"tare/internal/subject/mesh/sidecar/sidecartest"
	envoytest "tare/test/envoy"
	"tare/test/vm/guest"
)

// TestMain has the test's binary be the control plane where tare would be started as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "controlplane" {
		var o controlplane.Settings
		f := pflag.NewFlagSet("controlplane", pflag.ContinueOnError)
		f.StringVar(&o.File, "config", "", "")
		f.StringVar(&o.Credentials, "credentials", "", "")
		f.StringVar(&o.Listen, "listen", "", "")
		err := f.Parse(os.Args[2:])
		if err == nil {
			err = controlplane.Run(context.Background(), o, role.NewConn(os.Stdin, os.Stdout))
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	sidecartest.Main(m)
}

// TestConform: real Envoys under the real control plane.
func TestConform(t *testing.T) {
	envoy := envoytest.Path(t)
	t.Setenv("PATH", filepath.Dir(envoy)+":"+os.Getenv("PATH"))
	sidecartest.Conform(t, proxy{}, sidecartest.Options{
		Identities: true, Needs: "envoy",
		Validate: func(t *testing.T, f sidecar.Found, dir string) {
			bootstrap := filepath.Join(filepath.Dir(dir), credentialsDir, f.Component+"-"+f.App, "envoy.json")
			if out, err := exec.Command(envoy, "--mode", "validate", "-c", bootstrap).CombinedOutput(); err != nil {
				t.Errorf("%s: Envoy says of its bootstrap: %v\n%s", f.Component, err, out)
			}
			requests, rejected := 0.0, 0.0
			for name, v := range f.Own {
				switch {
				case strings.HasSuffix(name, ".downstream_rq_total"):
					requests += v
				case strings.HasSuffix(name, ".update_rejected"):
					rejected += v
				}
			}
			if requests < 1 || rejected > 0 || f.Own["control_plane.connected_state"] != 1 {
				t.Errorf("%s counted %v", f.Component, f.Own)
			}
		},
	})
}

// TestDecode: statistics that are none are an error, and names alike are told apart.
func TestDecode(t *testing.T) {
	guest.KernelFree(t)
	own, err := decode(strings.NewReader(`{"stats":[{"name":"http.in.downstream_rq_total","value":7},
		{"name":"http.admin.downstream_rq_total","value":9},{"name":"other","value":1},{"histograms":{}},
		{"name":"text.update_success","value":"many"}]}`))
	if err != nil || len(own) != 1 || own["http.in.downstream_rq_total"] != 7 {
		t.Errorf("%v, %v", own, err)
	}
	if _, err := decode(strings.NewReader(`{"stats":[`)); err == nil {
		t.Error("half an answer is taken")
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(`{"stats":[{"name":"http.in.downstream_rq_total","value":7}]}`)
	f.Fuzz(func(_ *testing.T, text string) { _, _ = decode(strings.NewReader(text)) })
}
