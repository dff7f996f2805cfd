package agents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	appsapi "k8s.io/api/apps/v1"
	batchapi "k8s.io/api/batch/v1"
	api "k8s.io/api/core/v1"
	rbacapi "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/metadata"

	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/text"
)

// Deployment configures agents that are deployed for one window.
type Deployment struct {
	Namespace string // an existing one that allows privileged pods
	Image     string
	Lifetime  time.Duration // time after which the cluster itself removes them
	Run       string        // as in Owner
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
	lifetimeKey  = "tare/lifetime-seconds" // annotations
	runKey       = "tare/run"
	removeWithin = 10 * time.Second
	cleanWithin  = 30 * time.Second
	startPoll    = 300 * time.Millisecond
	refusedAfter = 3 * time.Second // if there is no pod by then, the cluster is asked for the reason
)

// Deploy creates agents on all nodes, and returns without waiting for them. The caller must remove what it returns,
// even after an error. It returns nil if nothing is left to remove.
func (c *Cluster) Deploy(ctx context.Context, d Deployment) (*Temporary, error) {
	set, err := agentSet()
	if err != nil {
		return nil, err
	}
	t := &Temporary{c: c}
	pod := &set.Spec.Template.Spec
	temporary(pod, d.Image)
	t.Owned, err = c.MakeOwner(ctx, Owner{What: TemporaryName, Namespace: d.Namespace,
		Name: installedName + "-" + rand.String(5), Lifetime: d.Lifetime, Run: d.Run, Pod: pod})
	if err != nil {
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
	Lifetime        time.Duration     // time after which the cluster removes the Job and the objects that it owns
	Run             string            // the run that the objects serve, as NAMESPACE/NAME; empty if none
	Pod             *api.PodSpec      // the Job's template: any pod that the namespace admits
}

// Job identifies a Job that MakeOwner has created.
//
// Only the UID proves that an object belongs to it, as for the garbage collector: users who may create Jobs in a
// namespace can give them any name, labels and annotations.
type Job struct {
	Namespace, Name string
	UID             types.UID
}

// JobOf returns the Job that owns an object, given the object's metadata from MakeOwner.
func JobOf(owned *metav1.ObjectMeta) Job {
	return Job{owned.Namespace, owned.Name, owned.OwnerReferences[0].UID}
}

// owns reports whether an object belongs to the Job.
func (j Job) owns(m *metav1.ObjectMeta) bool {
	return slices.ContainsFunc(m.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == j.UID })
}

// MakeOwner creates the Job that o describes, and returns metadata for objects that belong to it. The cluster removes
// all of them when their lifetime is over, whatever happens to the process that created them.
func (c *Cluster) MakeOwner(ctx context.Context, o Owner) (owned metav1.ObjectMeta, err error) {
	seconds := int64(max(o.Lifetime, time.Second).Seconds())
	owned = metav1.ObjectMeta{Name: o.Name, Namespace: o.Namespace,
		Labels:      map[string]string{nameLabel: o.What, InstanceLabel: o.Name, managedLabel: Manager},
		Annotations: map[string]string{lifetimeKey: strconv.FormatInt(seconds, 10)}}
	meta := *owned.DeepCopy()
	maps.Copy(meta.Annotations, o.Notes)
	if o.Run != "" {
		meta.Annotations[runKey] = o.Run
	}
	never := *o.Pod.DeepCopy()
	never.RestartPolicy = api.RestartPolicyNever
	job, err := c.batch.Jobs(o.Namespace).Create(ctx, &batchapi.Job{ObjectMeta: meta, Spec: batchapi.JobSpec{
		Parallelism: new(int32(0)), Completions: new(int32(1)), BackoffLimit: new(int32(0)),
		ActiveDeadlineSeconds: &seconds, TTLSecondsAfterFinished: new(int32(0)),
		Template: api.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: owned.Labels}, Spec: never},
	}}, metav1.CreateOptions{FieldManager: Manager})
	if err != nil {
		if !definite(err) {
			c.removeUnknown(ctx, o)
		}
		return owned, err
	}
	owned.OwnerReferences = []metav1.OwnerReference{
		{APIVersion: "batch/v1", Kind: "Job", Name: job.Name, UID: job.UID}}
	return owned, nil
}

// removeUnknown removes the Job that o describes, which may exist although the request to create it has failed. If the
// removal fails too, the cluster removes the Job when its lifetime is over.
func (c *Cluster) removeUnknown(ctx context.Context, o Owner) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWithin)
	defer cancel()
	if j, err := c.job(ctx, o.What, o.Namespace, o.Name, o.Run); err == nil && j.UID != "" {
		_ = c.batch.Jobs(j.Namespace).Delete(ctx, j.Name, exactly(j.UID)) // nothing belongs to it yet
	}
}

// job finds a Job of MakeOwner that serves a run, by the Job's name. If there is none, the result has no UID.
func (c *Cluster) job(ctx context.Context, what, namespace, name, run string) (Job, error) {
	jobs, err := c.batch.Jobs(namespace).List(ctx, selecting(what))
	if err != nil {
		return Job{}, refused(err, "listing jobs")
	}
	for i := range jobs.Items {
		if m := &jobs.Items[i].ObjectMeta; m.Namespace == namespace && m.Name == name && m.Annotations[runKey] == run {
			return Job{namespace, name, m.UID}, nil
		}
	}
	return Job{}, nil
}

// AgentsOf finds the Job that owns the objects of a run (Owner.Run) in the agents' namespace, by the name that the
// run's own Job records. Anybody may have written the run's own Job, so a Job of that name counts only if it names the
// run in turn; otherwise, the result has no UID.
func (c *Cluster) AgentsOf(ctx context.Context, run, namespace, name string) (Job, error) {
	return c.job(ctx, TemporaryName, namespace, name, run)
}

// selecting selects the objects that kubectl-tare has created, given the values of their label app.kubernetes.io/name.
func selecting(what ...string) metav1.ListOptions {
	return metav1.ListOptions{LabelSelector: fmt.Sprintf("%s in (%s),%s=%s", nameLabel, strings.Join(what, ","),
		managedLabel, Manager)}
}

// removeJob has the garbage collector remove a Job and everything that belongs to it. The Job is left until the garbage
// collector acts, so that Leftovers finds what belongs to the Job in a cluster without a garbage collector.
func (c *Cluster) removeJob(ctx context.Context, j Job) error {
	how := exactly(j.UID)
	how.PropagationPolicy = new(metav1.DeletePropagationForeground)
	return Removed(c.batch.Jobs(j.Namespace).Delete(ctx, j.Name, how))
}

// exactly returns options that delete only the object with the given UID, not another that has its name now.
func exactly(uid types.UID) metav1.DeleteOptions {
	return metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid},
		PropagationPolicy: new(metav1.DeletePropagationBackground)}
}

// Removed returns the error of removing an object, or nil if the object did not exist.
func Removed(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // a conflict: the name is another object's now
		return nil
	}
	return err
}

// definite reports whether an error proves that the API server has created nothing: it answered, and with a refusal.
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
	return t.c.refusal(ctx, t.Owned.Namespace, "involvedObject.name="+t.Owned.Name, time.Time{},
		"choose a namespace whose Pod Security is privileged: --agents-namespace")
}

const (
	maxRefusal = 600 // bytes
	maxEvents  = 100
)

// refusal returns the newest reason that the cluster has given, since a time by the API server's clock, for not
// creating the pods of an object. The object is given as a field selector of events. refusal returns nil if there is no
// such reason, or if events may not be read: the nodes are then reported as those whose agents have not started.
func (c *Cluster) refusal(ctx context.Context, namespace, object string, since time.Time, hint string) error {
	events, err := c.core.Events(namespace).List(ctx, metav1.ListOptions{Limit: maxEvents,
		FieldSelector: "reason=FailedCreate," + object})
	if err != nil {
		return nil //nolint:nilerr // see above
	}
	reason, newest := "", since.Truncate(time.Second) // events have whole seconds
	for i := range events.Items {
		e := &events.Items[i]
		at := e.LastTimestamp.Time
		if at.IsZero() {
			at = e.EventTime.Time
		}
		if !at.Before(newest) {
			reason, newest = text.ClipLine(e.Message, maxRefusal), at
		}
	}
	if reason == "" {
		return nil
	}
	return fault.New(fault.Machine, "namespace "+namespace, hint, "the cluster refuses the agents: %s", reason)
}

// Remove removes the agents as RemoveAgents does.
func (t *Temporary) Remove(ctx context.Context) error {
	return t.c.RemoveAgents(ctx, JobOf(&t.Owned))
}

// RemoveAgents removes temporary agents and whatever else belongs to their Job, and waits for a limited time until
// their pods are gone. If they are not, the error names the nodes on which agents are still ending.
func (c *Cluster) RemoveAgents(ctx context.Context, j Job) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeWithin)
	defer cancel()
	if err := c.remove(ctx, j); err != nil {
		return err
	}
	for {
		var left []string
		err := c.eachPod(ctx, j.Namespace, InstanceLabel+"="+j.Name, func(p *api.Pod) {
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
// for it from now on.
func (c *Cluster) remove(ctx context.Context, j Job) error {
	return refused(cmp.Or(c.removeJob(ctx, j), c.removeSets(ctx, j)), "removing agents")
}

// removeSets removes the DaemonSets of a Job, so that their pods end sooner than the garbage collector would end them.
func (c *Cluster) removeSets(ctx context.Context, j Job) error {
	sets, err := c.apps.DaemonSets(j.Namespace).List(ctx, selecting(TemporaryName))
	if err != nil {
		return err
	}
	for i := range sets.Items {
		if m := &sets.Items[i].ObjectMeta; j.owns(m) {
			err = cmp.Or(err, Removed(c.apps.DaemonSets(j.Namespace).Delete(ctx, m.Name, exactly(m.UID))))
		}
	}
	return err
}

// ownedResources are the resources of all objects that may belong to a Job of MakeOwner. A DaemonSet is removed before
// its pods, which it would create again.
var ownedResources = []schema.GroupVersionResource{
	appsapi.SchemeGroupVersion.WithResource("daemonsets"),
	api.SchemeGroupVersion.WithResource("pods"),
	api.SchemeGroupVersion.WithResource("services"),
	api.SchemeGroupVersion.WithResource("secrets"),
	rbacapi.SchemeGroupVersion.WithResource("rolebindings"),
	rbacapi.SchemeGroupVersion.WithResource("roles"),
	api.SchemeGroupVersion.WithResource("serviceaccounts"),
}

// Leftover is a set of temporary agents, or the objects of an experiment, in the cluster.
type Leftover struct {
	Job          // has no UID if it is gone, and only other objects are left
	Run   bool   // an experiment's objects, not agents
	Of    string // NAMESPACE/NAME of the run that started these agents; empty if no run did, or their Job is gone
	Ended bool   // their lifetime is over or they were removed, so the cluster should have removed them

	objects []object // if the Job is gone
}

// object is an object that may belong to a Job.
type object struct {
	*metav1.PartialObjectMetadata
	resource schema.GroupVersionResource
}

// Leftovers returns all temporary agents and all objects of experiments in a namespace, or in the cluster if namespace
// is empty. hidden are the resources that the user may not list.
func (c *Cluster) Leftovers(ctx context.Context, namespace string) (all []*Leftover, hidden []string, err error) {
	now, err := c.now(ctx)
	if err != nil {
		return nil, nil, err
	}
	both := selecting(TemporaryName, RunName)
	client, err := metadata.NewForConfig(c.config) // reads no contents, such as those of Secrets
	if err != nil {
		return nil, nil, wrong(err)
	}
	// Jobs are listed last, so that an object whose Job is not listed has lost that Job.
	var others []object
	for _, r := range ownedResources {
		list := func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return client.Resource(r).Namespace(namespace).List(ctx, o)
		}
		err := each(ctx, list, both.LabelSelector, func(m *metav1.PartialObjectMetadata) {
			others = append(others, object{m, r})
		})
		if apierrors.IsForbidden(err) {
			hidden = append(hidden, r.Resource)
		} else if err != nil {
			return nil, nil, refused(err, "listing "+r.Resource)
		}
	}
	jobs, err := c.batch.Jobs(namespace).List(ctx, both)
	if err != nil {
		return nil, nil, refused(err, "listing jobs")
	}
	seen := map[[2]string]*Leftover{} // by namespace and name of the Job
	for i := range jobs.Items {
		m := &jobs.Items[i].ObjectMeta
		l := &Leftover{Job: Job{m.Namespace, m.Name, m.UID}, Run: m.Labels[nameLabel] == RunName,
			Of: m.Annotations[runKey]}
		seen[[2]string{m.Namespace, m.Name}] = l
		seconds, err := strconv.Atoi(m.Annotations[lifetimeKey])
		if err != nil { // it is not a Job of MakeOwner
			continue
		}
		l.Ended = m.DeletionTimestamp != nil || now.After(m.CreationTimestamp.Add(time.Duration(seconds)*time.Second))
		all = append(all, l)
	}
	for _, o := range others {
		key := [2]string{o.Namespace, o.Labels[InstanceLabel]}
		l := seen[key]
		if l != nil && l.UID != "" || o.DeletionTimestamp != nil {
			continue
		}
		if l == nil {
			l = &Leftover{Job: Job{Namespace: key[0], Name: key[1]}, Run: o.Labels[nameLabel] == RunName, Ended: true}
			seen[key] = l
			all = append(all, l)
		}
		l.objects = append(l.objects, o)
	}
	return all, hidden, nil
}

// removeOrphans removes the objects of a leftover whose Job is gone. It leaves an object that has any other owner than
// that Job, because anybody can give an object the labels of a Job's objects.
func (c *Cluster) removeOrphans(ctx context.Context, l *Leftover) error {
	jobs, err := c.batch.Jobs(l.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "metadata.name=" + l.Name})
	if err != nil {
		return err
	}
	client, err := metadata.NewForConfig(c.config)
	if err != nil {
		return wrong(err)
	}
	owned := func(r metav1.OwnerReference) bool {
		return r.Kind != "Job" || r.Name != l.Name ||
			slices.ContainsFunc(jobs.Items, func(j batchapi.Job) bool { return j.UID == r.UID })
	}
	for _, o := range l.objects {
		if !slices.ContainsFunc(o.OwnerReferences, owned) {
			err = cmp.Or(err, Removed(client.Resource(o.resource).Namespace(o.Namespace).Delete(ctx, o.Name, exactly(o.UID))))
		}
	}
	return err
}

// Clean removes temporary agents, or the objects of an experiment. It waits for a limited time until their Job is gone
// and all other objects are gone or being removed. If some are left, the garbage collector is off or slow, and the
// error has a hint on how to remove them.
func (c *Cluster) Clean(ctx context.Context, l *Leftover) (err error) {
	ctx, cancel := context.WithTimeout(ctx, cleanWithin)
	defer cancel()
	if l.UID == "" {
		err = c.removeOrphans(ctx, l)
	} else {
		err = cmp.Or(c.removeCoordinator(ctx, l.Job), c.removeJob(ctx, l.Job), c.removeSets(ctx, l.Job))
	}
	if err != nil {
		return refused(err, "removing "+l.Namespace+"/"+l.Name)
	}
	var last error // the latest error in listing what is left
	for {
		left, _, err := c.Leftovers(ctx, l.Namespace)
		if ctx.Err() == nil {
			last = err
		}
		if err == nil && !slices.ContainsFunc(left, func(o *Leftover) bool { return o.Name == l.Name }) {
			return nil
		}
		switch err := pace.Sleep(ctx, startPoll); {
		case errors.Is(err, context.Canceled):
			return err
		case err != nil && last != nil:
			return last
		case err != nil:
			return fault.New(fault.Machine, l.Namespace+"/"+l.Name, fmt.Sprintf("if it stays: kubectl delete jobs,daemonsets,"+
				"pods,services,secrets,serviceaccounts,roles,rolebindings -n %s -l %s=%s,%s=%s", l.Namespace, InstanceLabel,
				l.Name, managedLabel, Manager), "the cluster's garbage collector has not removed it within %v", cleanWithin)
		}
	}
}

// RemoveRun removes the Job of a run and, at once, its coordinator's pod. The garbage collector removes everything else
// that belongs to the Job. That includes the Secret: to see who owns it, RemoveRun would need the right to read it.
func (c *Cluster) RemoveRun(ctx context.Context, run Job) error {
	return cmp.Or(c.removeCoordinator(ctx, run), c.removeJob(ctx, run))
}

// removeCoordinator removes the coordinator's pod of a run. The garbage collector would give it more time to end.
func (c *Cluster) removeCoordinator(ctx context.Context, run Job) error {
	pods, err := c.core.Pods(run.Namespace).List(ctx, selecting(RunName))
	if err != nil {
		return err
	}
	for i := range pods.Items {
		if m := &pods.Items[i].ObjectMeta; m.Name == run.Name && run.owns(m) {
			how := exactly(m.UID)
			how.GracePeriodSeconds = new(int64(1))
			return Removed(c.core.Pods(run.Namespace).Delete(ctx, m.Name, how))
		}
	}
	return nil
}
