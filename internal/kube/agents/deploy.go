package agents

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsapi "k8s.io/api/apps/v1"
	batchapi "k8s.io/api/batch/v1"
	api "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/rand"

	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/text"
)

// Deployment configures agents that are deployed for one window.
type Deployment struct {
	Namespace string // an existing one that allows privileged pods
	Image     string
	Lifetime  time.Duration // time after which the cluster itself removes them
}

// Temporary is a set of agents that live no longer than their Deployment allows, whatever happens to this process.
//
// They belong to a Job that runs no pod. The Job fails at its deadline (activeDeadlineSeconds) and is then removed
// (ttlSecondsAfterFinished), and the garbage collector removes everything that it owns. The Job is created first, so
// nothing can be left behind. Because it runs no pod, it needs no rights in the cluster and no image.
type Temporary struct {
	Owned metav1.ObjectMeta // metadata for further objects that belong to the Job
	Set   Set

	c *Cluster
}

const (
	lifetimeKey  = "tare/lifetime-seconds" // annotation
	removeWithin = 10 * time.Second
	startPoll    = 300 * time.Millisecond
	refusedAfter = 3 * time.Second // if there is no pod by then, the cluster is asked for the reason
)

// Deploy creates agents on all nodes, and returns without waiting for them. The caller must remove what it returns,
// even after an error. It returns nil only if nothing was created.
func (c *Cluster) Deploy(ctx context.Context, d Deployment) (*Temporary, error) {
	set, err := agentSet()
	if err != nil {
		return nil, err
	}
	t := &Temporary{c: c}
	pod := &set.Spec.Template.Spec
	temporary(pod, d.Image)
	maybe := false
	t.Owned, maybe, err = c.MakeOwner(ctx, Owner{What: TemporaryName, Namespace: d.Namespace,
		Name: installedName + "-" + rand.String(5), Lifetime: d.Lifetime, Pod: pod})
	if err != nil {
		if maybe {
			return t, refused(err, "deploying agents")
		}
		return nil, refused(err, "deploying agents")
	}
	own := appsapi.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: map[string]string{InstanceLabel: t.Owned.Name}},
		Template: api.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: maps.Clone(t.Owned.Labels)}, Spec: *pod},
	}
	made, err := c.apps.DaemonSets(d.Namespace).Create(ctx, &appsapi.DaemonSet{ObjectMeta: t.Owned, Spec: own},
		metav1.CreateOptions{FieldManager: Manager})
	if err == nil {
		t.Set, err = setOf(made)
		t.Set.Temporary = true
	}
	return t, refused(err, "deploying agents")
}

// Owner describes a Job that runs no pod and owns other objects.
type Owner struct {
	What            string // name of all objects, in the label app.kubernetes.io/name
	Namespace, Name string
	Notes           map[string]string // annotations of the Job only
	Lifetime        time.Duration     // time after which the cluster removes all of it
	Pod             *api.PodSpec      // the Job's template: any pod that the namespace admits
}

// MakeOwner creates the Job that o describes, and returns metadata for objects that belong to it. The cluster removes
// all of them when their lifetime is over, whatever happens to the process that created them. If there is an error,
// maybe reports whether the Job may have been created nevertheless.
func (c *Cluster) MakeOwner(ctx context.Context, o Owner) (owned metav1.ObjectMeta, maybe bool, err error) {
	seconds := int64(max(o.Lifetime, time.Second).Seconds())
	owned = metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace,
		Labels:      map[string]string{nameLabel: o.What, InstanceLabel: o.Name, managedLabel: Manager},
		Annotations: map[string]string{lifetimeKey: strconv.FormatInt(seconds, 10)}}
	meta := *owned.DeepCopy()
	maps.Copy(meta.Annotations, o.Notes)
	never := *o.Pod.DeepCopy()
	never.RestartPolicy = api.RestartPolicyNever
	job, err := c.batch.Jobs(o.Namespace).Create(ctx, &batchapi.Job{ObjectMeta: meta, Spec: batchapi.JobSpec{
		Parallelism: new(int32(0)), Completions: new(int32(1)), BackoffLimit: new(int32(0)),
		ActiveDeadlineSeconds: &seconds, TTLSecondsAfterFinished: new(int32(0)),
		Template: api.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: owned.Labels}, Spec: never},
	}}, metav1.CreateOptions{FieldManager: Manager})
	if err != nil {
		return owned, !definite(err), err
	}
	owned.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}}
	return owned, true, nil
}

// RemoveOwner removes the Job of MakeOwner and everything that belongs to it. It is not an error if the Job does not
// exist.
func (c *Cluster) RemoveOwner(ctx context.Context, namespace, name string) error {
	return Removed(c.batch.Jobs(namespace).Delete(ctx, name,
		metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}))
}

// Removed returns the error of removing an object, or nil if the object did not exist.
func Removed(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// definite reports whether an error is an answer of the API server, which then created nothing.
func definite(err error) bool {
	return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown && !apierrors.IsTimeout(err) &&
		!apierrors.IsServerTimeout(err)
}

// temporary turns the pod of an installed agent into one that needs no other object and opens no port to others.
func temporary(pod *api.PodSpec, image string) {
	pod.ServiceAccountName = ""
	pod.TerminationGracePeriodSeconds = new(int64(1))
	agent := &pod.Containers[0]
	agent.Image = image
	agent.Args = []string{"--profile=kubernetes", "--host-root=/host", fmt.Sprintf("--listen=127.0.0.1:%d", agentPort)}
	agent.Ports, agent.LivenessProbe, agent.ReadinessProbe = nil, nil, nil
	agent.VolumeMounts = slices.DeleteFunc(agent.VolumeMounts,
		func(m api.VolumeMount) bool { return m.Name == "config" })
	pod.Volumes = slices.DeleteFunc(pod.Volumes, func(v api.Volume) bool { return v.ConfigMap != nil })
}

// Wait waits until the agent of each node runs or cannot run, but no longer than the given time, and returns the
// agents. It fails if the cluster refuses to create any pod for them.
func (t *Temporary) Wait(ctx context.Context, nodes []Node, within time.Duration) (agents []Agent, err error) {
	begin := time.Now()
	for {
		if agents, err = t.c.Agents(ctx, t.Set); err != nil {
			return nil, err
		}
		byNode := map[string]bool{} // whether the agent runs or cannot run
		for i := range agents {
			byNode[agents[i].Node] = agents[i].Failed != notStarted
		}
		open := 0
		for _, n := range nodes {
			if n.Ready && n.OS == "linux" && !byNode[n.Name] {
				open++
			}
		}
		waited := time.Since(begin)
		if len(agents) == 0 && waited > refusedAfter {
			if err := t.refusal(ctx); err != nil {
				return nil, err
			}
		}
		if open == 0 || waited > within {
			return agents, nil
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(startPoll):
		}
	}
}

// refusal returns the cluster's reason for not creating the agents' pods, or nil if it gives none.
func (t *Temporary) refusal(ctx context.Context) error {
	events, err := t.c.core.Events(t.Owned.Namespace).List(ctx, metav1.ListOptions{
		FieldSelector: "involvedObject.name=" + t.Owned.Name + ",reason=FailedCreate", Limit: 1})
	if err != nil || len(events.Items) == 0 {
		return nil //nolint:nilerr // the nodes are then reported as those whose agents have not started
	}
	return fault.New(fault.Machine, "namespace "+t.Owned.Namespace, "choose a namespace whose Pod Security is "+
		"privileged: --agents-namespace", "the cluster refuses the agents: %s",
		text.ClipLine(events.Items[0].Message, maxRefusal))
}

const maxRefusal = 600 // bytes

// Remove removes the agents as RemoveAgents does.
func (t *Temporary) Remove(ctx context.Context) error {
	return t.c.RemoveAgents(ctx, t.Owned.Namespace, t.Owned.Name)
}

// RemoveAgents removes temporary agents and whatever else belongs to their Job, and waits for a limited time until
// their pods are gone. If they are not, the error names the nodes on which agents are still ending.
func (c *Cluster) RemoveAgents(ctx context.Context, namespace, name string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWithin)
	defer cancel()
	if err := c.remove(ctx, namespace, name); err != nil {
		return err
	}
	for {
		var left []string
		err := c.eachPod(ctx, namespace, InstanceLabel+"="+name, func(p *api.Pod) {
			left = append(left, p.Spec.NodeName)
		})
		if err == nil && len(left) == 0 {
			return nil
		}
		if pace.Sleep(ctx, startPoll) != nil {
			return fault.New(fault.Machine, "", "", "agents are still ending on %s",
				text.ClipLine(strings.Join(left, ", "), maxReason))
		}
	}
}

// remove removes temporary agents. The Job comes first: the garbage collector also removes objects that are created
// for it from now on, because their owner does not exist.
func (c *Cluster) remove(ctx context.Context, namespace, name string) error {
	job := c.RemoveOwner(ctx, namespace, name)
	set := Removed(c.apps.DaemonSets(namespace).Delete(ctx, name, // ends the pods sooner than the garbage collector would
		metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationBackground)}))
	return refused(cmp.Or(job, set), "removing agents")
}

// Leftover is a set of temporary agents, or the objects of an experiment, in the cluster.
type Leftover struct {
	Namespace, Name string
	Run             bool // an experiment's objects, not agents
	Ended           bool // their lifetime is over, so the cluster should have removed them; or it cannot be read
}

// Leftovers returns all temporary agents and all objects of experiments in the cluster.
func (c *Cluster) Leftovers(ctx context.Context) (all []Leftover, err error) {
	o := metav1.ListOptions{LabelSelector: fmt.Sprintf("%s in (%s,%s),%s=%s", nameLabel, TemporaryName, RunName,
		managedLabel, Manager)}
	seen := map[[2]string]bool{}
	add := func(m *metav1.ObjectMeta) {
		if key := [2]string{m.Namespace, m.Name}; !seen[key] {
			seen[key] = true
			seconds, err := strconv.Atoi(m.Annotations[lifetimeKey])
			end := m.CreationTimestamp.Add(time.Duration(seconds) * time.Second)
			all = append(all, Leftover{m.Namespace, m.Name, m.Labels[nameLabel] == RunName, err != nil || time.Now().After(end)})
		}
	}
	jobs, err := c.batch.Jobs("").List(ctx, o)
	if err != nil {
		return nil, refused(err, "listing jobs")
	}
	for i := range jobs.Items {
		add(&jobs.Items[i].ObjectMeta)
	}
	sets, err := c.apps.DaemonSets("").List(ctx, o)
	if err != nil {
		return nil, refused(err, "listing DaemonSets")
	}
	for i := range sets.Items {
		add(&sets.Items[i].ObjectMeta)
	}
	return all, nil
}

// Clean removes temporary agents, or the objects of an experiment, without waiting until their pods are gone.
func (c *Cluster) Clean(ctx context.Context, l Leftover) error {
	if !l.Run {
		return c.remove(ctx, l.Namespace, l.Name)
	}
	return refused(c.RemoveRun(ctx, l.Namespace, l.Name), "removing a run")
}

// RemoveRun removes the Job of a run and everything that belongs to it. The coordinator's pod and the Secret, which
// have the Job's name, are removed at once.
func (c *Cluster) RemoveRun(ctx context.Context, namespace, name string) error {
	at := metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}
	pod := Removed(c.core.Pods(namespace).Delete(ctx, name, at)) // first, because the cluster would give it more time
	secret := Removed(c.core.Secrets(namespace).Delete(ctx, name, metav1.DeleteOptions{}))
	return cmp.Or(c.RemoveOwner(ctx, namespace, name), pod, secret)
}
