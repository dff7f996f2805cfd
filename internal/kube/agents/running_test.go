package agents

import (
	"strings"
	"testing"

	api "k8s.io/api/core/v1"
)

// TestNotRunning: whether an agent runs is judged by its own container, and not by one that a mesh injected.
func TestNotRunning(t *testing.T) {
	running := api.ContainerState{Running: &api.ContainerStateRunning{}}
	waits := api.ContainerState{Waiting: &api.ContainerStateWaiting{Reason: "ImagePullBackOff"}}
	for _, c := range []struct {
		name, first, second string
		is, other           api.ContainerState
		says                string
	}{
		{"the agent waits beside a sidecar", "istio-proxy", container, running, waits, "ImagePullBackOff"},
		{"the sidecar waits beside the agent", "istio-proxy", container, waits, running, ""},
		{"the agent is first", container, "istio-proxy", running, waits, ""},
		{"another name", "tare", "b", waits, running, "ImagePullBackOff"},
	} {
		p := &api.Pod{Status: api.PodStatus{ContainerStatuses: []api.ContainerStatus{
			{Name: c.first, State: c.is}, {Name: c.second, State: c.other}}}}
		if got := notRunning(p); (got == "") != (c.says == "") || !strings.Contains(got, c.says) {
			t.Errorf("%s: %q", c.name, got)
		}
	}
}
