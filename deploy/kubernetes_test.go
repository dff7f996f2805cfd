package deploy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/opencontainers/runtime-spec/specs-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubejson "sigs.k8s.io/json"

	"tare/test/binary"
	"tare/test/port"
)

const agentFile = "kubernetes/agent.yaml"

// capabilities are those that docs/security.md gives the agent.
var capabilities = []corev1.Capability{"SYS_ADMIN", "PERFMON", "BPF", "SYSLOG", "SYS_PTRACE", "DAC_READ_SEARCH"}

// podMonitor and prometheusRule have the fields of the Prometheus operator's objects that the files here use.
type (
	podMonitor struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Selector  metav1.LabelSelector `json:"selector"`
			Endpoints []map[string]any     `json:"podMetricsEndpoints"`
		} `json:"spec"`
	}
	prometheusRule struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              struct {
			Groups []struct {
				Name  string           `json:"name"`
				Rules []map[string]any `json:"rules"`
			} `json:"groups"`
		} `json:"spec"`
	}
)

// manifests reads a file of Kubernetes objects.
func manifests(t *testing.T, path string) []metav1.Object {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return decode(t, path, text)
}

// decode reads Kubernetes objects. Like an API server with strict validation it refuses unknown fields.
func decode(t *testing.T, path string, text []byte) (objects []metav1.Object) {
	t.Helper()
	for documents := yaml.NewDecoder(bytes.NewReader(text)); ; {
		var document map[string]any
		if err := documents.Decode(&document); errors.Is(err, io.EOF) {
			return objects
		} else if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		var object metav1.Object
		switch kind := fmt.Sprint(document["apiVersion"], " ", document["kind"]); kind {
		case "v1 Namespace":
			object = new(corev1.Namespace)
		case "v1 ServiceAccount":
			object = new(corev1.ServiceAccount)
		case "v1 ConfigMap":
			object = new(corev1.ConfigMap)
		case "apps/v1 DaemonSet":
			object = new(appsv1.DaemonSet)
		case "v1 Service":
			object = new(corev1.Service)
		case "rbac.authorization.k8s.io/v1 Role":
			object = new(rbacv1.Role)
		case "rbac.authorization.k8s.io/v1 RoleBinding":
			object = new(rbacv1.RoleBinding)
		case "networking.k8s.io/v1 NetworkPolicy":
			object = new(networkingv1.NetworkPolicy)
		case "monitoring.coreos.com/v1 PodMonitor":
			object = new(podMonitor)
		case "monitoring.coreos.com/v1 PrometheusRule":
			object = new(prometheusRule)
		default:
			t.Fatalf("%s: this test does not know %s", path, kind)
		}
		asJSON, err := json.Marshal(document)
		if err != nil {
			t.Fatal(err)
		}
		unknown, err := kubejson.UnmarshalStrict(asJSON, object)
		if err := errors.Join(append(unknown, err)...); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		objects = append(objects, object)
	}
}

func daemonSet(t *testing.T) *appsv1.DaemonSet {
	t.Helper()
	for _, o := range manifests(t, agentFile) {
		if d, ok := o.(*appsv1.DaemonSet); ok {
			return d
		}
	}
	t.Fatal("there is no DaemonSet")
	return nil
}

// TestManifests: the objects are valid, belong together, and give the agent no more rights than it needs.
func TestManifests(t *testing.T) {
	var service *corev1.Service
	var account *corev1.ServiceAccount
	for _, o := range manifests(t, agentFile) {
		switch o := o.(type) {
		case *corev1.Service:
			service = o
		case *corev1.ServiceAccount:
			account = o
		}
		if o.GetNamespace() != "tare" && o.GetName() != "tare" {
			t.Errorf("%s is in namespace %q", o.GetName(), o.GetNamespace())
		}
	}
	pod := daemonSet(t).Spec.Template
	for key, value := range service.Spec.Selector {
		if pod.Labels[key] != value {
			t.Errorf("the service selects %s=%s, and pods have %q", key, value, pod.Labels[key])
		}
	}
	if account.AutomountServiceAccountToken == nil || *account.AutomountServiceAccountToken ||
		pod.Spec.AutomountServiceAccountToken == nil || *pod.Spec.AutomountServiceAccountToken ||
		pod.Spec.ServiceAccountName != account.Name {
		t.Error("the agent gets a token of Kubernetes' API")
	}
	if !pod.Spec.HostPID || pod.Spec.HostNetwork || pod.Spec.HostIPC || len(pod.Spec.Containers) != 1 {
		t.Errorf("namespaces of the node, or containers: %+v", pod.Spec)
	}
	c := pod.Spec.Containers[0]
	s := c.SecurityContext
	if !*s.ReadOnlyRootFilesystem || *s.AllowPrivilegeEscalation || *s.Privileged || *s.RunAsUser != 0 {
		t.Errorf("security context: %+v", s)
	}
	if !slices.Equal(s.Capabilities.Drop, []corev1.Capability{"ALL"}) || !slices.Equal(s.Capabilities.Add, capabilities) {
		t.Errorf("capabilities: %+v, want %v alone", s.Capabilities, capabilities)
	}
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(pod.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		if i < 0 {
			t.Errorf("there is no volume %s", m.Name)
		} else if pod.Spec.Volumes[i].HostPath != nil && !m.ReadOnly {
			t.Errorf("%s of the node can be written", m.MountPath)
		}
	}
}

// TestKubectl has kubectl build the kustomization, which must set the image.
func TestKubectl(t *testing.T) {
	kubectl, err := exec.LookPath("kubectl")
	if err != nil {
		t.Skip("needs kubectl")
	}
	out, err := exec.Command(kubectl, "kustomize", "kubernetes").CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl kustomize: %v\n%s", err, out)
	}
	if !bytes.Contains(out, []byte("image: tare-agent:0.1.0")) {
		t.Errorf("the image is not what the kustomization says:\n%s", out)
	}
}

// TestDaemonSet starts the agent in a container as the DaemonSet describes it, with the same user, capabilities,
// namespaces and mounts: each of its collectors must work, and it must see the whole machine.
func TestDaemonSet(t *testing.T) {
	runc, err := exec.LookPath("runc")
	if err != nil {
		t.Skip("needs runc: run test/setup")
	}
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	address := port.Free(t)
	bundle := makeBundle(t, &daemonSet(t).Spec.Template.Spec, address)
	name := fmt.Sprintf("tare-test-%d-agent", os.Getpid())
	root := filepath.Join(t.TempDir(), "runc")
	t.Cleanup(func() { _ = exec.Command(runc, "--root", root, "delete", "--force", name).Run() })
	ended := start(t, runc, "--root", root, "run", "--bundle", bundle, name)
	for metrics := ""; ; time.Sleep(time.Second) {
		select {
		case <-ended:
			t.Fatalf("the agent has ended; its metrics were\n%s", metrics)
		default:
		}
		if metrics = scrape(address, "/metrics"); strings.Count(metrics, "\ntare_agent_collector_success{") < 5 {
			continue
		}
		for line := range strings.Lines(metrics) {
			if strings.HasPrefix(line, "tare_agent_collector_success{") && !strings.HasSuffix(line, " 1\n") ||
				strings.HasPrefix(line, "tare_agent_warning") && strings.Contains(line, "namespace") {
				t.Error(line)
			}
		}
		break
	}
	if health := scrape(address, "/healthz"); health != "ok\n" {
		t.Errorf("health: %q", health)
	}
}

// scrape returns a page of the agent; empty while the agent does not serve it.
func scrape(address, path string) string {
	client := http.Client{Timeout: time.Minute}
	r, err := client.Get("http://" + address + path)
	if err != nil {
		return ""
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != http.StatusOK {
		return ""
	}
	return string(text)
}

// makeBundle makes an OCI bundle of the pod's container, as a runtime of Kubernetes does, with two differences: the
// agent listens at an address of the machine, whose network it has, and no profile of seccomp applies.
func makeBundle(t *testing.T, pod *corev1.PodSpec, address string) string {
	t.Helper()
	c := pod.Containers[0]
	dir := t.TempDir()
	rootfs := filepath.Join(dir, "rootfs")
	if err := os.MkdirAll(filepath.Join(rootfs, "usr/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := binary.Program(filepath.Join(rootfs, "usr/bin/tare-agent"), "./cmd/tare-agent"); err != nil {
		t.Fatal(err)
	}
	var caps []string
	for _, name := range c.SecurityContext.Capabilities.Add {
		caps = append(caps, "CAP_"+string(name))
	}
	spec := specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: rootfs, Readonly: *c.SecurityContext.ReadOnlyRootFilesystem},
		Process: &specs.Process{
			Args: append([]string{"/usr/bin/tare-agent", "--listen=" + address}, c.Args...), Cwd: "/",
			User:            specs.User{UID: uint32(*c.SecurityContext.RunAsUser), GID: uint32(*c.SecurityContext.RunAsGroup)},
			Capabilities:    &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
			NoNewPrivileges: !*c.SecurityContext.AllowPrivilegeEscalation,
		},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &specs.Linux{
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.MountNamespace}, {Type: specs.CgroupNamespace}, {Type: specs.IPCNamespace},
			},
			CgroupsPath: fmt.Sprintf("/tare-test-%d-agent", os.Getpid()),
		},
	}
	if !pod.HostPID {
		spec.Linux.Namespaces = append(spec.Linux.Namespaces, specs.LinuxNamespace{Type: specs.PIDNamespace})
	}
	for _, m := range c.VolumeMounts {
		i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Name == m.Name })
		mount := specs.Mount{Destination: m.MountPath, Type: "bind", Options: []string{"rbind", "rprivate"}}
		if m.MountPropagation != nil && *m.MountPropagation == corev1.MountPropagationHostToContainer {
			mount.Options[1] = "rslave"
		}
		switch v := pod.Volumes[i]; {
		case v.HostPath != nil:
			mount.Source = v.HostPath.Path
		case v.ConfigMap != nil:
			mount.Source = t.TempDir()
			for _, o := range manifests(t, agentFile) {
				if data, ok := o.(*corev1.ConfigMap); ok && data.Name == v.ConfigMap.Name {
					for name, text := range data.Data {
						write(t, filepath.Join(mount.Source, name), text)
					}
				}
			}
		default:
			mount.Source = t.TempDir()
		}
		if m.ReadOnly {
			mount.Options = append(mount.Options, "ro")
		}
		spec.Mounts = append(spec.Mounts, mount)
	}
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "config.json"), string(text))
	return dir
}
