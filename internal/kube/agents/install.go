package agents

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	appsapi "k8s.io/api/apps/v1"
	api "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"tare/deploy"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/lib/text"
)

// InstalledNamespace is the default namespace of Install.
const InstalledNamespace = "tare"

// createdLabel, with the value Manager, is the label of a namespace that Install has created, and that Uninstall may
// therefore delete with all that is in it. podSecurityLabel holds the Pod Security level that a namespace enforces on
// its pods (kubernetes.io/docs/concepts/security/pod-security-admission).
const (
	createdLabel     = "app.kubernetes.io/created-by"
	podSecurityLabel = "pod-security.kubernetes.io/enforce"
	privileged       = "privileged"
	namespaceKind    = "Namespace"
)

// objects returns the objects that Install applies, in order. Their label lets Uninstall recognize them.
func objects(namespace, image string) ([]*unstructured.Unstructured, error) {
	all, err := documents(deploy.AgentManifests)
	if err != nil {
		return nil, err
	}
	for _, o := range all {
		labels := o.GetLabels()
		if labels == nil {
			labels = map[string]string{}
		}
		labels[managedLabel] = Manager
		if o.GetKind() == namespaceKind {
			labels[createdLabel] = Manager
			o.SetLabels(labels)
			o.SetName(namespace)
			continue
		}
		o.SetLabels(labels)
		if o.GetKind() == "DaemonSet" {
			containers, _, err := unstructured.NestedSlice(o.Object, "spec", "template", "spec", "containers")
			if err == nil {
				containers[0].(map[string]any)["image"] = image
				err = unstructured.SetNestedSlice(o.Object, containers, "spec", "template", "spec", "containers")
			}
			if err != nil {
				return nil, fmt.Errorf("reading the manifests: %w", err)
			}
		}
		o.SetNamespace(namespace)
	}
	return all, nil
}

// resource returns a client for an object's kind. The plural of each kind in the manifests ends in "s".
func (c *Cluster) resource(o *unstructured.Unstructured) (dynamic.ResourceInterface, error) {
	client, err := dynamic.NewForConfig(c.config)
	if err != nil {
		return nil, wrong(err)
	}
	kind := o.GroupVersionKind()
	r := client.Resource(schema.GroupVersionResource{Group: kind.Group, Version: kind.Version,
		Resource: strings.ToLower(kind.Kind) + "s"})
	if o.GetNamespace() == "" {
		return r, nil
	}
	return r.Namespace(o.GetNamespace()), nil
}

// ownLabel returns the label that, with the value Manager, marks an object as Install's.
func ownLabel(o *unstructured.Unstructured) string {
	if o.GetKind() == namespaceKind {
		return createdLabel
	}
	return managedLabel
}

// Install installs tare-agent on every node permanently, or updates it, and returns the time at which it began, by the
// API server's clock. It calls say with each object that it has applied. A namespace that Install has not created stays
// as it is. If any other object exists that Install has not created, Install changes nothing and returns an error.
func (c *Cluster) Install(ctx context.Context, namespace, image string, say func(what string)) (
	began time.Time, err error,
) {
	all, err := objects(namespace, image)
	if err != nil {
		return began, err
	}
	var own []*unstructured.Unstructured
	for _, o := range all {
		theirs, err := c.isTheirs(ctx, o)
		if err != nil {
			return began, err
		}
		if !theirs {
			own = append(own, o)
		}
	}
	if began, err = c.now(ctx); err != nil {
		return began, err
	}
	for _, o := range own {
		r, err := c.resource(o)
		if err != nil {
			return began, err
		}
		if _, err := r.Apply(ctx, o.GetName(), o, metav1.ApplyOptions{FieldManager: Manager}); err != nil {
			if apierrors.IsConflict(err) {
				return began, fault.Wrap(err, fault.Usage, "", byOthers, "%s is managed by another tool", nameOf(o))
			}
			return began, refused(err, "installing "+nameOf(o))
		}
		say(nameOf(o))
	}
	return began, nil
}

// WaitInstalled waits for a limited time until the agent of each node is ready and none is of an earlier installation.
// If the time is over, the error names the agents that are not ready. If the cluster has refused to create an agent
// since the given time, WaitInstalled returns the cluster's reason at once.
func (c *Cluster) WaitInstalled(ctx context.Context, namespace string, since time.Time, within time.Duration) error {
	for began := time.Now(); ; {
		set, err := c.apps.DaemonSets(namespace).Get(ctx, installedName, metav1.GetOptions{})
		if err != nil {
			return refused(err, "looking for the agents")
		}
		s := &set.Status
		observed := s.ObservedGeneration >= set.Generation
		created := s.CurrentNumberScheduled >= s.DesiredNumberScheduled
		ready := min(s.UpdatedNumberScheduled, s.NumberReady)
		switch {
		case observed && created && ready >= s.DesiredNumberScheduled:
			return nil
		case observed && !created:
			err = c.refusal(ctx, namespace, "involvedObject.uid="+string(set.UID), since, admits(namespace))
		}
		if err != nil {
			return err
		}
		if time.Since(began) >= within {
			state := "the cluster has created no agents"
			if observed {
				state = fmt.Sprintf("%d of %d nodes have an agent that is ready%s", ready, s.DesiredNumberScheduled,
					c.unready(ctx, set))
			}
			return fault.New(fault.Machine, "namespace "+namespace, fmt.Sprintf("look with kubectl tare doctor, or kubectl "+
				"describe daemonset/%s -n %s", installedName, namespace), "after %v, %s", within, state)
		}
		if err := pace.Sleep(ctx, startPoll); err != nil {
			return err
		}
	}
}

// unready describes the agents that exist and are not ready.
func (c *Cluster) unready(ctx context.Context, set *appsapi.DaemonSet) (all string) {
	var nodes lists.Groups[string, string]
	_ = c.eachPod(ctx, set.Namespace, metav1.FormatLabelSelector(set.Spec.Selector), func(p *api.Pod) {
		ready := slices.ContainsFunc(p.Status.Conditions, func(c api.PodCondition) bool {
			return c.Type == api.PodReady && c.Status == api.ConditionTrue
		})
		if of := metav1.GetControllerOf(p); of != nil && of.UID == set.UID && !ready {
			nodes.Add(cmp.Or(notRunning(p), "its agent does not answer"), cmp.Or(p.Spec.NodeName, "(no node yet)"))
		}
	}) // without the right to list pods, only their number is known
	for why, of := range nodes.All() {
		all += "; " + text.ClipLine(strings.Join(of, ", "), maxReason) + ": " + text.ClipLine(why, maxReason)
	}
	return text.ClipLine(all, maxRefusal)
}

// admits returns the hint for a namespace that refuses the agents' pods.
func admits(namespace string) string {
	return fmt.Sprintf("choose another with -n, or kubectl label --overwrite namespace %s %s=%s", namespace,
		podSecurityLabel, privileged)
}

const byOthers = "change it with the tool that installed it, or remove it first"

// isTheirs reports whether the cluster has an object of o's kind and name that Install has not created. Only for a
// namespace that admits the agents' pods does it return true without an error. Any other object is an error, because
// Apply would take it over without a conflict if its values are equal.
func (c *Cluster) isTheirs(ctx context.Context, o *unstructured.Unstructured) (bool, error) {
	r, err := c.resource(o)
	if err != nil {
		return false, err
	}
	is, err := r.Get(ctx, o.GetName(), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && is.GetLabels()[ownLabel(o)] == Manager:
		return false, nil
	case err != nil:
		return false, refused(err, "looking for "+nameOf(o))
	case o.GetKind() != namespaceKind:
		return true, fault.New(fault.Usage, "", byOthers, "%s was not created by kubectl tare install", nameOf(o))
	}
	if level := is.GetLabels()[podSecurityLabel]; level != "" && level != privileged {
		return true, fault.New(fault.Usage, nameOf(o), admits(o.GetName()),
			"it has the Pod Security level %s, which refuses pods that see the whole node", text.Clip(level))
	}
	return true, nil
}

// goneWithin is the longest time that Uninstall waits until an object is gone. It is long because a namespace is
// removed only after everything in it.
const goneWithin = 2 * time.Minute

// Uninstall removes everything that Install has applied to a namespace, and then, if Install has created it, the
// namespace itself with all that is in it. Objects without Install's labels stay. It calls say with each object when it
// is gone.
func (c *Cluster) Uninstall(ctx context.Context, namespace string, say func(what string)) error {
	all, err := objects(namespace, "")
	if err != nil {
		return err
	}
	for i := range all {
		o := all[len(all)-1-i] // the namespace last
		r, err := c.resource(o)
		if err != nil {
			return err
		}
		is, err := r.Get(ctx, o.GetName(), metav1.GetOptions{})
		if err == nil && is.GetLabels()[ownLabel(o)] != Manager {
			continue
		}
		if err == nil {
			err = r.Delete(ctx, o.GetName(), metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground),
				Preconditions: &metav1.Preconditions{UID: new(is.GetUID())}})
		}
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return refused(err, "removing "+nameOf(o))
		default:
			if err := gone(ctx, r, is); err != nil {
				return err
			}
			say(nameOf(o))
		}
	}
	return nil
}

// gone waits until an object that is being removed is gone.
func gone(ctx context.Context, r dynamic.ResourceInterface, o *unstructured.Unstructured) error {
	waiting, cancel := context.WithTimeout(ctx, goneWithin)
	defer cancel()
	for {
		is, err := r.Get(waiting, o.GetName(), metav1.GetOptions{})
		switch {
		case apierrors.IsNotFound(err), err == nil && is.GetUID() != o.GetUID():
			return nil
		case err != nil && waiting.Err() == nil:
			return refused(err, "removing "+nameOf(o))
		}
		if pace.Sleep(waiting, startPoll) != nil {
			return cmp.Or(ctx.Err(), error(fault.New(fault.Machine, nameOf(o), "look at it with kubectl describe: "+
				"something in the cluster holds it back", "it is still being removed after %v", goneWithin)))
		}
	}
}

func nameOf(o *unstructured.Unstructured) string {
	if o.GetNamespace() == "" {
		return strings.ToLower(o.GetKind()) + "/" + o.GetName()
	}
	return strings.ToLower(o.GetKind()) + "/" + o.GetName() + " in " + o.GetNamespace()
}
