package agents

import (
	"slices"
	"testing"

	rbacapi "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tare/deploy"
)

// roles returns the roles in YAML documents.
func roles(t *testing.T, data []byte) (all []*rbacapi.Role) {
	t.Helper()
	objects, err := documents(data)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.GetKind() == "Role" || o.GetKind() == "ClusterRole" {
			role, err := as[rbacapi.Role](o)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, role)
		}
	}
	return all
}

// TestCoordinatorRights: a user with the documented rights has all rights of a coordinator, because Kubernetes lets
// nobody grant a right that they do not have. A coordinator cannot create pods where agents are, or change rights.
func TestCoordinatorRights(t *testing.T) {
	users := append(roles(t, deploy.RunRights), roles(t, deploy.WeighRights)...)
	has := func(namespace, group, resource, verb string) bool {
		return slices.ContainsFunc(users, func(r *rbacapi.Role) bool {
			return (r.Kind == "ClusterRole" || r.Namespace == namespace) &&
				slices.ContainsFunc(r.Rules, func(p rbacapi.PolicyRule) bool {
					return slices.Contains(p.APIGroups, group) && slices.Contains(p.Resources, resource) &&
						slices.Contains(p.Verbs, verb)
				})
		})
	}
	coordinators := roles(t, deploy.CoordinatorRights)
	if len(coordinators) != 2 {
		t.Fatalf("it has %d roles", len(coordinators))
	}
	for _, r := range coordinators {
		for _, p := range r.Rules {
			of := p.APIGroups[0]
			if len(p.APIGroups) > 1 || of != "" && (of != "apps" || !slices.Equal(p.Verbs, []string{"list"})) {
				t.Errorf("it may %v %v of %v", p.Verbs, p.Resources, p.APIGroups)
			}
			for _, resource := range p.Resources {
				for _, verb := range p.Verbs {
					if !has(r.Namespace, p.APIGroups[0], resource, verb) {
						t.Errorf("a user may not %s %s in %s", verb, resource, r.Namespace)
					}
					if r.Namespace == deploy.AgentsNamespace && verb != "list" && resource != "pods/portforward" {
						t.Errorf("it may %s %s where agents are", verb, resource)
					}
				}
			}
		}
	}
}

// TestGranted: the objects that grant a run's rights have the name of their owner and belong to it, in both namespaces.
func TestGranted(t *testing.T) {
	owned := func(namespace, name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{InstanceLabel: name},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: name, UID: "u"}}}
	}
	all, err := granted(owned("shop", "tare-1"), owned("ops", "agents-1"))
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]int{}
	for _, o := range all {
		in[o.GetNamespace()+"/"+o.GetName()]++
		if len(o.GetOwnerReferences()) != 1 || o.GetOwnerReferences()[0].Name != o.GetName() {
			t.Errorf("%s belongs to %v", nameOf(o), o.GetOwnerReferences())
		}
		if o.GetKind() == "RoleBinding" {
			b, err := as[rbacapi.RoleBinding](o)
			if err != nil || len(b.Subjects) != 1 || b.Subjects[0].Name != "tare-1" || b.Subjects[0].Namespace != "shop" ||
				b.RoleRef.Name != o.GetName() {
				t.Errorf("%+v, %v", b, err)
			}
		}
	}
	if in["shop/tare-1"] != 3 || in["ops/agents-1"] != 2 || len(in) != 2 {
		t.Errorf("%v", in)
	}
}
