package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"

	envoytest "tare/test/envoy"
	"tare/test/port"
)

// TestInjection: the sidecars that a control plane's webhook adds to two pods let one pod reach the other. The test
// starts them, Envoys, as the pods specify. They get certificates with the pods' tokens, and the kubelet's probes come
// through.
func TestInjection(t *testing.T) {
	envoy, temporary := envoytest.Path(t), t.TempDir()
	app := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "here")
	}))
	defer app.Close()
	inbound, outbound, probed := port.Free(t), port.Free(t), port.Free(t)
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	mesh := write("mesh.yaml", fmt.Sprintf(`
mtls: strict
discovery: policy
services:
  - {name: web, protocol: http, identity: shop/web, access: [{from: [shop/client]}], endpoints: [{address: "%s"}]}
proxies:
  - {id: web, identity: shop/web, inbound: {web: {listen: "%s", to: "%s"}}, outbound: {}}
  - {id: client, identity: shop/client, outbound: {web: "%s"}}
`, inbound, inbound, app.Listener.Addr(), outbound))
	address := port.Free(t)
	cluster := newCluster(t)
	_, probePort, err := net.SplitHostPort(probed)
	if err != nil {
		t.Fatal(err)
	}
	what := write("pods.yaml", fmt.Sprintf(`
redirect: cni
sidecar:
  name: mesh-proxy
  image: example.invalid/envoy:1
  args: [controlplane, pod, --address, "%s", --node, "${account}", --identity, "${identity}"]
  env:
    - {name: TARE_ROOTS, value: "${roots}"}
    - {name: TARE_PROBES, value: "${probes}"}
probePort: %s
`, address, probePort))
	plane := command{timeout: 5 * time.Minute,
		args: []string{"controlplane", "--human", "--config", mesh, "--listen", address,
			"--service-account-keys", write("keys.json", cluster.keys(t)), "--webhook", "127.0.0.1:0", "--injection", what,
			"--admin", "127.0.0.1:0"}}.start(t)
	said := regexp.MustCompile(`metrics: (http://[^;]+);[^\n]*\npods are reviewed at https://([^/]+)/; caBundle: (\S+)\n`)
	plane.waitFor(t, "caBundle")
	m := said.FindStringSubmatch(plane.stdout.String())
	if m == nil {
		t.Fatalf("the control plane says: %s", plane.stdout.String())
	}
	metrics, hook := m[1], m[2]
	bundle, err := base64.StdEncoding.DecodeString(m[3])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(bundle) {
		t.Fatalf("the bundle is none: %s", bundle)
	}
	// An API server expects the name of the webhook's service in its certificate, too.
	apiserver := &http.Client{Timeout: time.Minute, Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "controlplane.tare-system.svc"}}}
	defer apiserver.CloseIdleConnections()

	web := podOf("web")
	web.Spec.Containers[0].ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{
		HTTPGet: &corev1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(int32(app.Listener.Addr().(*net.TCPAddr).Port))}}}
	var pods []*process
	probe := "" // URL of the kubelet's probe, as the injected pod has it
	for _, p := range []*corev1.Pod{web, podOf("client")} {
		out := injected(t, apiserver, "https://"+hook+"/", p)
		sidecar := out.Spec.Containers[len(out.Spec.Containers)-1]
		// In a cluster, the kubelet writes this file.
		token := write(p.Spec.ServiceAccountName, cluster.token(t, p.Namespace, p.Spec.ServiceAccountName))
		c := command{timeout: 5 * time.Minute, args: append(sidecar.Args, "--token-file", token),
			env: []string{"TMPDIR=" + temporary}}
		for _, e := range sidecar.Env {
			c.env = append(c.env, e.Name+"="+e.Value)
		}
		if get := out.Spec.Containers[0].ReadinessProbe; get != nil {
			if get.HTTPGet == nil || get.HTTPGet.Port.String() != probePort {
				t.Fatalf("the probe goes to %+v", get.ProbeHandler)
			}
			c.args = append(c.args, "--probes", "127.0.0.1:"+probePort)
			probe = "http://" + net.JoinHostPort("127.0.0.1", probePort) + get.HTTPGet.Path
		}
		c.args = append(c.args, "--", envoy, "--concurrency", "1", "--disable-hot-restart", "--log-level", "warning")
		pods = append(pods, c.start(t))
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		r, err := http.Get("http://" + outbound + "/")
		if err == nil {
			text, _ := io.ReadAll(r.Body)
			r.Body.Close()
			if r.StatusCode == http.StatusOK && string(text) == "here" {
				break
			}
			err = fmt.Errorf("status %d: %s", r.StatusCode, text)
		}
		if time.Now().After(deadline) {
			t.Fatalf("one pod does not reach the other: %v", err)
		}
	}
	if got := statusOf(t, probe); got != http.StatusOK {
		t.Errorf("the probe gets %d", got)
	}
	app.Close()
	if got := statusOf(t, probe); got != http.StatusServiceUnavailable {
		t.Errorf("the probe of an application that has gone gets %d", got)
	}
	r, err := http.Get(metrics)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	if want := `tare_injection_reviews_total{result="injected",why=""} 2`; !strings.Contains(string(text), want) {
		t.Errorf("the metrics lack %s", want)
	}
	for _, p := range pods {
		p.signal(t, syscall.SIGTERM)
		if o := p.wait(t); o.code != 0 {
			t.Error(o)
		}
	}
	noScratch(t, temporary)
}

// cluster signs the tokens of service accounts, as a Kubernetes cluster does.
type cluster struct{ key jose.JSONWebKey }

func newCluster(t *testing.T) cluster {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	return cluster{jose.JSONWebKey{Key: key, KeyID: "one", Algorithm: string(jose.RS256), Use: "sig"}}
}

func (c cluster) keys(t *testing.T) string {
	t.Helper()
	text, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{c.key.Public()}})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func (c cluster) token(t *testing.T, namespace, account string) string {
	t.Helper()
	s, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.RS256, Key: c.key}, nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := jwt.Signed(s).Claims(jwt.Claims{Issuer: "https://kubernetes.default.svc.cluster.local",
		Audience: jwt.Audience{"tare"},
		Subject:  "system:serviceaccount:" + namespace + ":" + account, Expiry: jwt.NewNumericDate(time.Now().Add(time.Hour)),
	}).Claims(map[string]any{"kubernetes.io": map[string]any{"namespace": namespace,
		"serviceaccount": map[string]string{"name": account}}}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func podOf(account string) *corev1.Pod {
	return &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: account + "-", Namespace: "shop"},
		Spec: corev1.PodSpec{ServiceAccountName: account,
			Containers: []corev1.Container{{Name: "app", Image: "example.invalid/app:1"}}}}
}

// injected returns a pod as it is after a webhook's review.
func injected(t *testing.T, c *http.Client, url string, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	object, err := json.Marshal(p)
	if err != nil {
		t.Fatal(err)
	}
	review, err := json.Marshal(&admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: "a-uid", Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"},
			Namespace: p.Namespace, Operation: admissionv1.Create, Object: runtime.RawExtension{Raw: object}}})
	if err != nil {
		t.Fatal(err)
	}
	r, err := c.Post(url, "application/json", bytes.NewReader(review))
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.ProtoMajor != 2 {
		t.Errorf("the webhook speaks HTTP/%d", r.ProtoMajor)
	}
	var answer admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&answer); err != nil {
		t.Fatal(err)
	}
	patch, err := jsonpatch.DecodePatch(answer.Response.Patch)
	if err == nil {
		object, err = patch.Apply(object)
	}
	out := &corev1.Pod{}
	if err == nil {
		err = json.Unmarshal(object, out)
	}
	if err != nil {
		t.Fatalf("%v: %+v", err, answer.Response)
	}
	return out
}

func statusOf(t *testing.T, url string) int {
	t.Helper()
	r, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	r.Body.Close()
	return r.StatusCode
}
