package plugin

import (
	"fmt"
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"tare/internal/lib/fault"
)

const agentSet = "/apis/apps/v1/namespaces/tare/daemonsets/tare-agent"

// stored simulates an API server. It holds objects, in JSON, by their paths. An entry PATH/status is a part of an
// object in JSON, which is added to the object that is applied at PATH.
type stored map[string]string

func (s stored) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPatch:
		body, _ := io.ReadAll(r.Body) // the client refuses an object that is not whole
		s[r.URL.Path] = strings.Replace(string(body), "{", "{"+s[r.URL.Path+"/status"], 1)
	case http.MethodDelete:
		defer delete(s, r.URL.Path)
	}
	w.Header().Set("Content-Type", "application/json")
	object, found := s[r.URL.Path]
	if !found {
		w.WriteHeader(http.StatusNotFound)
		object = `{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404}`
	}
	_, _ = io.WriteString(w, object)
}

// TestInstall: install applies all objects, can be repeated with another image, and uninstall removes the objects.
func TestInstall(t *testing.T) {
	cluster := stored{}
	for _, image := range []string{"a", "b"} {
		out, err := run(t, cluster, "install", "--image", image)
		if err != nil || strings.Count(out, "applied") != 5 {
			t.Fatalf("install: %v\n%s", err, out)
		}
		if set := cluster[agentSet]; !strings.Contains(set, `"image":"`+image) {
			t.Errorf("not with the image %s: %s", image, set)
		}
	}
	if out, err := run(t, cluster, "uninstall"); err != nil || strings.Count(out, "removed") != 5 || len(cluster) > 0 {
		t.Errorf("uninstall: %v\n%s", err, out)
	}
}

// TestInstallOverOthers: if others have created one of the objects, install refuses before it changes any, and
// uninstall leaves it.
func TestInstallOverOthers(t *testing.T) {
	for path, kind := range map[string]string{
		"/api/v1/namespaces/tare/serviceaccounts/tare-agent": `"kind": "ServiceAccount", "apiVersion": "v1"`,
		"/api/v1/namespaces/tare/configmaps/tare-agent":      `"kind": "ConfigMap", "apiVersion": "v1"`,
		"/api/v1/namespaces/tare/services/tare-agent":        `"kind": "Service", "apiVersion": "v1"`,
		agentSet: `"kind": "DaemonSet", "apiVersion": "apps/v1"`,
	} {
		cluster := stored{path: "{" + kind + `, "metadata": {"name": "tare-agent", "namespace": "tare"}}`}
		before := maps.Clone(cluster)
		out, err := run(t, cluster, "install", "--image", "a")
		if fault.CodeOf(err) != fault.Usage || out != "" || !strings.Contains(err.Error(), "was not created by") ||
			!maps.Equal(cluster, before) {
			t.Errorf("install over %s: %v\n%s%v", path, err, out, cluster)
		}
		out, err = run(t, cluster, "uninstall")
		if err != nil || out != "nothing to remove\n" || !maps.Equal(cluster, before) {
			t.Errorf("uninstall: %v\n%s", err, out)
		}
	}
}

// TestInstallRefused: if the cluster refuses the agents' pods, the error of install contains the cluster's reason.
func TestInstallRefused(t *testing.T) {
	cluster := stored{
		agentSet + "/status": `"status": {"desiredNumberScheduled": 2, "currentNumberScheduled": 1}, `,
		"/api/v1/namespaces/tare/events": `{"kind": "EventList", "apiVersion": "v1", "items": [{"lastTimestamp": "2099-01-01T00:00:00Z",
			"message": "pods \"tare-agent-\" is forbidden: violates PodSecurity \"baseline:latest\""}, {"message": "older"}]}`,
	}
	out, err := run(t, cluster, "install", "--image", "a")
	if fault.CodeOf(err) != fault.Machine || strings.Count(out, "applied") != 5 ||
		!strings.Contains(err.Error(), `violates PodSecurity "baseline:latest"`) ||
		!strings.Contains(fault.HintOf(err), "kubectl label --overwrite namespace tare ") {
		t.Errorf("%v (%s)\n%s", err, fault.HintOf(err), out)
	}
}

// TestInstallNotReady: if agents are not ready in time, install names their nodes with the reason.
func TestInstallNotReady(t *testing.T) {
	const pods = "/api/v1/namespaces/tare/pods"
	for name, c := range map[string]struct{ status, says string }{
		"not created": {`"status": {"desiredNumberScheduled": 2, "currentNumberScheduled": 1, "updatedNumberScheduled": 1,
			"numberReady": 1}, `, "after 1s, 1 of 2 nodes have an agent that is ready; n2: its agent waits: ErrImagePull: gone"},
		"not ready": {`"status": {"desiredNumberScheduled": 2, "currentNumberScheduled": 2, "updatedNumberScheduled": 2,
			"numberReady": 1}, `, "after 1s, 1 of 2 nodes have an agent that is ready; n2: its agent waits: ErrImagePull: gone"},
		"not updated": {`"status": {"desiredNumberScheduled": 2, "currentNumberScheduled": 2, "updatedNumberScheduled": 0,
			"numberReady": 2}, `, "after 1s, 0 of 2 nodes have an agent that is ready"},
		"ready": {`"status": {"desiredNumberScheduled": 2, "currentNumberScheduled": 2, "updatedNumberScheduled": 2,
			"numberReady": 2}, `, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			out, err := run(t, stored{
				agentSet + "/status": c.status,
				pods: `{"kind": "PodList", "apiVersion": "v1", "items": [
					{"metadata": {"ownerReferences": [{"uid": "", "controller": true}]}, "spec": {"nodeName": "n1"},
						"status": {"conditions": [{"type": "Ready", "status": "True"}]}},
					{"metadata": {"ownerReferences": [{"uid": "", "controller": true}]}, "spec": {"nodeName": "n2"},
						"status": {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "gone"}}}]}}]}`,
			}, "install", "--image", "a", "--start-within", "1s")
			if strings.Count(out, "applied") != 5 || (fault.CodeOf(err) == fault.Machine) != (c.says != "") {
				t.Fatalf("%v\n%s", err, out)
			}
			if err != nil && (!strings.Contains(err.Error(), c.says) || !strings.Contains(fault.HintOf(err), "tare doctor")) {
				t.Errorf("%v (%s)", err, fault.HintOf(err))
			}
		})
	}
}

// TestDoctorOfInstalled: doctor names nodes without an installed agent.
func TestDoctorOfInstalled(t *testing.T) {
	node := func(name, system string) string {
		return fmt.Sprintf(`{"metadata": {"name": %q}, "status": {"nodeInfo": {"operatingSystem": %q, "kernelVersion": "6.1"},
			"conditions": [{"type": "Ready", "status": "True"}]}}`, name, system)
	}
	pod := func(node string) string {
		return fmt.Sprintf(`{"metadata": {"namespace": "tare", "ownerReferences": [{"uid": "u", "controller": true}]},
			"spec": {"nodeName": %q, "hostPID": true}, "status": {"containerStatuses": [{"state": {"running": {}}}]}}`, node)
	}
	list := func(kind, version string, items ...string) string {
		return fmt.Sprintf(`{"kind": %q, "apiVersion": %q, "items": [%s]}`, kind, version, strings.Join(items, ", "))
	}
	for name, c := range map[string]struct {
		pods []string
		code fault.Code
		says string
	}{
		"on each": {[]string{pod("n1"), pod("n2")}, fault.OK, "ok  agents     installed in tare; 2 of 2 run\n"},
		"not on one": {[]string{pod("n2")}, fault.Machine,
			"no  agents     installed in tare; 1 of 1 run; there is none on n1\n"},
		"on none": {nil, fault.Machine, "no  agents     installed in tare; 0 of 0 run; there is none on n1, n2\n"},
	} {
		out, err := run(t, stored{
			"/version": `{"gitVersion": "v1.37.2"}`,
			"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews": `{"kind": "SelfSubjectAccessReview",
				"apiVersion": "authorization.k8s.io/v1", "status": {"allowed": true}}`,
			"/api/v1/nodes": list("NodeList", "v1", node("n1", "linux"), node("n2", "linux")),
			"/apis/apps/v1/daemonsets": list("DaemonSetList", "apps/v1", `{"metadata": {"namespace": "tare", "uid": "u"},
				"spec": {"selector": {}, "template": {"spec": {"hostPID": true, "containers": [{}]}}}}`),
			"/api/v1/namespaces/tare/pods": list("PodList", "v1", c.pods...),
		}, "doctor")
		if fault.CodeOf(err) != c.code || !strings.Contains(out, c.says) {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
}
