package agents

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"testing"

	api "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"tare/internal/kube/cluster"
)

func TestPodOf(t *testing.T) {
	p := api.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-5d4f8-abcde", UID: "u",
		Annotations: map[string]string{"kubernetes.io/config.hash": "h", mirrorOf: "h",
			istioStatus: `{"containers":["istio-proxy"],"initContainers":["istio-init"]}`},
		Labels:          map[string]string{"pod-template-hash": "5d4f8"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "ReplicaSet", Name: "web-5d4f8", Controller: new(true)}}}}
	always := api.ContainerRestartPolicyAlways
	p.Spec.NodeName = "n1"
	p.Spec.InitContainers = []api.Container{{Name: "istio-init"}, {Name: "log", RestartPolicy: &always},
		{Name: "prepare"}}
	p.Spec.Containers = []api.Container{{Name: "web"}, {Name: "istio-proxy"}}
	p.Status.InitContainerStatuses = []api.ContainerStatus{{Name: "log", ContainerID: "containerd://0123"}}
	p.Status.ContainerStatuses = []api.ContainerStatus{{Name: "istio-proxy", ContainerID: "docker://4567"}, {Name: "web"}}
	got := podOf(&p)
	want := cluster.Pod{Namespace: "shop", Name: "web-5d4f8-abcde", UID: "u", Node: "n1",
		Labels: p.Labels, OwnerKind: "Deployment", Owner: "web",
		Containers: []cluster.Container{{Name: "istio-init", Class: cluster.Injected},
			{Name: "log", ID: "0123", Class: cluster.Sidecar}, {Name: "prepare", Class: cluster.Init},
			{Name: "web", Class: cluster.App}, {Name: "istio-proxy", ID: "4567", Class: cluster.Injected}}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	p.Annotations[meshStatus], p.Annotations[istioStatus] = p.Annotations[istioStatus], ""
	if got := podOf(&p); !reflect.DeepEqual(got.Containers, want.Containers) {
		t.Errorf("by Tare's injector: %+v", got.Containers)
	}
	p.Annotations[meshStatus] = "\x1b["
	if got := podOf(&p); got.Containers[4].Class != cluster.App {
		t.Errorf("an annotation that is no JSON injects: %+v", got.Containers)
	}
}

// TestNodes: a node is known by the UUID of its machine, or else by the ID of its system.
func TestNodes(t *testing.T) {
	list := api.NodeList{TypeMeta: metav1.TypeMeta{Kind: "NodeList", APIVersion: "v1"}}
	for name, info := range map[string]api.NodeSystemInfo{
		"b": {BootID: "boot", SystemUUID: "uuid", MachineID: "id"}, "c": {MachineID: "id"}, "a": {},
	} {
		list.Items = append(list.Items, api.Node{ObjectMeta: metav1.ObjectMeta{Name: name},
			Status: api.NodeStatus{NodeInfo: info}})
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(&list)
	}))
	defer s.Close()
	c, err := New(&rest.Config{Host: s.URL})
	if err != nil {
		t.Fatal(err)
	}
	nodes, err := c.Nodes(t.Context())
	got := ""
	for _, n := range nodes {
		got += n.Name + " " + n.Machine + " " + n.Hardware + "; "
	}
	if want := "a a ; b boot uuid; c c id; "; err != nil || got != want {
		t.Errorf("%v, %q, want %q", err, got, want)
	}
}

// TestMirror: only a pod that a node owns stands for a static pod.
func TestMirror(t *testing.T) {
	for kind, want := range map[string]string{"Node": "h", "ReplicaSet": "", "": ""} {
		p := &api.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{mirrorOf: "h"}}}
		if kind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: kind, Name: "n1", Controller: new(true)}}
		}
		if got := podOf(p).ConfigHash; got != want {
			t.Errorf("with an owner of kind %q: %q, want %q", kind, got, want)
		}
	}
}

func TestWorkloadOf(t *testing.T) {
	for _, c := range []struct{ kind, name, hash, wantKind, want string }{
		{"", "", "", "", ""},
		{"Node", "n1", "", "", ""},
		{"ReplicaSet", "web-5d4f8", "5d4f8", "Deployment", "web"},
		{"ReplicaSet", "web-5d4f8", "other", "ReplicaSet", "web-5d4f8"},
		{"ReplicaSet", "web-", "", "ReplicaSet", "web-"},
		{"Job", "nightly-29123456", "", "CronJob", "nightly"},
		{"Job", "load-20261130", "", "Job", "load-20261130"}, // a date
		{"Job", "load-29123999", "", "Job", "load-29123999"}, // after the pod was created
		{"Job", "once", "", "Job", "once"},
		{"StatefulSet", "db", "", "StatefulSet", "db"},
	} {
		p := &api.Pod{}
		p.CreationTimestamp = metav1.Unix(60*29123456+3, 0)
		p.Labels = map[string]string{"pod-template-hash": c.hash}
		if c.kind != "" {
			p.OwnerReferences = []metav1.OwnerReference{{Kind: c.kind, Name: c.name, Controller: new(true)}}
		}
		if kind, name := workloadOf(p); kind != c.wantKind || name != c.want {
			t.Errorf("%s %s: %s %s", c.kind, c.name, kind, name)
		}
	}
}

// TestTemporary: the pod of a temporary agent is that of the manifests, without what only installed agents need.
func TestTemporary(t *testing.T) {
	set, err := agentSet()
	if err != nil {
		t.Fatal(err)
	}
	pod := set.Spec.Template.Spec
	temporary(&pod, "image")
	c := pod.Containers[0]
	if c.Image != "image" || len(c.Ports) > 0 || c.ReadinessProbe != nil || !pod.HostPID ||
		*pod.AutomountServiceAccountToken || len(c.SecurityContext.Capabilities.Add) != 6 ||
		!*c.SecurityContext.ReadOnlyRootFilesystem {
		t.Errorf("%+v", pod)
	}
	for _, m := range c.VolumeMounts {
		found := false
		for _, v := range pod.Volumes {
			found = found || v.Name == m.Name
		}
		if !found {
			t.Errorf("there is no volume %s", m.Name)
		}
	}
	if !slices.Contains(c.Args, "--listen=127.0.0.1:9633") {
		t.Errorf("other pods reach the agent: %q", c.Args)
	}
	if len(pod.Volumes) != 3 {
		t.Errorf("volumes: %+v", pod.Volumes)
	}
}
