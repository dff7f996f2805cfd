package agents

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	authapi "k8s.io/api/authorization/v1"
	rbacapi "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	authv1 "k8s.io/client-go/kubernetes/typed/authorization/v1"
)

// Missing returns which of the rights of some roles (YAML documents) the user does not have, where those of a Role are
// asked for in a namespace.
func (c *Cluster) Missing(ctx context.Context, roles []byte, namespace string) (missing []string, err error) {
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
			in = namespace
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
						where := cmp.Or(in, "all namespaces")
						missing = append(missing, fmt.Sprintf("%s %s in %s", verb, resource, where))
					}
				}
			}
		}
	}
	return missing, nil
}

// Version is the version of the API server.
func (c *Cluster) Version(ctx context.Context) (string, error) {
	var v struct{ GitVersion string }
	data, err := c.core.RESTClient().Get().AbsPath("/version").DoRaw(ctx)
	if err == nil {
		err = yaml.Unmarshal(data, &v)
	}
	return v.GitVersion, refused(err, "asking for the version")
}

// PodSecurity is the level of Pod Security that a namespace enforces by its label; empty: it says none.
func (c *Cluster) PodSecurity(ctx context.Context, namespace string) (level string, err error) {
	n, err := c.core.Namespaces().Get(ctx, namespace, metav1.GetOptions{})
	if err != nil {
		return "", refused(err, "reading the namespace "+namespace)
	}
	return n.Labels["pod-security.kubernetes.io/enforce"], nil
}
