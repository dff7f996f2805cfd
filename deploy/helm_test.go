package deploy

import (
	"bytes"
	"errors"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tare/test/binary"
)

const (
	chart          = "helm/tare"
	podMonitorFile = "kubernetes/podmonitor.yaml"
)

var update = flag.Bool("update", false, "make the manifests in deploy/kubernetes from the chart")

// helm runs the Helm that test/setup built. It returns what Helm printed on its two outputs.
func helm(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	path, err := binary.Helm()
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	// The go command must know that the result depends on the chart, or it would show an old one.
	err = filepath.WalkDir(chart, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			_, err = os.ReadFile(path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(path, args...)
	home := t.TempDir()
	cmd.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// template renders the chart for the namespace tare.
func template(t *testing.T, args ...string) string {
	t.Helper()
	out, errs, err := helm(t, append([]string{"template", "tare", chart, "--namespace=tare"}, args...)...)
	if err != nil {
		t.Fatalf("helm template %v: %v\n%s", args, err, errs)
	}
	return out
}

// everything holds values that turn on all that the chart offers.
const everything = `
image: {repository: registry.example.com/tare-agent, tag: 0.2.0, pullPolicy: Always}
imagePullSecrets: [{name: registry}]
profile: ""
rules: [{charge: tare, component: cni, comm: "calico-*"}]
maxSeries: 200
webConfig: {secret: tare-agent-web}
nodeSelector: {pool: metal}
tolerations: [{key: node-role.kubernetes.io/control-plane, operator: Exists, effect: NoSchedule}]
priorityClassName: system-node-critical
resources: {limits: {memory: 1Gi}}
seLinuxOptions: {type: spc_t}
hostPaths: [/var/lib/docker/containers]
podMonitor:
  enabled: true
  labels: {release: prometheus}
  interval: 1m
  endpoint: {scheme: https, tlsConfig: {insecureSkipVerify: true}}
prometheusRule: {enabled: true, labels: {release: prometheus}}
networkPolicy: {enabled: true, from: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: monitoring}}}]}
`

// pick returns the first object of a type.
func pick[T any](t *testing.T, objects []metav1.Object) T {
	t.Helper()
	for _, o := range objects {
		if found, ok := any(o).(T); ok {
			return found
		}
	}
	t.Fatalf("the chart makes no %T", *new(T))
	panic("unreachable")
}

// TestChartLint has Helm check the chart, with its own values and with everything turned on.
func TestChartLint(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	write(t, values, everything)
	for _, args := range [][]string{nil, {"--values=" + values}} {
		if out, errs, err := helm(t, append([]string{"lint", "--strict", chart}, args...)...); err != nil {
			t.Errorf("helm lint %v: %v\n%s%s", args, err, out, errs)
		}
	}
}

// TestChartManifests: the manifests for kubectl are what the chart makes by default, and so is the PodMonitor, except
// the namespace, which the chart leaves to the user. With -update it makes them.
func TestChartManifests(t *testing.T) {
	rendered := template(t)
	want, err := os.ReadFile(agentFile)
	if err != nil {
		t.Fatal(err)
	}
	namespace, _, _ := strings.Cut(string(want), "---\n")
	compareManifest(t, agentFile, namespace+plain(rendered))
	rendered = template(t, "--set=podMonitor.enabled=true", "--show-only=templates/podmonitor.yaml")
	compareManifest(t, podMonitorFile, strings.TrimPrefix(plain(rendered), "---\n"))

	kustomization, err := os.ReadFile("kubernetes/kustomization.yaml")
	if err != nil {
		t.Fatal(err)
	}
	image := daemonSet(t).Spec.Template.Spec.Containers[0].Image
	if name, tag, _ := strings.Cut(image, ":"); !strings.Contains(string(kustomization),
		"\n- name: "+name+"\n  newName: "+name+"\n  newTag: "+tag+"\n") {
		t.Errorf("the kustomization is not about the chart's image %s", image)
	}
}

// plain returns what Helm renders without its comments on where each object comes from, and without the empty lines
// between objects.
func plain(rendered string) string {
	rendered = regexp.MustCompile(`(?m)^# Source: .*\n`).ReplaceAllString(rendered, "")
	return strings.TrimSpace(strings.ReplaceAll(rendered, "\n\n---\n", "\n---\n")) + "\n"
}

func compareManifest(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		write(t, path, want)
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s is not what the chart makes: run go test ./deploy -run TestChartManifests -update\n%s", path, want)
	}
}

// TestChartValues: with everything turned on the objects are valid, say what the values say, and give the agent no
// more rights than by default.
func TestChartValues(t *testing.T) {
	values := filepath.Join(t.TempDir(), "values.yaml")
	write(t, values, everything)
	objects := decode(t, "the chart", []byte(template(t, "--values="+values)))
	for _, o := range objects {
		if o.GetName() != "tare-agent" || o.GetNamespace() != "tare" {
			t.Errorf("%T is %s in namespace %q", o, o.GetName(), o.GetNamespace())
		}
	}
	pod, usual := pick[*appsv1.DaemonSet](t, objects).Spec.Template.Spec, daemonSet(t).Spec.Template.Spec
	c := pod.Containers[0]
	if c.Image != "registry.example.com/tare-agent:0.2.0" || c.ImagePullPolicy != corev1.PullAlways ||
		len(pod.ImagePullSecrets) != 1 || pod.PriorityClassName != "system-node-critical" ||
		pod.NodeSelector["pool"] != "metal" || len(pod.Tolerations) != 1 || c.Resources.Limits.Memory().String() != "1Gi" {
		t.Errorf("the pod is not what the values say: %+v", pod)
	}
	if c.LivenessProbe.TCPSocket == nil || c.ReadinessProbe.TCPSocket == nil || c.LivenessProbe.HTTPGet != nil {
		t.Errorf("probes by a kubelet that has no password: %+v", c.LivenessProbe)
	}
	s := *c.SecurityContext
	if s.SELinuxOptions == nil || s.SELinuxOptions.Type != "spc_t" {
		t.Errorf("SELinux: %+v", s.SELinuxOptions)
	}
	if s.SELinuxOptions = nil; !reflect.DeepEqual(s, *usual.Containers[0].SecurityContext) {
		t.Errorf("security context: %+v", s)
	}
	mounted := map[string]bool{}
	for _, m := range c.VolumeMounts {
		mounted[m.MountPath] = m.ReadOnly
	}
	if !mounted["/etc/tare-web"] || !mounted["/host/var/lib/docker/containers"] || !mounted["/host/run"] {
		t.Errorf("mounted, and whether read-only: %v", mounted)
	}
	if i := slices.IndexFunc(pod.Volumes, func(v corev1.Volume) bool { return v.Secret != nil }); i < 0 ||
		pod.Volumes[i].Secret.SecretName != "tare-agent-web" || *pod.Volumes[i].Secret.DefaultMode != 0o400 {
		t.Errorf("volumes: %+v", pod.Volumes)
	}
	const settings = "max-series: 200\nweb.config.file: /etc/tare-web/web.yaml\n" +
		"rules:\n- charge: tare\n  comm: calico-*\n  component: cni\n"
	if got := pick[*corev1.ConfigMap](t, objects).Data["agent.yaml"]; got != settings {
		t.Errorf("settings:\n%s", got)
	}
	policy := pick[*networkingv1.NetworkPolicy](t, objects).Spec
	if len(policy.Ingress) != 1 || len(policy.Ingress[0].From) != 1 || len(policy.Egress) != 0 ||
		policy.Ingress[0].Ports[0].Port.String() != "metrics" || len(policy.PolicyTypes) != 2 {
		t.Errorf("network policy: %+v", policy)
	}
	endpoint := pick[*podMonitor](t, objects).Spec.Endpoints[0]
	if endpoint["scheme"] != "https" || endpoint["interval"] != "1m" || len(endpoint["relabelings"].([]any)) != 3 {
		t.Errorf("endpoint: %v", endpoint)
	}
	got := 0
	for _, g := range pick[*prometheusRule](t, objects).Spec.Groups {
		got += len(g.Rules)
	}
	if want := len(readRules(t)); got != want {
		t.Errorf("%d rules, want %d", got, want)
	}

	digest := "sha256:" + strings.Repeat("0a", 32)
	objects = decode(t, "the chart", []byte(template(t, "--set=image.digest="+digest)))
	pod = pick[*appsv1.DaemonSet](t, objects).Spec.Template.Spec
	if image := pod.Containers[0].Image; image != "tare-agent@"+digest {
		t.Errorf("image by its digest: %s", image)
	}
}

// TestChartRestarts: agents start again if their settings change, and not if something else does.
func TestChartRestarts(t *testing.T) {
	checksum := func(args ...string) string {
		objects := decode(t, "the chart", []byte(template(t, args...)))
		return pick[*appsv1.DaemonSet](t, objects).Spec.Template.Annotations["checksum/settings"]
	}
	usual := checksum()
	if len(usual) != 64 || checksum("--set=podMonitor.enabled=true") != usual || checksum("--set=maxSeries=7") == usual {
		t.Errorf("checksum: %q", usual)
	}
}

// TestChartRefuses: a value that the chart's schema does not allow is an error that names the value.
func TestChartRefuses(t *testing.T) {
	for _, test := range []struct{ set, want string }{
		{"--set=maxSeries=many", "maxSeries"},
		{"--set=maxSeries=0", "maxSeries"},
		{"--set=profile=kubernets", "profile"},
		{"--set=image.tagg=1", "tagg"},
		{"--set=image.digest=sha256:12", "digest"},
		{"--set=privileged=true", "privileged"},
		{"--set=networkPolicy.enabled=true", "networkPolicy/from"},
		{"--set=networkPolicy.enabled=true,networkPolicy.from[0].x=1", "networkPolicy/from/0"},
		{"--set=podMonitor.interval=often", "podMonitor/interval"},
		{"--set=hostPaths[0]=var/lib", "hostPaths/0"},
		{"--set=resources.cpu=1", "cpu"},
	} {
		_, errs, err := helm(t, "template", "tare", chart, test.set)
		if err == nil || !strings.Contains(strings.ReplaceAll(errs, ".", "/"), test.want) || len(errs) > 500 {
			t.Errorf("%s: %v, want an error about %s\n%s", test.set, err, test.want, errs)
		}
	}
}
