package plugin

import (
	"io"
	"maps"
	"net/http"
	"strings"
	"testing"

	"tare/internal/lib/fault"
)

// stored simulates an API server. It holds objects, in JSON, by their paths.
type stored map[string]string

func (s stored) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch r.Method {
	case http.MethodPatch:
		body, _ := io.ReadAll(r.Body) // the client refuses an object that is not whole
		s[r.URL.Path] = string(body)
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

// TestInstall: install applies all objects, also again with another image, and uninstall removes them.
func TestInstall(t *testing.T) {
	cluster := stored{}
	for _, image := range []string{"a", "b"} {
		out, err := run(t, cluster, "install", "--image", image)
		if err != nil || strings.Count(out, "applied") != 5 {
			t.Fatalf("install: %v\n%s", err, out)
		}
		if set := cluster["/apis/apps/v1/namespaces/tare/daemonsets/tare-agent"]; !strings.Contains(set, `"image":"`+image) {
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
		"/api/v1/namespaces/tare/serviceaccounts/tare-agent":  `"kind": "ServiceAccount", "apiVersion": "v1"`,
		"/api/v1/namespaces/tare/configmaps/tare-agent":       `"kind": "ConfigMap", "apiVersion": "v1"`,
		"/api/v1/namespaces/tare/services/tare-agent":         `"kind": "Service", "apiVersion": "v1"`,
		"/apis/apps/v1/namespaces/tare/daemonsets/tare-agent": `"kind": "DaemonSet", "apiVersion": "apps/v1"`,
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
