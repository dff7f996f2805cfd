// Package agents finds tare-agent on the nodes of a cluster, or deploys it temporarily, and has all agents take a
// window (weigh their nodes for a time) at the same time. Start reading at Cluster.Find, Cluster.Deploy and
// Cluster.Open.
//
// It reaches agents as kubectl port-forward does: through the API server, which authenticates the user, and from the
// pod's own loopback interface, the only one on which an agent without passwords serves windows. No port is opened.
package agents

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	appsapi "k8s.io/api/apps/v1"
	api "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/yaml"
	appsv1 "k8s.io/client-go/kubernetes/typed/apps/v1"
	batchv1 "k8s.io/client-go/kubernetes/typed/batch/v1"
	corev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/pager"

	"tare/deploy"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/scale/remote"
)

// Labels of the objects that kubectl-tare creates in a cluster.
const (
	nameLabel = "app.kubernetes.io/name"
	// InstanceLabel distinguishes the objects of one command from those of others.
	InstanceLabel = "app.kubernetes.io/instance"
	managedLabel  = "app.kubernetes.io/managed-by"

	// RunName is the value of the label app.kubernetes.io/name on the objects of experiments.
	RunName = "tare-run"

	// TemporaryName is the value of that label on temporary agents, and on the objects that give a run access to agents.
	TemporaryName = "tare-agent-temporary"

	installedName = "tare-agent" // as in deploy/kubernetes
	// Manager is the value of the label managed-by on all objects, and their field manager.
	Manager = "kubectl-tare"

	// RunSelector selects the Jobs of experiments.
	RunSelector = nameLabel + "=" + RunName + "," + managedLabel + "=" + Manager
)

const (
	agentPort = 9633 // for a DaemonSet without a port named "metrics"
	pageSize  = 500  // objects in one answer of the API server
)

// Access holds the credentials for installed agents with TLS or a password. Temporary agents require none.
type Access struct {
	CAFile             string // file with the authorities of their certificates, in PEM; empty if they have no TLS
	ServerName         string // the name in their certificates
	User, PasswordFile string
}

// options returns the options for a client of an agent.
func (a *Access) options(address string) remote.Options {
	return remote.Options{Address: address, CAFile: a.CAFile, ServerName: a.ServerName, User: a.User,
		PasswordFile: a.PasswordFile, Prefix: "agents-"}
}

// Check returns a usage fault if the files are invalid.
func (a *Access) Check() error {
	_, err := remote.New(a.options("localhost:1"))
	return err
}

// Cluster is a client of a cluster.
type Cluster struct {
	Access Access // credentials for installed agents

	config *rest.Config
	core   corev1.CoreV1Interface
	apps   appsv1.AppsV1Interface
	batch  batchv1.BatchV1Interface

	tunnels sync.Map // from a port (int) to the frames that open a tunnel to it ([]byte)
}

// New returns a client. It does not contact the cluster.
func New(config *rest.Config) (*Cluster, error) {
	config = rest.CopyConfig(config)
	config.QPS, config.Burst = 100, 200
	core, err := corev1.NewForConfig(config)
	if err != nil {
		return nil, wrong(err)
	}
	apps, err := appsv1.NewForConfig(config)
	if err != nil {
		return nil, wrong(err)
	}
	batch, err := batchv1.NewForConfig(config)
	return &Cluster{config: config, core: core, apps: apps, batch: batch}, wrong(err)
}

func wrong(err error) error {
	return fault.Wrap(err, fault.Usage, "", "see kubectl config view", "the client configuration is invalid")
}

// Core and Batch return clients of the core and batch groups of the cluster's API.
func (c *Cluster) Core() corev1.CoreV1Interface    { return c.core }
func (c *Cluster) Batch() batchv1.BatchV1Interface { return c.batch }

// Agent is the agent of one node.
type Agent struct {
	Node           string
	Namespace, Pod string
	Port           int
	Failed         string // why it cannot be asked; empty if it can
	starting       bool   // it may not listen yet
	temporary      bool   // it requires no TLS and no password
}

// Set identifies a DaemonSet of agents, so that a coordinator can find the agents again.
type Set struct {
	Namespace, Selector string
	UID                 types.UID
	Port                int
	Image               string
	Temporary           bool // the agents may not listen yet, and require no TLS and no password
}

// Find returns the agents of the installed DaemonSet, one for each node that has a pod of it. If none is installed, it
// returns an empty set and no agents. It searches one namespace, or all if namespace is empty. It ignores DaemonSets
// without HostPID, which do not see their node's processes and are not Tare's, and prefers one that has agents: a user
// whose pods may not have HostPID can create a DaemonSet that asks for it, but the cluster refuses its pods.
func (c *Cluster) Find(ctx context.Context, namespace string) (set Set, all []Agent, err error) {
	o := metav1.ListOptions{LabelSelector: nameLabel + "=" + installedName}
	sets, err := c.apps.DaemonSets(namespace).List(ctx, o)
	if err != nil {
		return Set{}, nil, refused(err, "finding installed agents")
	}
	var found, bare []Set // sets that have agents, and sets that have none
	for i := range sets.Items {
		if !sets.Items[i].Spec.Template.Spec.HostPID {
			continue
		}
		s, err := setOf(&sets.Items[i])
		if err != nil {
			return Set{}, nil, err
		}
		agents, err := c.Agents(ctx, s)
		switch {
		case err != nil:
			return Set{}, nil, err
		case len(agents) == 0:
			bare = append(bare, s)
		default:
			found, all = append(found, s), agents
		}
	}
	if len(found) == 0 {
		found = bare
	}
	switch len(found) {
	case 0:
		return Set{}, nil, nil
	case 1:
		return found[0], all, nil
	}
	return Set{}, nil, fault.New(fault.Usage, found[0].Namespace+", "+found[1].Namespace,
		"choose one with --agents-namespace", "tare-agent is installed twice")
}

func setOf(d *appsapi.DaemonSet) (Set, error) {
	selector, err := metav1.LabelSelectorAsSelector(d.Spec.Selector)
	if err != nil {
		return Set{}, fmt.Errorf("the selector of the DaemonSet %s: %w", d.Name, err)
	}
	container := &d.Spec.Template.Spec.Containers[0]
	s := Set{Namespace: d.Namespace, Selector: selector.String(), UID: d.UID, Port: agentPort, Image: container.Image}
	for _, p := range container.Ports {
		if p.Name == "metrics" {
			s.Port = int(p.ContainerPort)
		}
	}
	return s, nil
}

// Agents returns the current agents of a DaemonSet. A pod without HostPID is not one, whoever owns it: users whose pods
// Pod Security restricts can create one by hand and name a DaemonSet of theirs as its owner.
func (c *Cluster) Agents(ctx context.Context, s Set) (agents []Agent, err error) {
	err = c.eachPod(ctx, s.Namespace, s.Selector, func(p *api.Pod) {
		of := metav1.GetControllerOf(p)
		ours := of != nil && of.UID == s.UID && p.Spec.HostPID
		if ours && p.Spec.NodeName != "" && p.DeletionTimestamp == nil {
			agents = append(agents, Agent{Node: p.Spec.NodeName, Namespace: p.Namespace, Pod: p.Name, Port: s.Port,
				Failed: notRunning(p), starting: s.Temporary || isNew(p), temporary: s.Temporary})
		}
	})
	return agents, err
}

// Wanted returns the number of nodes on which the DaemonSet of a set is to have an agent. It is 0 while that is
// unknown, such as just after the DaemonSet was changed.
func (c *Cluster) Wanted(ctx context.Context, s Set) (int, error) {
	sets, err := c.apps.DaemonSets(s.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, refused(err, "finding the DaemonSet of the agents")
	}
	d := lists.Find(sets.Items, func(d *appsapi.DaemonSet) bool { return d.UID == s.UID })
	if d == nil || d.Status.ObservedGeneration != d.Generation {
		return 0, nil
	}
	return int(d.Status.DesiredNumberScheduled), nil
}

// eachPod calls do with each pod that matches a selector. It lists the pods page by page.
func (c *Cluster) eachPod(ctx context.Context, namespace, selector string, do func(*api.Pod)) error {
	list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		return c.core.Pods(namespace).List(ctx, o)
	}
	return refused(each(ctx, list, selector, do), "listing pods")
}

// each calls do with each object that matches a selector. It lists the objects page by page.
func each[T any](ctx context.Context, list pager.ListPageFunc, selector string, do func(*T)) error {
	p := pager.New(func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
		page, err := list(ctx, o)
		// etcd compacts old versions after some minutes. The refusal then has a token for the rest as it is now.
		if of, is := errors.AsType[*apierrors.StatusError](err); is && apierrors.IsResourceExpired(err) &&
			of.ErrStatus.Continue != "" {
			o.Continue = of.ErrStatus.Continue
			return list(ctx, o)
		}
		return page, err
	})
	p.PageSize = pageSize
	return p.EachListItem(ctx, metav1.ListOptions{LabelSelector: selector}, func(o runtime.Object) error {
		do(any(o).(*T))
		return nil
	})
}

// isNew reports whether a container of a pod started within the last minute, so that it may not listen yet.
func isNew(p *api.Pod) bool {
	return slices.ContainsFunc(p.Status.ContainerStatuses, func(s api.ContainerStatus) bool {
		return s.State.Running != nil && time.Since(s.State.Running.StartedAt.Time) < time.Minute
	})
}

// NotStarted reports whether the agent has neither started nor failed yet.
func (a *Agent) NotStarted() bool { return a.Failed == notStarted }

// notRunning returns the reason why the agent of a pod is not running, or "" if it is. It does not judge by containers
// that a mesh injected into the pod.
func notRunning(p *api.Pod) string {
	isAgent := func(s api.ContainerStatus) bool { return s.Name == container }
	named := slices.ContainsFunc(p.Status.ContainerStatuses, isAgent) // otherwise, somebody has renamed the container
	for _, s := range p.Status.ContainerStatuses {
		switch {
		case named && !isAgent(s):
		case s.State.Running != nil:
			return ""
		case s.State.Waiting != nil && s.State.Waiting.Reason != "" && s.State.Waiting.Reason != creating:
			return "its agent waits: " + s.State.Waiting.Reason + ": " + s.State.Waiting.Message
		case s.State.Terminated != nil:
			return "its agent has ended: " + s.State.Terminated.Reason
		}
	}
	if p.Status.Phase == api.PodFailed {
		return "its agent has failed: " + p.Status.Reason + ": " + p.Status.Message
	}
	return notStarted
}

const (
	container  = "agent" // the agent's container in its pod, as in deploy/kubernetes
	creating   = "ContainerCreating"
	notStarted = "its agent has not started"
)

// documents parses YAML documents into objects.
func documents(data []byte) (all []*unstructured.Unstructured, err error) {
	for decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(data), 4096); ; {
		o := &unstructured.Unstructured{}
		if err := decoder.Decode(o); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return nil, fmt.Errorf("reading the manifests: %w", err)
		}
		all = append(all, o)
	}
}

// as converts an object of a manifest to the type of its kind.
func as[T any](o *unstructured.Unstructured) (*T, error) {
	object := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, object); err != nil {
		return nil, fmt.Errorf("reading the manifests: %w", err)
	}
	return object, nil
}

// agentSet returns the DaemonSet from the manifests embedded in this program.
func agentSet() (*appsapi.DaemonSet, error) {
	all, err := documents(deploy.AgentManifests)
	for _, o := range all {
		if o.GetKind() == "DaemonSet" {
			return as[appsapi.DaemonSet](o)
		}
	}
	return nil, cmp.Or(err, errors.New("the manifests have no DaemonSet"))
}

// refused wraps an error of the API server, with a hint.
func refused(err error, doing string) error {
	if err == nil || errors.Is(err, context.Canceled) {
		return err
	}
	return fault.Wrap(err, fault.Machine, "", Hint(err), "%s failed", doing)
}
