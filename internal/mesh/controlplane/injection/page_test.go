package injection_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	kjson "sigs.k8s.io/json"

	"tare/internal/mesh/controlplane/injection/probes"
)

// TestPage: the examples in docs/injection.md work as they are: the webhook's configuration, whose proxy has the
// arguments that 'tare controlplane pod' requires, and the API server's configuration.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/injection.md")
	if err != nil {
		t.Fatal(err)
	}
	var blocks []string
	for i, part := range strings.Split(string(page), "```") {
		if text, is := strings.CutPrefix(part, "yaml\n"); i%2 == 1 && is {
			blocks = append(blocks, text)
		}
	}
	if len(blocks) != 2 {
		t.Fatalf("%d blocks of YAML", len(blocks))
	}
	p := inject(t, webhook(t, blocks[0]), simple())
	proxy := p.Spec.Containers[len(p.Spec.Containers)-1]
	for flag, want := range map[string]string{"--node": "shop.web", "--identity": "spiffe://mesh.local/ns/shop/sa/web",
		"--probes": ":15020", "--token-file": "/run/mesh/token"} {
		if i := slices.Index(proxy.Args, flag); i < 0 || proxy.Args[i+1] != want {
			t.Errorf("%s is not %s: %q", flag, want, proxy.Args)
		}
	}
	if i := slices.Index(proxy.Args, "--"); !slices.Equal(proxy.Command, []string{"tare", "controlplane", "pod"}) ||
		i < 0 ||
		proxy.Args[i+1] != "envoy" {
		t.Errorf("the pod runs %q %q", proxy.Command, proxy.Args)
	}
	env := map[string]string{}
	for _, e := range proxy.Env {
		env[e.Name] = e.Value
	}
	if _, err := probes.Parse([]byte(env["TARE_PROBES"])); err != nil ||
		!strings.Contains(env["TARE_ROOTS"], "BEGIN CERTIFICATE") {
		t.Errorf("%v: %q", err, env)
	}
	last := p.Spec.Volumes[len(p.Spec.Volumes)-1]
	if last.Projected == nil || last.Projected.Sources[0].ServiceAccountToken.Audience != "tare" ||
		proxy.VolumeMounts[0].Name != last.Name {
		t.Errorf("the volume with the token is %+v", last)
	}

	text, err := yaml.YAMLToJSON([]byte(blocks[1]))
	if err != nil {
		t.Fatal(err)
	}
	var c admissionregistrationv1.MutatingWebhookConfiguration
	text = []byte(strings.Replace(string(text), "LS0t...", "LS0t", 1)) // the page abbreviates the base64
	if wrong, err := kjson.UnmarshalStrict(text, &c); err != nil || len(wrong) > 0 || len(c.Webhooks) != 1 {
		t.Errorf("the webhook's configuration: %v %v", err, wrong)
	}
}
