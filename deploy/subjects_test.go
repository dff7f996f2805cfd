package deploy

import (
	"os"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"

	"tare/experiments"
)

// armOf returns the settings of the only arm of a ready-made experiment.
func armOf(t *testing.T, name string) map[string]string {
	t.Helper()
	_, text, found := experiments.File("cluster/" + name)
	var s struct{ Arms map[string]map[string]string }
	if err := yaml.Unmarshal(text, &s); err != nil || !found || len(s.Arms) != 1 {
		t.Fatalf("%s: %v, %d arms", name, err, len(s.Arms))
	}
	for _, arm := range s.Arms {
		return arm
	}
	return nil
}

// TestTracers: the logs that a ready-made experiment counts are those of the DaemonSet in the file for its tracer, and
// the Role in the file is about these.
func TestTracers(t *testing.T) {
	for _, name := range []string{"exectrace", "inspektor-gadget"} {
		var namespace, container string
		var role *rbacv1.Role
		var binding *rbacv1.RoleBinding
		for _, o := range manifests(t, "kubernetes/"+name+".yaml") {
			switch o := o.(type) {
			case *corev1.Namespace:
				namespace = o.Name
				continue
			case *appsv1.DaemonSet:
				container = o.Spec.Template.Spec.Containers[0].Name
			case *rbacv1.Role:
				role = o
			case *rbacv1.RoleBinding:
				binding = o
			}
			if o.GetNamespace() != namespace {
				t.Errorf("%s: %s is in the namespace %s", name, o.GetName(), o.GetNamespace())
			}
		}
		if want := "namespace=" + namespace + ",container=" + container; armOf(t, name)["logs"] != want {
			t.Errorf("%s has the logs %s, want %s", name, armOf(t, name)["logs"], want)
		}
		if role == nil || binding == nil || binding.RoleRef.Name != role.Name {
			t.Errorf("%s: %v, %v", name, role, binding)
		}
	}
}

// TestFalcoValues: the chart's values have one rule, whose alerts the experiment counts.
func TestFalcoValues(t *testing.T) {
	text, err := os.ReadFile("kubernetes/falco-values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		CustomRules map[string]string `yaml:"customRules"`
	}
	var rules []map[string]string
	if err := yaml.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal([]byte(values.CustomRules["tare.yaml"]), &rules); err != nil {
		t.Fatal(err)
	}
	want := armOf(t, "falco")["lines"]
	if len(rules) != 1 || want != `"rule":"`+rules[0]["rule"]+`"` || rules[0]["condition"] == "" ||
		rules[0]["output"] == "" || rules[0]["desc"] == "" || rules[0]["priority"] == "" {
		t.Errorf("%v, and lines are %s", rules, want)
	}
}

// TestCiliumPolicy: the policy selects the pods that the experiment marks.
func TestCiliumPolicy(t *testing.T) {
	text, err := os.ReadFile("kubernetes/cilium-l7.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var policy struct {
		Spec struct {
			EndpointSelector struct {
				MatchLabels map[string]string `yaml:"matchLabels"`
			} `yaml:"endpointSelector"`
		}
	}
	if err := yaml.Unmarshal(text, &policy); err != nil {
		t.Fatal(err)
	}
	key, value, _ := strings.Cut(armOf(t, "cilium-l7")["labels"], "=")
	if labels := policy.Spec.EndpointSelector.MatchLabels; len(labels) != 1 || labels[key] != value || value == "" {
		t.Errorf("%v, want %s=%s", labels, key, value)
	}
}
