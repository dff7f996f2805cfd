package agents

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	authapi "k8s.io/api/authorization/v1"
	rbacapi "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	authv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
	"k8s.io/client-go/rest"

	"tare/deploy"
	"tare/internal/lib/lists"
)

// Grant creates a coordinator's service account and its rights in the run's namespace and in that of the agents.
// Objects in the run's namespace take their name, labels and owner from run, and the others from agents.
func (c *Cluster) Grant(ctx context.Context, run, agents metav1.ObjectMeta) error {
	all, err := granted(run, agents)
	if err != nil {
		return err
	}
	for _, o := range all {
		r, err := c.resource(o)
		if err == nil {
			_, err = r.Create(ctx, o, metav1.CreateOptions{FieldManager: Manager})
		}
		if err != nil {
			return fmt.Errorf("making %s: %w", nameOf(o), err)
		}
	}
	return nil
}

// granted returns the objects that Grant creates.
func granted(run, agents metav1.ObjectMeta) ([]*unstructured.Unstructured, error) {
	all, err := documents(deploy.CoordinatorRights)
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		owned := map[string]*metav1.ObjectMeta{deploy.RunsNamespace: &run, deploy.AgentsNamespace: &agents}[o.GetNamespace()]
		o.SetName(owned.Name)
		o.SetNamespace(owned.Namespace)
		o.SetLabels(owned.Labels)
		o.SetAnnotations(owned.Annotations)
		o.SetOwnerReferences(owned.OwnerReferences)
		if o.GetKind() == "RoleBinding" {
			err = cmp.Or(unstructured.SetNestedField(o.Object, owned.Name, "roleRef", "name"),
				unstructured.SetNestedSlice(o.Object, []any{map[string]any{"kind": "ServiceAccount", "name": run.Name,
					"namespace": run.Namespace}}, "subjects"))
			if err != nil {
				return nil, fmt.Errorf("reading the manifests: %w", err)
			}
		}
	}
	return all, nil
}

// Right is the right to do something with objects of one kind in a namespace, or in all if Namespace is empty.
type Right struct{ Verb, Resource, Namespace string }

func (r Right) String() string {
	return r.Verb + " " + r.Resource + " in " + cmp.Or(r.Namespace, "all namespaces")
}

// Deploys reports whether the right, one of deploy.WeighRights, is needed only to deploy temporary agents.
func (r Right) Deploys() bool { return r.Namespace != "" && r.Resource != "pods/portforward" }

// Rights describes several rights.
func Rights(all []Right) string { return strings.Join(lists.Map(all, Right.String), "; ") }

// Missing returns those rights that the given roles (YAML documents) list and the user lacks. namespaces maps the
// namespace of each Role to the one in which its rights are checked.
func (c *Cluster) Missing(ctx context.Context, roles []byte, namespaces map[string]string) (
	missing []Right, err error,
) {
	client, err := authv1.NewForConfig(c.config)
	if err != nil {
		return nil, wrong(err)
	}
	all, err := documents(roles)
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		role, err := as[rbacapi.Role](o) // a ClusterRole has the same fields
		if err != nil {
			return nil, err
		}
		in := ""
		if role.Kind == "Role" {
			in = namespaces[role.Namespace]
		}
		for _, rule := range role.Rules {
			for _, resource := range rule.Resources {
				for _, verb := range rule.Verbs {
					name, sub, _ := strings.Cut(resource, "/")
					review, err := client.SelfSubjectAccessReviews().Create(ctx, &authapi.SelfSubjectAccessReview{
						Spec: authapi.SelfSubjectAccessReviewSpec{ResourceAttributes: &authapi.ResourceAttributes{
							Namespace: in, Verb: verb, Group: rule.APIGroups[0], Resource: name, Subresource: sub}},
					}, metav1.CreateOptions{})
					if err != nil {
						return nil, refused(err, "asking for rights")
					}
					if !review.Status.Allowed {
						missing = append(missing, Right{verb, resource, in})
					}
				}
			}
		}
	}
	return missing, nil
}

// Version returns the version of the API server.
func (c *Cluster) Version(ctx context.Context) (string, error) {
	var v struct{ GitVersion string }
	data, err := c.core.RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err == nil {
		err = yaml.Unmarshal(data, &v)
	}
	return v.GitVersion, refused(err, "asking for the version")
}

// now returns the API server's time, as in the creation times of objects. The clock of this machine may be wrong.
func (c *Cluster) now(ctx context.Context) (now time.Time, err error) {
	client, err := rest.HTTPClientFor(c.config)
	if err != nil {
		return now, wrong(err)
	}
	url := c.core.RESTClient().Get().AbsPath("/version").URL().String()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return now, err
	}
	answer, err := client.Do(request)
	if err == nil {
		answer.Body.Close()
		now, err = http.ParseTime(answer.Header.Get("Date")) // a refusal has this header, too
	}
	return now, refused(err, "asking for the time")
}

// PodSecurity returns the Pod Security level that a namespace enforces by its label; empty if it has no such label.
func (c *Cluster) PodSecurity(ctx context.Context, namespace string) (level string, err error) {
	n, err := c.core.Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return "", refused(err, "reading the namespace "+namespace)
	}
	return n.Labels["pod-security.kubernetes.io/enforce"], nil
}
