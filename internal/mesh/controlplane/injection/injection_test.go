package injection_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	kjson "sigs.k8s.io/json"

	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/injection"
	"tare/internal/mesh/controlplane/injection/probes"
)

const usual = `
sidecar:
  name: mesh-proxy
  image: example.invalid/proxy:1
  args: [--node, "${pod}", --identity, "${identity}"]
  env:
    - {name: TARE_PROBES, value: "${probes}"}
  resources: {requests: {cpu: 10m, memory: 20Mi}}
  volumeMounts: [{name: mesh-run, mountPath: /run/mesh}]
init:
  name: mesh-init
  image: example.invalid/init:1
  args: ["--exclude-in=${excludeInbound}", "--exclude-out=${excludeOutbound}", "$${HOME}"]
  securityContext: {capabilities: {add: [NET_ADMIN]}}
volumes:
  - {name: mesh-run, emptyDir: {medium: Memory}}
probePort: 15020
excludeInbound: [22]
`

func webhook(t testing.TB, config string) *injection.Webhook {
	t.Helper()
	c, err := injection.ParseConfig([]byte(config))
	if err != nil {
		t.Fatal(err)
	}
	a, err := authority.New(authority.Options{})
	if err != nil {
		t.Fatal(err)
	}
	w, err := injection.New(c, injection.Options{Authority: a})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

func simple() *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: "web-7d9f-", Namespace: "shop", Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{
			ServiceAccountName: "web",
			Containers: []corev1.Container{{Name: "app", Image: "example.invalid/web:1",
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}},
			Volumes: []corev1.Volume{{Name: "token"}},
		},
	}
}

// reviewOf makes a review as the API server sends it, with the API server's types.
func reviewOf(t testing.TB, p *corev1.Pod, change func(*admissionv1.AdmissionRequest)) []byte {
	t.Helper()
	object, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	r := &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{
			UID: types.UID("705ab4f5-6393-11e8-b7cc-42010a800002"), Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, Namespace: p.Namespace,
			Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: object},
		},
	}
	if change != nil {
		change(r.Request)
	}
	text, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// post sends a review, and decodes the answer as the API server does.
func post(t testing.TB, w http.Handler, text []byte) *admissionv1.AdmissionResponse {
	t.Helper()
	r := httptest.NewRequest(http.MethodPost, "/inject", bytes.NewReader(text))
	r.Header.Set("Content-Type", "application/json")
	to := httptest.NewRecorder()
	w.ServeHTTP(to, r)
	if to.Code != http.StatusOK {
		t.Fatalf("status %d: %s", to.Code, to.Body)
	}
	var answer admissionv1.AdmissionReview
	if wrong, err := kjson.UnmarshalStrict(to.Body.Bytes(), &answer); err != nil || len(wrong) > 0 {
		t.Fatalf("the answer is no review: %v %v", err, wrong)
	}
	if answer.Response == nil || answer.APIVersion != "admission.k8s.io/v1" || answer.Kind != "AdmissionReview" ||
		answer.Response.UID != "705ab4f5-6393-11e8-b7cc-42010a800002" {
		t.Fatalf("the answer is %+v", answer)
	}
	return answer.Response
}

// inject has a pod injected, and returns the pod that the API server would have: patched with the API server's
// library, and decoded by its decoder, which refuses unknown fields.
func inject(t testing.TB, w http.Handler, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	a := post(t, w, reviewOf(t, p, nil))
	if !a.Allowed || a.PatchType == nil || *a.PatchType != admissionv1.PatchTypeJSONPatch {
		t.Fatalf("not injected: %+v", a)
	}
	return patched(t, p, a.Patch)
}

func patched(t testing.TB, p *corev1.Pod, patch []byte) *corev1.Pod {
	t.Helper()
	before, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	operations, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		t.Fatalf("%v: %s", err, patch)
	}
	after, err := operations.Apply(before)
	if err != nil {
		t.Fatalf("%v: %s", err, patch)
	}
	out := &corev1.Pod{}
	if wrong, err := kjson.UnmarshalStrict(after, out); err != nil || len(wrong) > 0 {
		t.Fatalf("the pod is none any more: %v %v: %s", err, wrong, after)
	}
	return out
}

func names(list []corev1.Container) (all []string) {
	for _, c := range list {
		all = append(all, c.Name)
	}
	return all
}

func TestInject(t *testing.T) {
	w := webhook(t, usual)
	p := inject(t, w, simple())
	if got := names(p.Spec.Containers); !slices.Equal(got, []string{"app", "mesh-proxy"}) {
		t.Errorf("containers %q", got)
	}
	if got := names(p.Spec.InitContainers); !slices.Equal(got, []string{"mesh-init"}) {
		t.Errorf("init containers %q", got)
	}
	if len(p.Spec.Volumes) != 2 || p.Spec.Volumes[1].EmptyDir.Medium != corev1.StorageMediumMemory {
		t.Errorf("volumes %+v", p.Spec.Volumes)
	}
	if want := `{"containers":["mesh-proxy"],"initContainers":["mesh-init"],"volumes":["mesh-run"]}`; p.
		Annotations[injection.StatusKey] != want {
		t.Errorf("annotations %q, want %s", p.Annotations, want)
	}
	proxy := p.Spec.Containers[1]
	const id = "spiffe://mesh.local/ns/shop/sa/web"
	if want := []string{"--node", "web-7d9f-", "--identity", id}; !slices.Equal(proxy.Args, want) {
		t.Errorf("arguments %q, want %q", proxy.Args, want)
	}
	if want := []string{"--exclude-in=22,15020", "--exclude-out=",
		"${HOME}"}; !slices.Equal(p.Spec.InitContainers[0].Args, want) {
		t.Errorf("arguments of init %q, want %q", p.Spec.InitContainers[0].Args, want)
	}
	if got := proxy.Resources.Requests.Cpu().MilliValue(); got != 10 {
		t.Errorf("CPU %d m", got)
	}
	// A pod is injected once, also if another webhook runs after this one.
	if again := post(t, w, reviewOf(t, p, nil)); !again.Allowed || again.Patch != nil ||
		again.AuditAnnotations["skipped"] != "injected" {
		t.Errorf("injected again: %+v", again)
	}
}

func TestKinds(t *testing.T) {
	t.Run("cni", func(t *testing.T) {
		w := webhook(t, `{redirect: cni, sidecar: {name: p, image: i}}`)
		if p := inject(t, w, simple()); len(p.Spec.InitContainers) != 0 || len(p.Spec.Volumes) != 1 {
			t.Errorf("%+v", p.Spec)
		}
	})
	t.Run("native sidecar", func(t *testing.T) {
		w := webhook(t, `{init: {name: r, image: i}, sidecar: {name: p, image: i, restartPolicy: Always}}`)
		own := simple()
		own.Spec.InitContainers = []corev1.Container{{Name: "own"}}
		for _, p := range []*corev1.Pod{inject(t, w, own), inject(t, w, simple())} {
			if got := names(p.Spec.InitContainers); !slices.Equal(got[:2], []string{"r", "p"}) ||
				*p.Spec.InitContainers[1].RestartPolicy != "Always" {
				t.Errorf("init containers %q", got)
			}
			if got := names(p.Spec.Containers); !slices.Equal(got, []string{"app"}) {
				t.Errorf("containers %q", got)
			}
		}
	})
	t.Run("its own init containers come first", func(t *testing.T) {
		w := webhook(t, usual)
		own := simple()
		own.Spec.InitContainers, own.Annotations = []corev1.Container{{Name: "own"}}, map[string]string{"a/b": "c"}
		p := inject(t, w, own)
		if got := names(p.Spec.InitContainers); !slices.Equal(got, []string{"own", "mesh-init"}) ||
			p.Annotations["a/b"] != "c" {
			t.Errorf("init containers %q, annotations %q", got, p.Annotations)
		}
	})
	t.Run("ports", func(t *testing.T) {
		w := webhook(t, usual)
		own := simple()
		own.Annotations = map[string]string{injection.ExcludeInboundKey: "9090, 22", injection.ExcludeOutboundKey: "5432"}
		if got := inject(t, w, own).Spec.InitContainers[0].Args[:2]; !slices.Equal(got,
			[]string{"--exclude-in=22,9090,15020", "--exclude-out=5432"}) {
			t.Errorf("arguments %q", got)
		}
	})
}

func TestLeftAlone(t *testing.T) {
	out := webhook(t, usual)
	in := webhook(t, usual+"opt: in\n")
	for name, c := range map[string]struct {
		w      http.Handler
		pod    func(*corev1.Pod)
		review func(*admissionv1.AdmissionRequest)
		why    string // empty: injected
	}{
		"label": {w: out, pod: func(p *corev1.Pod) { p.Labels[injection.InjectKey] = "false" }, why: "opted-out"},
		"annotation": {w: out, pod: func(p *corev1.Pod) {
			p.Annotations = map[string]string{injection.InjectKey: "false"}
		}, why: "opted-out"},
		"host network":    {w: out, pod: func(p *corev1.Pod) { p.Spec.HostNetwork = true }, why: "host-network"},
		"namespace":       {w: out, pod: func(p *corev1.Pod) { p.Namespace = "kube-system" }, why: "namespace"},
		"nobody asked":    {w: in, why: "not-opted-in"},
		"somebody asked":  {w: in, pod: func(p *corev1.Pod) { p.Labels[injection.InjectKey] = "true" }},
		"label says true": {w: out, pod: func(p *corev1.Pod) { p.Labels[injection.InjectKey] = "true" }},
		"update": {w: out, review: func(r *admissionv1.AdmissionRequest) { r.Operation = admissionv1.Update },
			why: "no-new-pod"},
		"subresource": {w: out, review: func(r *admissionv1.AdmissionRequest) { r.SubResource = "exec" },
			why: "no-new-pod"},
		"not a pod": {w: out, review: func(r *admissionv1.AdmissionRequest) { r.Kind.Kind = "Service" },
			why: "no-new-pod"},
		"another group": {w: out, review: func(r *admissionv1.AdmissionRequest) { r.Kind.Group = "example.invalid" },
			why: "no-new-pod"},
		"metadata is open": {w: out, pod: func(p *corev1.Pod) { p.Labels, p.Annotations = nil, nil }},
	} {
		t.Run(name, func(t *testing.T) {
			p := simple()
			if c.pod != nil {
				c.pod(p)
			}
			a := post(t, c.w, reviewOf(t, p, c.review))
			if !a.Allowed || a.AuditAnnotations["skipped"] != c.why || (a.Patch == nil) != (c.why != "") {
				t.Errorf("%+v", a)
			}
		})
	}
}

func TestProbes(t *testing.T) {
	w := webhook(t, usual)
	own := simple()
	app := &own.Spec.Containers[0]
	app.LivenessProbe = &corev1.Probe{PeriodSeconds: 7, TimeoutSeconds: 3,
		ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: "/healthz?full=1", Port: intstr.FromString("http"), Scheme: corev1.URISchemeHTTPS,
			HTTPHeaders: []corev1.HTTPHeader{{Name: "Host", Value: "web.shop"}}}}}
	app.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(9000)}}}
	app.StartupProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: 9001,
		Service: new("db")}}}
	own.Spec.Containers = append(own.Spec.Containers, corev1.Container{Name: "second",
		LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"true"}}}},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			HTTPGet: &corev1.HTTPGetAction{Host: "example.invalid", Port: intstr.FromInt32(80)}}},
		StartupProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
			TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromString("none")}}}})
	a := post(t, w, reviewOf(t, own, nil))
	p := patched(t, own, a.Patch)
	for i, got := range []*corev1.Probe{p.Spec.Containers[0].LivenessProbe, p.Spec.Containers[0].ReadinessProbe,
		p.Spec.Containers[0].StartupProbe} {
		kind := []string{"liveness", "readiness", "startup"}[i]
		want := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/probe/app/" + kind, Port: intstr.FromInt32(15020)}}
		if fmt.Sprintf("%+v", got.ProbeHandler.HTTPGet) != fmt.Sprintf("%+v", want.HTTPGet) || got.TCPSocket != nil ||
			got.GRPC != nil {
			t.Errorf("%s: %+v", kind, got.ProbeHandler)
		}
	}
	if got := p.Spec.Containers[0].LivenessProbe; got.PeriodSeconds != 7 || got.TimeoutSeconds != 3 {
		t.Errorf("the probe's times: %+v", got)
	}
	before, after := own.Spec.Containers[1], p.Spec.Containers[1]
	if fmt.Sprintf("%+v", before) != fmt.Sprintf("%+v", after) {
		t.Errorf("probes that no sidecar can answer: %+v, want %+v", after, before)
	}
	if len(a.Warnings) != 2 || !strings.Contains(a.Warnings[0], "another host") ||
		!strings.Contains(a.Warnings[1], "not known") {
		t.Errorf("warnings %q", a.Warnings)
	}
	table, err := probes.Parse([]byte(p.Spec.Containers[2].Env[0].Value))
	if err != nil {
		t.Fatal(err)
	}
	got, err := json.Marshal(table)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"/probe/app/liveness":{"http":{"path":"/healthz?full=1","port":8080,"tls":true,"headers":[{"name":"Host","value":"web.shop"}]},"timeout":3},` +
		`"/probe/app/readiness":{"tcp":{"port":9000},"timeout":1},"/probe/app/startup":{"grpc":{"port":9001,"service":"db"},"timeout":1}}`
	if string(got) != want {
		t.Errorf("the table is\n%s, want\n%s", got, want)
	}
}

// TestProbesOfSidecars: probes of init containers that keep running are moved too, even though other init containers
// are inserted before them. The kubelet does not expand variables in probes, so their text must not be expanded in the
// environment either.
func TestProbesOfSidecars(t *testing.T) {
	w := webhook(t, strings.Replace(usual, "name: mesh-proxy", "name: mesh-proxy\n  restartPolicy: Always", 1))
	own := simple()
	always := corev1.ContainerRestartPolicyAlways
	ask := func(path string) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: path,
			Port: intstr.FromInt32(80)}}}
	}
	own.Spec.InitContainers = []corev1.Container{{Name: "once"},
		{Name: "stays", RestartPolicy: &always, StartupProbe: ask("/$(HOME)$$")}}
	p := inject(t, w, own)
	if got := names(p.Spec.InitContainers); !slices.Equal(got, []string{"mesh-init", "mesh-proxy", "once", "stays"}) {
		t.Fatalf("init containers %q", got)
	}
	if got := p.Spec.InitContainers[3].StartupProbe.HTTPGet; got.Path != "/probe/stays/startup" ||
		got.Port.IntValue() != 15020 {
		t.Errorf("its probe is %+v", got)
	}
	text := p.Spec.InitContainers[1].Env[0].Value
	if strings.Contains(text, "$") {
		t.Errorf("the kubelet would expand %s", text)
	}
	table, err := probes.Parse([]byte(text))
	if err != nil || table["/probe/stays/startup"].HTTP.Path != "/$(HOME)$$" {
		t.Errorf("%v: %s", err, text)
	}
}

// A pod that asks for something that is not allowed is refused, with a message for its author.
func TestRefused(t *testing.T) {
	w := webhook(t, usual)
	for name, c := range map[string]struct {
		pod  func(*corev1.Pod)
		code int32
		says string
	}{
		"port": {func(p *corev1.Pod) { p.Annotations = map[string]string{injection.ExcludeInboundKey: "80,http"} }, 422,
			`"http" is not a port`},
		"port 0": {func(p *corev1.Pod) { p.Annotations = map[string]string{injection.ExcludeOutboundKey: "0"} }, 422,
			"1 to 65535"},
		"ports": {func(p *corev1.Pod) {
			p.Annotations = map[string]string{injection.ExcludeInboundKey: strings.Repeat("1,", 1001)}
		}, 422, "more than 1000"},
		"own sidecar": {func(p *corev1.Pod) { p.Spec.Containers[0].Name = "mesh-proxy" }, 422,
			"its own container named \"mesh-proxy\", a name that the mesh uses"},
		"own init": {func(p *corev1.Pod) { p.Spec.InitContainers = []corev1.Container{{Name: "mesh-init"}} }, 422,
			"a name that the mesh uses"},
		"own volume": {func(p *corev1.Pod) { p.Spec.Volumes[0].Name = "mesh-run" }, 422, "a name that the mesh uses"},
		"account":    {func(p *corev1.Pod) { p.Spec.ServiceAccountName = "a/b" }, 422, "cannot be an identity"},
		"containers": {func(p *corev1.Pod) { p.Spec.Containers = nil }, 400, "no containers"},
		"own mount": {func(p *corev1.Pod) {
			p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "mesh-run", MountPath: "/m"}}
		}, 422, "which is the mesh's"},
		"only says so": {func(p *corev1.Pod) { p.Annotations = map[string]string{injection.StatusKey: "injected"} }, 422,
			"has no container"},
	} {
		t.Run(name, func(t *testing.T) {
			p := simple()
			c.pod(p)
			a := post(t, w, reviewOf(t, p, nil))
			if a.Allowed || a.Patch != nil || a.Result == nil || a.Result.Code != c.code ||
				!strings.Contains(a.Result.Message, c.says) {
				t.Errorf("%+v, result %+v", a, a.Result)
			}
		})
	}
}

// Anything that is not a review gets an HTTP error.
func TestMalformed(t *testing.T) {
	w := webhook(t, usual)
	good := string(reviewOf(t, simple(), nil))
	const jsonType = "application/json"
	for name, c := range map[string]struct {
		method, kind, body string
		code               int
	}{
		"get":            {http.MethodGet, jsonType, good, 405},
		"type":           {http.MethodPost, "text/plain", good, 415},
		"no type":        {http.MethodPost, "", good, 415},
		"type with more": {http.MethodPost, jsonType + "; charset=utf-8", good, 200},
		"empty":          {http.MethodPost, jsonType, "", 400},
		"no JSON":        {http.MethodPost, jsonType, "{", 400},
		"list":           {http.MethodPost, jsonType, "[]", 400},
		"null":           {http.MethodPost, jsonType, "null", 400},
		"two":            {http.MethodPost, jsonType, good + good, 400},
		"version": {http.MethodPost, jsonType, strings.Replace(good, "admission.k8s.io/v1", "admission.k8s.io/v1beta1",
			1), 400},
		"kind":       {http.MethodPost, jsonType, strings.Replace(good, `"AdmissionReview"`, `"Pod"`, 1), 400},
		"no request": {http.MethodPost, jsonType, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, 400},
		"no uid": {http.MethodPost, jsonType, strings.Replace(good, "705ab4f5-6393-11e8-b7cc-42010a800002", "",
			1), 400},
		"many objects": {http.MethodPost, jsonType, `{"a":[` + strings.Repeat("{},", 60_000) + `{}]}`, 413},
		"deep": {http.MethodPost, jsonType,
			strings.Repeat(`{"request":`, 20_000) + strings.Repeat("}", 20_000), 400},
		"huge": {http.MethodPost, jsonType, `{"kind":"` + strings.Repeat("x", injection.MaxReview) + `"}`, 413},
	} {
		t.Run(name, func(t *testing.T) {
			for _, length := range []bool{true, false} {
				r := httptest.NewRequest(c.method, "/inject", io.MultiReader(strings.NewReader(c.body)))
				if r.ContentLength = -1; length {
					r.ContentLength = int64(len(c.body))
				}
				if c.kind != "" {
					r.Header.Set("Content-Type", c.kind)
				}
				to := httptest.NewRecorder()
				w.ServeHTTP(to, r)
				if to.Code != c.code {
					t.Errorf("status %d, want %d: %.200s", to.Code, c.code, to.Body)
				}
			}
		})
	}
}

// bomb returns six lists in a few hundred bytes. Each but the first has 9 aliases of the list before it, so that the
// last stands for 531,441 values.
func bomb(indent string) string {
	text := indent + "x0: &x0 [a, a, a, a, a, a, a, a, a]\n"
	for i := 1; i < 6; i++ {
		list := strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*x%d, ", i-1), 9), ", ")
		text += fmt.Sprintf("%sx%d: &x%d [%s]\n", indent, i, i, list)
	}
	return text
}

func TestConfig(t *testing.T) {
	for text, says := range map[string]string{
		`{}`:                                   "init: give",
		`{redirect: cni}`:                      "sidecar: give",
		`{redirect: tproxy}`:                   "neither",
		`{opt: maybe}`:                         "neither",
		`{redirect: cni, sidecar: {image: i}}`: "needs a name",
		`{redirect: cni, init: {name: a}}`:     "leave it out",
		`{redirect: cni, sidecar: {name: a, image: "${imag}"}}`:                "no variable ${imag}",
		`{redirect: cni, sidecar: {name: a, image: "${image"}}`:                "no variable",
		`{redirect: cni, sidecar: {name: "${pod}"}}`:                           "without variables",
		`{redirect: cni, sidecar: {name: a}, probePort: 70000}`:                "is not a port",
		`{redirect: cni, sidecar: {name: a}, excludeInbound: [0]}`:             "is not a port",
		`{redirect: cni, sidecar: {name: a}, volumes: [{emptyDir: {}}]}`:       "volumes[0]",
		`{redirect: cni, sidecar: {name: a}, probePort: 1}`:                    "nothing contains",
		`{sidecar: {name: a}, init: {name: a}}`:                                "the sidecar is also named",
		`{redirect: cni, sidecar: {name: a}, volumes: [{name: v}, {name: v}]}`: "another volume is also named",
		"redirect: cni\nsidecar:\n  name: a\n" +
			bomb("  "): "line 5: its aliases stand for more",
		`{redirect: cni, sidecars: {name: a}}`:                                              "sidecars",
		"a: &a [x, x]\nb: &b [*a, *a]\nredirect: cni\nsidecar: {name: a, args: *b}":         "",
		`{redirect: cni, sidecar: {name: a, env: [{name: A, value: "a\"${namespace}\\"}]}}`: "-",
	} {
		_, err := injection.ParseConfig([]byte(text))
		if says == "-" && err != nil || says != "-" && (err == nil || !strings.Contains(err.Error(), says)) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
}

// Text from pods cannot break out of the strings that it is inserted into.
func TestVariablesAreText(t *testing.T) {
	w := webhook(t, `{redirect: cni, sidecar: {name: p, args: ["a\"${pod}\\"]}}`)
	own := simple()
	own.GenerateName = `x","privileged":true,"y":"\u003c${token}`
	p := inject(t, w, own)
	if got, want := p.Spec.Containers[1].Args[0], `a"`+own.GenerateName+`\`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// FuzzReview: any input gets an answer, and a patch in it can be applied.
func FuzzReview(f *testing.F) {
	w := webhook(f, usual)
	f.Add(reviewOf(f, simple(), nil))
	f.Add([]byte(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"a","kind":{"version":"v1","kind":"Pod"},` +
		`"operation":"CREATE","namespace":"n","object":{"metadata":{"annotations":null},"spec":{"initContainers":[],"volumes":null,` +
		`"containers":[{"name":"a","livenessProbe":{"httpGet":{"port":"x"},"tcpSocket":{"port":1}}}]}}}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		r := httptest.NewRequest(http.MethodPost, "/", bytes.NewReader(text))
		r.Header.Set("Content-Type", "application/json")
		to := httptest.NewRecorder()
		w.ServeHTTP(to, r)
		if to.Code != http.StatusOK {
			return
		}
		var in, out admissionv1.AdmissionReview
		if err := json.Unmarshal(to.Body.Bytes(), &out); err != nil || out.Response == nil {
			t.Fatalf("%v: %s", err, to.Body)
		}
		if out.Response.Patch == nil || json.Unmarshal(text, &in) != nil || in.Request == nil {
			return
		}
		operations, err := jsonpatch.DecodePatch(out.Response.Patch)
		if err != nil {
			t.Fatal(err)
		}
		var twice map[string]json.RawMessage // keys that differ in case only are two here, and one in the API server's types
		if json.Unmarshal(in.Request.Object.Raw, &twice) != nil || wrong(in.Request.Object.Raw) {
			return
		}
		if _, err := operations.Apply(in.Request.Object.Raw); err != nil {
			t.Errorf("%v: %s of %s", err, out.Response.Patch, in.Request.Object.Raw)
		}
	})
}

// wrong says whether the API server would never send an object, because decoding it into the API server's types and
// encoding it again changes it.
func wrong(object []byte) bool {
	var p corev1.Pod
	strict, err := kjson.UnmarshalStrict(object, &p)
	return err != nil || len(strict) > 0
}
