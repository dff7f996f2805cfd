package plugin

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	api "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"

	"tare/internal/kube/agents"
	"tare/internal/kube/pods"
	"tare/internal/lib/fault"
	"tare/test/speed"
)

// apiServer simulates an API server without a garbage collector. The keys of its objects are RESOURCE/NAMESPACE/NAME.
type apiServer map[string]*unstructured.Unstructured

// collected simulates an API server with a garbage collector.
type collected struct{ apiServer }

func (s collected) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.apiServer.ServeHTTP(w, r)
	if r.Method == http.MethodDelete {
		s.collect()
	}
}

var paths = regexp.MustCompile(`^/apis?(?:/[\w.]+)?/v1(?:/namespaces/([^/]+))?/(\w+)(?:/([^/]+))?$`)

var kinds = map[string][2]string{"jobs": {"batch/v1", "Job"}, "daemonsets": {"apps/v1", "DaemonSet"},
	"pods": {"v1", "Pod"}, "secrets": {"v1", "Secret"}, "services": {"v1", "Service"},
	"serviceaccounts": {"v1", "ServiceAccount"}, "roles": {"rbac.authorization.k8s.io/v1", "Role"},
	"rolebindings": {"rbac.authorization.k8s.io/v1", "RoleBinding"}}

// add adds an object, whose UID is its key, and whose owner's key is owner, if not empty.
func (s apiServer) add(key, owner string, labels, annotations map[string]string) *unstructured.Unstructured {
	parts := strings.Split(key, "/")
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": kinds[parts[0]][0], "kind": kinds[parts[0]][1]}}
	o.SetNamespace(parts[1])
	o.SetName(parts[2])
	o.SetUID(types.UID(key))
	o.SetLabels(labels)
	o.SetAnnotations(annotations)
	if owner != "" {
		of := strings.Split(owner, "/")
		o.SetOwnerReferences([]metav1.OwnerReference{{Kind: kinds[of[0]][1], Name: of[2], UID: types.UID(owner)}})
	}
	s[key] = o
	return o
}

// addOurs adds an object as kubectl-tare creates it.
func (s apiServer) addOurs(key, owner, name string, annotations map[string]string) *unstructured.Unstructured {
	more := map[string]string{"tare/lifetime-seconds": "60"}
	maps.Copy(more, annotations)
	instance := key[strings.LastIndex(key, "/")+1:]
	return s.add(key, owner, map[string]string{"app.kubernetes.io/name": name, "app.kubernetes.io/instance": instance,
		"app.kubernetes.io/managed-by": "kubectl-tare"}, more)
}

// addRun adds the Job of a run, which says which Job owns its agents.
func (s apiServer) addRun(key, agents string) {
	s.addOurs(key, "", "tare-run", map[string]string{"tare/agents": agents})
}

// addAgents adds temporary agents that serve a run, in the namespace kube-system.
func (s apiServer) addAgents(name, run string) {
	s.addOurs("jobs/kube-system/"+name, "", "tare-agent-temporary", map[string]string{"tare/run": run})
	s.addOurs("daemonsets/kube-system/"+name, "jobs/kube-system/"+name, "tare-agent-temporary", nil)
}

// collect removes objects that are being deleted in the foreground, and then those whose owner does not exist.
func (s apiServer) collect() {
	maps.DeleteFunc(s, func(_ string, o *unstructured.Unstructured) bool { return o.GetDeletionTimestamp() != nil })
	for again := true; again; {
		again = false
		for key, o := range s {
			for _, r := range o.GetOwnerReferences() {
				if s[string(r.UID)] == nil {
					delete(s, key)
					again = true
				}
			}
		}
	}
}

func answer(w http.ResponseWriter, code int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(body)
}

func refuse(w http.ResponseWriter, code int32, reason metav1.StatusReason) {
	answer(w, int(code), metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Code: code,
		Status: metav1.StatusFailure, Reason: reason})
}

func (s apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	path := paths.FindStringSubmatch(r.URL.Path)
	if path == nil {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	namespace, resource, name := path[1], path[2], path[3]
	if name == "" {
		selector, err := labels.Parse(r.URL.Query().Get("labelSelector"))
		items := []any{}
		for key, o := range s {
			if strings.HasPrefix(key, resource+"/"+namespace) && selector.Matches(labels.Set(o.GetLabels())) {
				items = append(items, o.Object)
			}
		}
		if err != nil {
			refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		answer(w, http.StatusOK, map[string]any{"apiVersion": kinds[resource][0], "kind": kinds[resource][1] + "List",
			"items": items})
		return
	}
	key := resource + "/" + namespace + "/" + name
	o := s[key]
	if o == nil {
		refuse(w, http.StatusNotFound, metav1.StatusReasonNotFound)
		return
	}
	if r.Method == http.MethodDelete {
		var how metav1.DeleteOptions
		body, err := io.ReadAll(r.Body)
		if err == nil {
			_, _, err = scheme.Codecs.UniversalDeserializer().Decode(body, nil, &how)
		}
		if err != nil {
			refuse(w, http.StatusBadRequest, metav1.StatusReasonBadRequest)
			return
		}
		if p := how.Preconditions; p != nil && p.UID != nil && *p.UID != o.GetUID() {
			refuse(w, http.StatusConflict, metav1.StatusReasonConflict)
			return
		}
		if p := how.PropagationPolicy; p != nil && *p == metav1.DeletePropagationForeground {
			o.SetDeletionTimestamp(new(metav1.Now()))
		} else {
			delete(s, key)
		}
	}
	answer(w, http.StatusOK, o.Object)
}

// has fails the test unless the cluster has the given objects and no others.
func (s apiServer) has(t *testing.T, want ...string) {
	t.Helper()
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(s)); !slices.Equal(got, want) {
		t.Errorf("the cluster has %q, want %q", got, want)
	}
}

// TestForgedRun: anybody who may create Jobs can make one look like a run's. Removing it removes only the objects that
// it owns, and none that its fields or its name refer to.
func TestForgedRun(t *testing.T) {
	for _, command := range []string{"attach -n shop", "clean --all"} {
		for name, c := range map[string]struct{ run, agents string }{
			"any DaemonSet":        {"tare-zzzzzz", "kube-system/kube-proxy"},
			"agents of weigh":      {"tare-zzzzzz", "kube-system/tare-agent-aaaaa"},
			"agents of a run":      {"tare-zzzzzz", "kube-system/tare-agent-bbbbb"},
			"no agents":            {"tare-zzzzzz", ""},
			"name of other things": {"credentials", "kube-system/credentials"},
		} {
			s := apiServer{}
			s.add("daemonsets/kube-system/kube-proxy", "", nil, nil)
			s.add("secrets/shop/credentials", "", nil, nil)
			s.addRun("jobs/shop/"+c.run, c.agents)
			if command == "clean --all" { // attach would follow the pod
				s.add("pods/shop/credentials", "", nil, nil)
			}
			want := slices.Collect(maps.Keys(s))
			want = slices.DeleteFunc(want, func(key string) bool { return key == "jobs/shop/"+c.run })
			if command != "clean --all" { // that command removes all agents
				s.addAgents("tare-agent-aaaaa", "")
				s.addAgents("tare-agent-bbbbb", "shop/tare-bbbbbb")
				want = append(want, "jobs/kube-system/tare-agent-aaaaa", "daemonsets/kube-system/tare-agent-aaaaa",
					"jobs/kube-system/tare-agent-bbbbb", "daemonsets/kube-system/tare-agent-bbbbb")
			}
			t.Run(command+", "+name, func(t *testing.T) {
				_, err := run(t, collected{s}, strings.Fields(command)...)
				if got := fault.CodeOf(err); (got != fault.OK) != strings.HasPrefix(command, "attach") {
					t.Errorf("%v, code %d", err, got)
				}
				s.has(t, want...)
			})
		}
	}
}

// TestRemovesRun: everything is removed that belongs to a run whose coordinator is lost, or to a forgotten run. Other
// runs and agents are left alone.
func TestRemovesRun(t *testing.T) {
	for _, command := range []string{"attach tare-aaaaaa -n shop", "clean --all"} {
		s := apiServer{}
		s.addRun("jobs/shop/tare-aaaaaa", "kube-system/tare-agent-aaaaa")
		s.addOurs("pods/shop/tare-aaaaaa-part", "jobs/shop/tare-aaaaaa", "tare-run", nil)
		s.addOurs("secrets/shop/tare-aaaaaa", "jobs/shop/tare-aaaaaa", "tare-run", nil)
		s.addAgents("tare-agent-aaaaa", "shop/tare-aaaaaa")
		if command == "clean --all" {
			s.addOurs("pods/shop/tare-aaaaaa", "jobs/shop/tare-aaaaaa", "tare-run", nil)
			s.addAgents("tare-agent-bbbbb", "")
			delete(s, "jobs/kube-system/tare-agent-bbbbb") // without a garbage collector until now
			_, err := run(t, collected{s}, strings.Fields(command)...)
			if s.has(t); err != nil {
				t.Error(err)
			}
			continue
		}
		s.addRun("jobs/shop/tare-bbbbbb", "kube-system/tare-agent-bbbbb")
		s.addAgents("tare-agent-bbbbb", "shop/tare-bbbbbb")
		_, err := run(t, collected{s}, strings.Fields(command)...)
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "the coordinator is lost") {
			t.Error(err)
		}
		s.has(t, "jobs/shop/tare-bbbbbb", "jobs/kube-system/tare-agent-bbbbb", "daemonsets/kube-system/tare-agent-bbbbb")
	}
}

// TestForbidden: a run whose coordinator the user may not look at is left as it is, because it may still be under way.
func TestForbidden(t *testing.T) {
	s := apiServer{}
	s.addRun("jobs/shop/tare-aaaaaa", "kube-system/tare-agent-aaaaa")
	s.addAgents("tare-agent-aaaaa", "shop/tare-aaaaaa")
	s.addOurs("pods/shop/tare-aaaaaa", "jobs/shop/tare-aaaaaa", "tare-run", nil)
	want := slices.Collect(maps.Keys(s))
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/pods/tare-aaaaaa") {
			refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
			return
		}
		collected{s}.ServeHTTP(w, r)
	})
	_, err := run(t, h, "attach", "-n", "shop")
	if fault.CodeOf(err) != fault.Machine || !strings.Contains(err.Error(), "looking at the coordinator") {
		t.Errorf("%v, code %d", err, fault.CodeOf(err))
	}
	s.has(t, want...)
	job := agents.Job{Namespace: "shop", Name: "tare-aaaaaa", UID: "jobs/shop/tare-aaaaaa"}
	a := attachment{c: clientOf(t, h), run: &pods.Run{Job: job}, out: io.Discard, log: io.Discard}
	if err := a.leave(t.Context()); fault.CodeOf(err) != fault.Machine {
		t.Errorf("%v, code %d", err, fault.CodeOf(err))
	}
	s.has(t, want...)
}

// TestKilled: Ctrl-C removes a run that has not begun. If the command is killed instead, the run stays.
func TestKilled(t *testing.T) {
	for name, follow := range map[string]func(*attachment, context.Context) error{
		"run": (*attachment).follow, "run --detach": (*attachment).leave,
	} {
		for _, cause := range []error{errKilled, context.Canceled} {
			s := apiServer{}
			s.addRun("jobs/shop/tare-aaaaaa", "kube-system/tare-agent-aaaaa")
			s.addAgents("tare-agent-aaaaa", "shop/tare-aaaaaa")
			s.addOurs("pods/shop/tare-aaaaaa", "jobs/shop/tare-aaaaaa", "tare-run", nil)
			want := slices.Collect(maps.Keys(s))
			job := agents.Job{Namespace: "shop", Name: "tare-aaaaaa", UID: "jobs/shop/tare-aaaaaa"}
			of := agents.Job{Namespace: "kube-system", Name: "tare-agent-aaaaa"}
			a := attachment{c: clientOf(t, collected{s}), run: &pods.Run{Job: job, Agents: of}, out: io.Discard,
				log: io.Discard, ends: true}
			ctx, cancel := context.WithCancelCause(t.Context())
			cancel(cause)
			err := follow(&a, ctx)
			goesOn := err != nil && strings.Contains(err.Error(), "the run goes on")
			if goesOn != killed(ctx) {
				t.Errorf("%s, %v: %v", name, cause, err)
			}
			if !killed(ctx) {
				want = nil
			}
			s.has(t, want...)
		}
	}
}

// TestCleanTime: only the API server's clock decides whether the time of an object is over.
func TestCleanTime(t *testing.T) {
	created := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	for after, want := range map[time.Duration]string{59 * time.Second: "left alone: ", 61 * time.Second: "removed "} {
		s := apiServer{}
		s.addOurs("jobs/kube-system/tare-agent-aaaaa", "", "tare-agent-temporary", nil).
			SetCreationTimestamp(metav1.NewTime(created))
		out, err := run(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", created.Add(after).Format(http.TimeFormat))
			collected{s}.ServeHTTP(w, r)
		}), "clean")
		if err != nil || !strings.HasPrefix(out, want) || len(s) == 1 != (after < time.Minute) {
			t.Errorf("after %v: %v, %q", after, err, out)
		}
	}
}

// TestUnanswered: a Job that was created although the answer was lost is removed, and no other object with its name.
func TestUnanswered(t *testing.T) {
	s := apiServer{}
	s.addOurs("jobs/kube-system/other", "", "tare-agent-temporary", nil)
	s.addOurs("daemonsets/kube-system/x", "", "tare-agent-temporary", nil)
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			s.addOurs("jobs/kube-system/x", "", "tare-agent-temporary", map[string]string{"tare/run": "shop/tare-aaaaaa"})
			panic(http.ErrAbortHandler)
		}
		s.ServeHTTP(w, r)
	})
	_, err := clientOf(t, h).MakeOwner(t.Context(), agents.Owner{What: "tare-agent-temporary", Namespace: "kube-system",
		Name: "x", Run: "shop/tare-aaaaaa", Pod: &api.PodSpec{}})
	if err == nil {
		t.Error("no error")
	}
	s.has(t, "jobs/kube-system/other", "daemonsets/kube-system/x")
}

// TestCleanLeaves: Jobs that do not say how long they live are not kubectl-tare's, whatever their labels. Nor is a Job
// kubectl-tare's only because a DaemonSet of agents names it as its owner.
func TestCleanLeaves(t *testing.T) {
	s := apiServer{}
	s.addRun("jobs/shop/other", "")
	s["jobs/shop/other"].SetAnnotations(nil)
	if out, err := run(t, collected{s}, "clean", "--all"); err != nil || out != "nothing to remove\n" {
		t.Errorf("%v\n%s", err, out)
	}
	s.add("jobs/shop/backup", "", nil, nil)
	s.addOurs("daemonsets/shop/backup", "jobs/shop/backup", "tare-agent-temporary", nil)
	if left, errs := clean(t, collected{s}); len(left) != 1 || len(errs) != 1 {
		t.Errorf("%v, %v", left, errs)
	}
	s.has(t, "jobs/shop/other", "jobs/shop/backup", "daemonsets/shop/backup")
}

// TestCleanAlone: without a garbage collector, clean does not say that it has removed what is left, finds it each time,
// and says how to remove it.
func TestCleanAlone(t *testing.T) {
	s := apiServer{}
	s.addRun("jobs/shop/tare-aaaaaa", "kube-system/tare-agent-aaaaa")
	s.addOurs("pods/shop/tare-aaaaaa", "jobs/shop/tare-aaaaaa", "tare-run", nil)
	s.addOurs("secrets/shop/tare-aaaaaa", "jobs/shop/tare-aaaaaa", "tare-run", nil)
	s.addAgents("tare-agent-aaaaa", "shop/tare-aaaaaa")
	pod := s.addOurs("pods/kube-system/x", "daemonsets/kube-system/tare-agent-aaaaa", "tare-agent-temporary", nil)
	pod.SetLabels(s["jobs/kube-system/tare-agent-aaaaa"].GetLabels())
	for range 2 {
		left, errs := clean(t, s)
		if len(left) != 2 || len(errs) != 2 {
			t.Fatalf("%v, %v", left, errs)
		}
		for i, err := range errs {
			want := "-n " + left[i].Namespace + " -l app.kubernetes.io/instance=" + left[i].Name +
				",app.kubernetes.io/managed-by=kubectl-tare"
			if fault.CodeOf(err) != fault.Machine || !strings.HasSuffix(fault.HintOf(err), want) {
				t.Errorf("%v (%s), code %d; want %s", err, fault.HintOf(err), fault.CodeOf(err), want)
			}
		}
	}
	s.has(t, "jobs/shop/tare-aaaaaa", "secrets/shop/tare-aaaaaa", "jobs/kube-system/tare-agent-aaaaa",
		"pods/kube-system/x")
	delete(s, "jobs/kube-system/tare-agent-aaaaa")
	if left, errs := clean(t, s); len(left) != 2 || len(errs) != 2 {
		t.Errorf("%v, %v", left, errs)
	}
	s.collect()
	s.has(t)
}

// TestCleanFindsRemoved: without a garbage collector, clean finds the Secret that attach has left behind of a run,
// although the time of the run is not over.
func TestCleanFindsRemoved(t *testing.T) {
	s := apiServer{}
	s.addRun("jobs/shop/tare-aaaaaa", "kube-system/tare-agent-aaaaa")
	made := metav1.NewTime(time.Now().Add(-30 * time.Second)) // of the 60 that it may live; attach waits for younger ones
	s["jobs/shop/tare-aaaaaa"].SetCreationTimestamp(made)
	s.addOurs("secrets/shop/tare-aaaaaa", "jobs/shop/tare-aaaaaa", "tare-run", nil)
	s.addAgents("tare-agent-aaaaa", "shop/tare-aaaaaa")
	if _, err := run(t, s, "attach", "-n", "shop"); fault.CodeOf(err) != fault.Invalid {
		t.Fatal(err)
	}
	left, errs := clean(t, s)
	if len(left) != 2 || len(errs) != 2 || !left[0].Ended || !left[1].Ended {
		t.Errorf("%+v, %v", left, errs)
	}
	s.collect()
	s.has(t)
}

// TestCleanOrphans: without a garbage collector, clean removes the objects whose Job somebody else has deleted, also
// those that no longer say that they belonged to it, and no others.
func TestCleanOrphans(t *testing.T) {
	s := apiServer{}
	for _, resource := range []string{"services", "secrets", "serviceaccounts", "roles", "rolebindings"} {
		s.addOurs(resource+"/shop/tare-aaaaaa", "jobs/shop/tare-aaaaaa", "tare-run", nil)
		s.add(resource+"/shop/credentials", "", nil, nil)
	}
	s.addOurs("roles/kube-system/tare-agent-aaaaa", "", "tare-agent-temporary", nil)
	s.addRun("jobs/shop/tare-bbbbbb", "")
	s["jobs/shop/tare-bbbbbb"].SetCreationTimestamp(metav1.Now())
	s.addOurs("secrets/shop/tare-bbbbbb", "jobs/shop/tare-bbbbbb", "tare-run", nil)
	out, err := run(t, s, "clean")
	for _, want := range []string{"removed the objects of the run shop/tare-aaaaaa\n", "left alone: shop/tare-bbbbbb",
		"removed the agents kube-system/tare-agent-aaaaa\n"} {
		if err != nil || !strings.Contains(out, want) {
			t.Errorf("%v; no %q in\n%s", err, want, out)
		}
	}
	s.has(t, "jobs/shop/tare-bbbbbb", "secrets/shop/tare-bbbbbb", "services/shop/credentials",
		"secrets/shop/credentials", "serviceaccounts/shop/credentials", "roles/shop/credentials",
		"rolebindings/shop/credentials")
}

// TestCleanChosen: -n and names limit what clean removes, in both cases with the agents of the runs. A name is enough
// to remove what is in use.
func TestCleanChosen(t *testing.T) {
	const (
		ofBank, agentsOfBank = "jobs/bank/tare-bbbbbb", "jobs/kube-system/tare-agent-bbbbb"
		ofShop, agentsOfShop = "jobs/shop/tare-aaaaaa", "jobs/kube-system/tare-agent-aaaaa"
	)
	for args, wants := range map[string][]string{
		"clean --all -n shop":                        {ofBank, agentsOfBank},
		"clean tare-aaaaaa":                          {ofBank, agentsOfBank},
		"clean tare-agent-bbbbb":                     {ofBank, ofShop, agentsOfShop},
		"clean tare-agent-bbbbb tare-bbbbbb -n bank": {ofShop, agentsOfShop},
		"clean --all":                                nil,
	} {
		s := apiServer{}
		for _, of := range []struct{ run, agents string }{{"shop/tare-aaaaaa", "tare-agent-aaaaa"},
			{"bank/tare-bbbbbb", "tare-agent-bbbbb"}} {
			s.addRun("jobs/"+of.run, "kube-system/"+of.agents)
			s["jobs/"+of.run].SetCreationTimestamp(metav1.Now())
			s.addOurs("jobs/kube-system/"+of.agents, "", "tare-agent-temporary", map[string]string{"tare/run": of.run}).
				SetCreationTimestamp(metav1.Now())
		}
		if out, err := run(t, collected{s}, strings.Fields(args)...); err != nil {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
		s.has(t, wants...)
	}
	s := apiServer{}
	s.addRun("jobs/shop/tare-aaaaaa", "")
	for _, args := range [][]string{{"clean", "tare-bbbbbb"}, {"clean", ""}, {"clean", "tare-aaaaaa", "-n", "bank"}} {
		if out, err := run(t, collected{s}, args...); fault.CodeOf(err) != fault.Usage {
			t.Errorf("%q: %v\n%s", args, err, out)
		}
	}
	s.has(t, "jobs/shop/tare-aaaaaa")
}

// TestCleanWithoutRights: clean says what it has not looked for, and removes the rest.
func TestCleanWithoutRights(t *testing.T) {
	s := apiServer{}
	s.addRun("jobs/shop/tare-aaaaaa", "")
	h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/secrets") || strings.HasSuffix(r.URL.Path, "/roles") {
			refuse(w, http.StatusForbidden, metav1.StatusReasonForbidden)
			return
		}
		collected{s}.ServeHTTP(w, r)
	})
	if _, hidden, err := clientOf(t, h).Leftovers(t.Context(), ""); err != nil ||
		!slices.Equal(hidden, []string{"secrets", "roles"}) {
		t.Errorf("%v, hidden %q", err, hidden)
	}
	if out, err := run(t, h, "clean"); err != nil || out != "removed the objects of the run shop/tare-aaaaaa\n" {
		t.Errorf("%v, %q", err, out)
	}
	s.has(t)
}

// clientOf returns a client of a cluster that h simulates.
func clientOf(t *testing.T, h http.Handler) *agents.Cluster {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	c, err := agents.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// clean removes leftovers in a cluster that h simulates, and waits only a short time until each has gone.
func clean(t *testing.T, h http.Handler) (left []*agents.Leftover, errs []error) {
	t.Helper()
	c := clientOf(t, h)
	left, _, err := c.Leftovers(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range left {
		ctx, cancel := context.WithTimeout(t.Context(), speed.Scale(time.Second/2))
		if err := c.Clean(ctx, l); err != nil {
			errs = append(errs, err)
		}
		cancel()
	}
	return left, errs
}
