package pods

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	api "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"tare/internal/experiment/part"
	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/kube/agents"
	"tare/internal/scale/ledger"
)

// order returns an order for a coordinator whose parts run on the nodes a and b.
func order() Order {
	return Order{Version: "1", Life: time.Hour, File: "x.yaml", Spec: []byte(meshSpec), Dir: "run", Image: "tare:1",
		Overrides: spec.Overrides{Blocks: 3, Set: []string{"rate=1"}, Until: time.Minute}, Token: "secret",
		Run:   record.Run{ID: "one", Spec: []byte("{}"), Plan: []record.PlannedTrial{{Arm: "mesh"}}},
		Nodes: nodes("a", "b", "c"), NodeOf: map[string]string{"server": "b", "client": "a"},
		Agents: agents.Set{Namespace: "kube-system", Selector: "a=b", UID: "u", Port: 1, Image: "i", Temporary: true},
		Owned: metav1.ObjectMeta{Namespace: "ns", Name: "tare-1", Labels: map[string]string{},
			OwnerReferences: []metav1.OwnerReference{{Kind: "Job", Name: "tare-1", UID: "v"}}}}
}

// TestOrder: a coordinator receives the run, and the files with which it reaches agents. The parts receive only the
// token.
func TestOrder(t *testing.T) {
	o := order()
	dir := t.TempDir()
	o.Access = agents.Access{CAFile: filepath.Join(dir, "ca"), User: "u", PasswordFile: filepath.Join(dir, "password")}
	for path, text := range map[string]string{o.Access.CAFile: "PEM", o.Access.PasswordFile: "guess"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	secret, err := secretOf(&o)
	if err != nil {
		t.Fatal(err)
	}
	if string(secret.Data[caKey]) != "PEM" || string(secret.Data[secretKey]) != "guess" ||
		string(secret.Data[tokenKey]) != "secret" || o.Access.CAFile != "/etc/tare/agents-ca" {
		t.Errorf("%v, %+v", secret.Data, o.Access)
	}
	read, err := decodeOrder(bytes.NewReader(secret.Data[orderKey]))
	want, err2 := json.Marshal(o)
	got, err3 := json.Marshal(read)
	if err := errors.Join(err, err2, err3); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v\n%s\n%s", err, got, want)
	}
	if _, err := decodeOrder(strings.NewReader("x")); err == nil {
		t.Error("no order is read")
	}
	o.Access.CAFile = filepath.Join(dir, "none")
	if _, err := secretOf(&o); err == nil {
		t.Error("a file that is not there was read")
	}
}

// TestCoordinatorPod: a coordinator has only the rights of its account, and the files that it writes disappear with its
// pod.
func TestCoordinatorPod(t *testing.T) {
	o := order()
	pod := coordinatorPod(&o)
	s, c := &pod.Spec, &pod.Spec.Containers[0]
	if s.ServiceAccountName != "tare-1" || !*s.AutomountServiceAccountToken || s.HostNetwork || s.HostPID || s.HostIPC ||
		!*s.SecurityContext.RunAsNonRoot || *s.SecurityContext.RunAsUser == 0 || !*c.SecurityContext.ReadOnlyRootFilesystem ||
		*c.SecurityContext.AllowPrivilegeEscalation || c.SecurityContext.Privileged != nil ||
		len(c.SecurityContext.Capabilities.Add) > 0 || c.SecurityContext.Capabilities.Drop[0] != "ALL" {
		t.Errorf("%+v", s)
	}
	for _, v := range s.Volumes {
		if v.EmptyDir == nil && (v.Secret == nil || v.Secret.SecretName != "tare-1") {
			t.Errorf("it has the volume %+v", v)
		}
	}
	if pod.Name != "tare-1" || pod.OwnerReferences[0].UID != "v" || s.RestartPolicy != api.RestartPolicyOnFailure {
		t.Errorf("%+v", pod)
	}
	apart := s.Affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution[0].Preference.MatchFields
	if len(apart) != 2 || apart[1].Operator != api.NodeSelectorOpNotIn || apart[1].Values[0] != "b" {
		t.Errorf("%+v", apart)
	}
}

// TestStuck: some states of a coordinator's pod are worth waiting for, and others are final.
func TestStuck(t *testing.T) {
	state := func(phase api.PodPhase, s api.ContainerStatus) *api.Pod {
		p := &api.Pod{Status: api.PodStatus{Phase: phase}}
		s.Name = coordinator
		p.Status.ContainerStatuses = []api.ContainerStatus{s}
		return p
	}
	killed := &api.ContainerStateTerminated{ExitCode: 137, Reason: "OOMKilled"}
	waits := func(why string) api.ContainerState {
		return api.ContainerState{Waiting: &api.ContainerStateWaiting{Reason: why, Message: "it says"}}
	}
	evicted := state(api.PodFailed, api.ContainerStatus{})
	evicted.Status.Reason, evicted.Status.Message = "Evicted", "low on memory"
	ready := state(api.PodRunning, api.ContainerStatus{})
	ready.Status.Conditions = []api.PodCondition{{Type: api.PodReady, Status: api.ConditionTrue}}
	injected := state(api.PodRunning, api.ContainerStatus{RestartCount: 3, State: waits("CrashLoopBackOff"),
		LastTerminationState: api.ContainerState{Terminated: killed}})
	injected.Status.ContainerStatuses = slices.Insert(injected.Status.ContainerStatuses, 0,
		api.ContainerStatus{Name: "added"})
	for _, c := range []struct {
		name     string
		pod      *api.Pod
		why      string
		patience time.Duration
	}{
		{"ready", ready, "", 0},
		{"evicted", evicted, "Evicted: low on memory", 0},
		{"done", state(api.PodSucceeded, api.ContainerStatus{}), "it has ended", 0},
		{"made", state(api.PodPending, api.ContainerStatus{State: waits("ContainerCreating")}), "it is being made",
			startWithin},
		{"no image", state(api.PodPending, api.ContainerStatus{State: waits("ErrImagePull")}), "ErrImagePull: it says",
			stuckAfter},
		{"started again", state(api.PodRunning, api.ContainerStatus{RestartCount: 1, State: waits("CrashLoopBackOff"),
			LastTerminationState: api.ContainerState{Terminated: killed}}), "", 0},
		{"again and again", state(api.PodRunning, api.ContainerStatus{RestartCount: 3, State: waits("CrashLoopBackOff"),
			LastTerminationState: api.ContainerState{Terminated: killed}}),
			"it has ended 3 times, the last time with code 137: OOMKilled", 0},
		{"beside another container", injected, "it has ended 3 times", 0},
	} {
		why, patience := stuck(c.pod)
		if c.why == "" && why != "" || !strings.Contains(why, c.why) || patience != c.patience {
			t.Errorf("%s: %q, %v; want %q, %v", c.name, why, patience, c.why, c.patience)
		}
	}
}

// away is an API server that is away for some requests: it answers each with the next status, and then with 404 or an
// empty list.
type away struct {
	statuses []int
	deleted  int
}

func (a *away) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	status := http.StatusNotFound
	switch {
	case len(a.statuses) > 0:
		status, a.statuses = a.statuses[0], a.statuses[1:]
	case r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/pods"):
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"PodList","apiVersion":"v1","items":[]}`)
		return
	case r.Method == http.MethodDelete:
		a.deleted++
	}
	w.WriteHeader(status)
}

func (a *away) cluster(t *testing.T) *agents.Cluster {
	t.Helper()
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	c, err := agents.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// TestTearDown: what belongs to a trial is removed although the API server is away when the trial ends. A refusal is
// final.
func TestTearDown(t *testing.T) {
	for status, deleted := range map[int]int{http.StatusServiceUnavailable: 5, http.StatusForbidden: 2} {
		x, s := underWay(t, record.Direct), &away{statuses: []int{status}}
		x.o.Cluster = s.cluster(t)
		if err := x.tearDown(t.Context()); (err != nil) != (status == http.StatusForbidden) || s.deleted != deleted {
			t.Errorf("after status %d: %v, and %d of 3 or 6 requests were accepted", status, err, s.deleted)
		}
	}
}

// TestTearDownInterrupted: what belongs to a trial is removed although the run was interrupted.
func TestTearDownInterrupted(t *testing.T) {
	x, s := underWay(t, record.Direct), &away{statuses: []int{http.StatusServiceUnavailable}}
	x.o.Cluster = s.cluster(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := x.tearDown(ctx); err != nil || s.deleted != 5 {
		t.Errorf("%v, and %d of 6 requests were accepted", err, s.deleted)
	}
}

// TestWaits: the patience with a pod that is stuck counts from when it was first seen stuck, and not from the start of
// the trial, because its image may have been pulled until then.
func TestWaits(t *testing.T) {
	w, begin := waits{}, time.Now()
	for _, c := range []struct {
		after, patience time.Duration
		over            bool
	}{
		{0, stuckAfter, false}, // not scheduled
		{10 * time.Second, startWithin, false},
		{70 * time.Second, startWithin, false},
		{71 * time.Second, stuckAfter, false}, // ErrImagePull, of a registry that was away for a moment
		{90 * time.Second, stuckAfter, false},
		{92 * time.Second, stuckAfter, true},
		{93 * time.Second, 0, true},
	} {
		if got := w.over("server", c.patience, begin.Add(c.after)); got != c.over {
			t.Errorf("after %v, with a patience of %v: %v", c.after, c.patience, got)
		}
	}
}

// TestNotYetMade: a run whose Job was just made may have no pod yet. It must not count as lost, because it would be
// removed.
func TestNotYetMade(t *testing.T) {
	c := new(away).cluster(t)
	for ago, want := range map[time.Duration]bool{0: false, time.Minute: true} {
		r := &Run{Job: agents.Job{Namespace: "ns", Name: "tare-1"}, Made: time.Now().Add(-ago)}
		if lost, err := r.Gone(t.Context(), c); err != nil || (lost != nil) != want {
			t.Errorf("made %v ago: lost %v, %v", ago, lost, err)
		}
	}
}

// TestClockSet: a node whose clock is set between the reading of a load's clocks and that of the agents' would run the
// load at another time than the window.
func TestClockSet(t *testing.T) {
	const offset = time.Hour // of the node's clock
	met := time.Now()
	p := &playing{node: "b", met: met, took: time.Second, clock: part.Clock{Wall: met.Add(offset).UnixNano()}}
	w := &agents.Window{Start: met.Add(time.Minute), End: met.Add(70 * time.Second),
		Offsets: map[string]time.Duration{"b": offset + 3*time.Second}}
	if jump := p.stepped(w.Start, offset); jump != 0 {
		t.Errorf("a clock that was not set jumped by %v", jump)
	}
	x := underWay(t, record.Direct)
	x.loads = map[string]*playing{"client": p}
	if err := x.begin(w); err == nil || !strings.Contains(err.Error(), "the clock of the node b, on which client runs, "+
		"was set by 3s while the trial was set up") || x.record.Validity.Cause != ledger.Neighbour {
		t.Errorf("%v, cause %q", err, x.record.Validity.Cause)
	}
}
