package plane

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
	"tare/internal/mesh/fleet"
	envoytest "tare/test/envoy"
	"tare/test/serving"
)

// started runs a control plane until the test ends.
func started(t *testing.T, o options) fleet.Ready {
	t.Helper()
	return serving.Start(t, func(ctx context.Context, ready func(fleet.Ready) error) error { return serve(ctx, o, ready) })
}

// atPlane is a fleet's work at a control plane.
type atPlane struct {
	mtls     bool
	calls    int
	settings param.Values
	times    []string
	program  string
}

// TestFleetAtPlane: each control plane does the fleet's work, with each kind of connection.
func TestFleetAtPlane(t *testing.T) {
	for _, tt := range []atPlane{
		{false, 3, param.Values{"work": fleet.OneChange},
			[]string{"fleet_first", "fleet_median", "fleet_last", "fleet_answered"}, programTare},
		{true, 3, param.Values{"work": fleet.OneChange, "protocol": "world"}, []string{"fleet_first", "fleet_last"},
			programTare},
		{false, 0, param.Values{"work": fleet.OneChange, "slow": "10%", "refusing": "10%", "flooding": "5%"},
			[]string{"fleet_first", "fleet_last"}, programTare},
		{true, 0, param.Values{"work": fleet.Rollout}, []string{"fleet_rollout", "fleet_rollout_median"}, programTare},
		{false, 3, param.Values{"work": fleet.Idle}, nil, programTare},
		{true, 3, param.Values{"work": fleet.Churn}, []string{"fleet_churn"}, programTare},
		{false, 3, param.Values{"work": fleet.Churn, "proxies": "10", "refusing": "50%"}, []string{"fleet_churn"},
			programTare},
		{true, 3, param.Values{"work": fleet.Leave}, nil, programTare},
		{false, 0, param.Values{"work": fleet.Churn}, []string{"fleet_churn"}, programSnapshot},
		{false, 3, param.Values{"work": fleet.OneChange}, []string{"fleet_first", "fleet_last"}, programSnapshot},
		{false, 0, param.Values{"work": fleet.Rollout, "protocol": "world"}, []string{"fleet_rollout"}, programSnapshot},
	} {
		t.Run(fmt.Sprint(tt.program, tt.mtls, tt.calls, tt.settings), tt.test)
	}
}

// TestFleetAtIstiod: istiod does the fleet's work, with requests like those of Istio's own proxies.
func TestFleetAtIstiod(t *testing.T) {
	if os.Getenv("TARE_ISTIOD_TEST") == "" {
		t.Skip("make istiod-test runs it")
	}
	for _, tt := range []atPlane{
		{false, 3, param.Values{"work": fleet.OneChange}, []string{"fleet_first", "fleet_last"}, programIstiod},
		{false, 0, param.Values{"work": fleet.Rollout, "protocol": "world"}, []string{"fleet_rollout"}, programIstiod},
	} {
		t.Run(fmt.Sprint(tt.calls, tt.settings), tt.test)
	}
}

func (tt atPlane) test(t *testing.T) {
	v := param.Defaults(fleet.Settings)
	v["proxies"], v["pause"] = "23", "1ms"
	for key, value := range tt.settings {
		v[key] = value
	}
	o, err := fleet.OptionsOf(v)
	if err != nil {
		t.Fatal(err)
	}
	s := options{Shape: fleet.Shape{Proxies: 30, Services: 10, Calls: tt.calls}, mtls: tt.mtls, program: tt.program,
		debounce: 10 * time.Millisecond}
	if tt.mtls {
		s.credentials = t.TempDir()
	}
	l, err := fleet.Prepare(t.Context(), o, started(t, s))
	if err != nil {
		t.Fatal(err)
	}
	r, err := l.Run(t.Context(), role.Schedule{Begin: pace.Now(), Warmup: int64(20 * time.Millisecond),
		Duration: int64(100 * time.Millisecond)})
	if err == nil {
		err = l.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	idle, connected := false, float64(o.Proxies)
	switch tt.settings["work"] {
	case fleet.Idle:
		idle = true
	case fleet.Leave:
		idle, connected = true, 2
	}
	if (r.Done == 0) != idle || (r.Counts["pieces"] == 0) != idle || r.Counts["ends"] != 0 ||
		r.Counts["proxies"] != connected {
		t.Errorf("%d done, counts %v", r.Done, r.Counts)
	}
	for _, name := range tt.times {
		h, err := r.Histogram(name)
		if err != nil || h == nil || h.TotalCount() != r.Done || h.Min() < int64(time.Microsecond) {
			t.Errorf("%s: %v, %v", name, h, err)
		}
	}
	inOrder(t, r)
}

// TestEffect: a change of the service that real Envoys call shows in their answers.
func TestEffect(t *testing.T) {
	program := envoytest.Path(t)
	var apps []endpoint
	for _, length := range []int{1, 2} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			_, _ = w.Write(make([]byte, length))
		}))
		defer s.Close()
		apps = append(apps, endpoint{s.Listener.Addr().String(), length})
	}
	for _, mtls := range []bool{false, true} {
		t.Run(fmt.Sprint("mtls ", mtls), func(t *testing.T) {
			v := param.Defaults(fleet.Settings)
			v["proxies"], v["pause"] = "5", "1ms"
			o, err := fleet.OptionsOf(v)
			if err != nil {
				t.Fatal(err)
			}
			l, err := fleet.Prepare(t.Context(), o, started(t, options{Shape: fleet.Shape{Proxies: 5, Services: 3, Calls: 1},
				mtls: mtls, envoys: 2, envoy: program, effect: apps, credentials: t.TempDir()}))
			if err != nil {
				t.Fatal(err)
			}
			r, err := l.Run(t.Context(), role.Schedule{Begin: pace.Now(), Duration: int64(500 * time.Millisecond)})
			if err == nil {
				err = l.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			h, err := r.Histogram("fleet_effect")
			if err != nil || h == nil || h.TotalCount() < 2 || h.TotalCount()%2 != 0 || h.Min() <= 0 {
				t.Fatalf("%v, %v", h, err)
			}
			if last, err := r.Histogram("fleet_last"); err != nil || last.TotalCount()+h.TotalCount()/2 != r.Done {
				t.Errorf("%d changes, %d effects at two Envoys, %d in all: %v", last.TotalCount(), h.TotalCount(), r.Done, err)
			}
		})
	}
}

// inOrder checks that the mean times do not decrease: half of the proxies cannot have a change before the first proxy
// has it, for example.
func inOrder(t *testing.T, r *load.Result) {
	t.Helper()
	last := 0.0
	for _, name := range []string{"fleet_first", "fleet_median", "fleet_last", "fleet_answered"} {
		h, err := r.Histogram(name)
		if err != nil || h == nil {
			continue
		}
		if h.Mean() < last*0.99 { // histograms keep three digits
			t.Errorf("%s is %g ns, before what comes before it", name, h.Mean())
		}
		last = h.Mean()
	}
}

// TestConcerned: a service concerns the proxies that have it in their configuration.
func TestConcerned(t *testing.T) {
	for _, s := range []fleet.Shape{{Proxies: 23, Services: 10, Calls: 3}, {Proxies: 5, Services: 10, Calls: 9},
		{Proxies: 7, Services: 3, Calls: 20}, {Proxies: 4, Services: 6}, {Proxies: 3, Services: 1, Calls: 1}} {
		m, err := options{Shape: s}.meshOf().Compile()
		if err != nil {
			t.Fatal(err)
		}
		for service := range s.Services {
			concerned := map[int]bool{}
			for _, i := range s.Concerned(service) {
				concerned[i] = true
			}
			for i := range s.Proxies {
				r, err := m.For(fleet.NodeID(i))
				if err != nil {
					t.Fatal(err)
				}
				has := false
				for _, a := range r.Endpoints {
					has = has || a.GetClusterName() == fleet.ServiceName(service)
				}
				if has != concerned[i] {
					t.Errorf("%+v: proxy %d has service %d: %v, concerned: %v", s, i, service, has, concerned[i])
				}
			}
		}
	}
}

// TestCredentialsMounted: what somebody has mounted below the proxies' credentials is not removed with them.
func TestCredentialsMounted(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount")
	}
	j, elsewhere := &joined{dir: filepath.Join(t.TempDir(), "credentials")}, t.TempDir()
	at, kept := filepath.Join(j.dir, "mnt"), filepath.Join(elsewhere, "kept")
	if err := errors.Join(os.MkdirAll(at, 0o700), os.WriteFile(kept, nil, 0o600),
		unix.Mount(elsewhere, at, "", unix.MS_BIND, "")); err != nil {
		t.Fatal(err)
	}
	err := j.Close()
	if _, lost := os.Stat(kept); lost != nil || err == nil || !strings.Contains(err.Error(), "mounted on "+at) {
		t.Error(lost, err)
	}
	if err := errors.Join(unix.Unmount(at, 0), j.Close()); err != nil {
		t.Error(err)
	}
}
