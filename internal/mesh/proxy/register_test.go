package proxy

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/spf13/pflag"

	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/mesh/sidecar"
	"tare/internal/mesh/sidecar/driven/driventest"
	"tare/internal/mesh/sidecar/sidecartest"
)

// TestMain has the test's binary be a proxy where tare would be started as one.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "subject" && os.Args[2] == "proxy" {
		if err := asProcess(os.Args[3:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	driventest.ControlPlane()
	sidecartest.Main(m)
}

func asProcess(args []string) error {
	var o Options
	f := pflag.NewFlagSet("proxy", pflag.ContinueOnError)
	f.Bool("human", false, "")
	f.StringVar(&o.Config, "config", "", "")
	f.StringVar(&o.XDS, "xds", "", "")
	f.StringVar(&o.Node, "node", "", "")
	f.StringVar(&o.Credentials, "credentials", "", "")
	f.StringVar(&o.Stats, "stats", "", "")
	f.IntVar(&o.Workers, "workers", 1, "")
	f.IntVar(&o.Garbage, "gc-percent", 100, "")
	f.IntVar(&o.UID, "uid", 0, "")
	f.IntVar(&o.GID, "gid", 0, "")
	if err := f.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	input, _ := io.Pipe() // never written
	return Run(ctx, o, role.NewConn(input, io.Discard))
}

// TestConform: what all kinds of sidecars must do, configured by files.
func TestConform(t *testing.T) {
	sidecartest.Conform(t, guest{}, sidecartest.Options{
		Identities: true, Files: true, Needs: "tare",
		Validate: func(t *testing.T, f sidecar.Found, _ string) { validate(t, f) },
	})
}

// overXDS is the guest whose default is to be configured over xDS.
type overXDS struct{ guest }

func (overXDS) About() sidecar.About {
	a := guest{}.About()
	a.Settings = slices.Clone(a.Settings)
	for i := range a.Settings {
		if a.Settings[i].Name == settingControl {
			a.Settings[i].Default = byXDS
		}
	}
	return a
}

// TestConformXDS: the same under the real control plane, which refuses strangers; nothing that it tells is refused.
func TestConformXDS(t *testing.T) {
	sidecartest.Conform(t, overXDS{}, sidecartest.Options{
		Identities: true, Needs: "tare",
		Validate: func(t *testing.T, f sidecar.Found, _ string) {
			validate(t, f)
			secure := f.Own["control_secrets"] > 0
			if f.Own["control_refused"] > 0 || f.Own["control_streams"] != 1 ||
				secure != strings.Contains(f.Command, "--credentials=") {
				t.Errorf("%s (%s) says of its control plane: %v", f.Component, f.Command, f.Own)
			}
		},
	})
}

// validate sees that a proxy has served, and has given up its rights.
func validate(t *testing.T, f sidecar.Found) {
	t.Helper()
	if f.Own["requests"] < 1 {
		t.Errorf("%s counted %v", f.Component, f.Own)
	}
	for _, p := range f.Processes {
		status, err := os.ReadFile("/proc/" + strconv.Itoa(p.PID) + "/status")
		if err != nil || !strings.Contains(string(status), "\nUid:\t65534\t65534\t65534") {
			t.Errorf("%s still has rights: %v\n%s", f.Component, err, status)
		}
	}
}

// TestStatsBeforeListeners: a proxy whose counters cannot be asked for accepts no connection, so whoever sees one
// accepted can ask at once.
func TestStatsBeforeListeners(t *testing.T) {
	for range 20 { // in the other order a connection gets in between in one of three
		statsBeforeListeners(t)
	}
}

func statsBeforeListeners(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	place := sidecar.Place{Dir: t.TempDir(), Listen: l.Addr().String(), To: l.Addr().String()}
	l.Close()
	resources, err := resourcesOf(place)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{ // with processors enough for whoever connects meanwhile
		Config: filepath.Join(place.Dir, configFile), Stats: filepath.Join(place.Dir, "none", statsFile), Workers: 4,
	}
	if err := os.WriteFile(o.Config, resources, 0o600); err != nil {
		t.Fatal(err)
	}
	input, _ := io.Pipe() // never written
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), o, role.NewConn(input, io.Discard)) }()
	for {
		select {
		case err := <-ended:
			if !errors.Is(err, os.ErrNotExist) {
				t.Errorf("it ended with %v", err)
			}
			return
		default:
		}
		if c, err := net.Dial("tcp", place.Listen); err == nil {
			c.Close()
			t.Error("a connection was accepted before the counters could be asked for")
			<-ended
			return
		}
	}
}

// TestAnswersWhileItListens: what an application of HTTP/2 answers before it has heard all of a request reaches a
// client of HTTP/1.1, and the request goes on.
func TestAnswersWhileItListens(t *testing.T) {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	app := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		_, _ = io.Copy(w, r.Body)
	}))
	app.Config.Protocols = protocols
	app.Start()
	defer app.Close()
	x := sidecartest.NewTrial(t, map[string]string{"server": app.Listener.Addr().String()})
	x.Speaking("server", "http2")
	p := x.MustStart(sidecar.Guest{Proxy: guest{}}, param.Values{"protocol": sidecar.ProtocolHTTP2})
	c, err := net.Dial("tcp", p.Address("server"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	const size = 4 << 20
	sent := make(chan error, 1)
	heard := make(chan struct{})
	go func() {
		_, err := fmt.Fprintf(c, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\nx", size)
		if err == nil {
			<-heard // the head of the answer
			_, err = c.Write(bytes.Repeat([]byte("x"), size-1))
		}
		sent <- err
	}()
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	close(heard)
	if err != nil {
		t.Fatal(err)
	}
	n, err := io.Copy(io.Discard, resp.Body)
	if err != nil || n != size || <-sent != nil {
		t.Errorf("%d of %d bytes came back: %v", n, size, err)
	}
}
