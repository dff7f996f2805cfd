package pods

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	api "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tare/internal/experiment/record"
	"tare/internal/experiment/spec"
	"tare/internal/kube/agents"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
)

// Order tells the coordinator of a run what to run and how.
type Order struct {
	Version   string        // kubectl-tare's, with its build; the coordinator's must be the same
	Life      time.Duration // time after which the run ends
	File      string        // name of the spec's file, for messages
	Spec      []byte
	Overrides spec.Overrides
	Run       record.Run
	Dir       string // name of the run directory
	Nodes     []agents.Node
	NodeOf    map[string]string // by part: see Places
	Spread    []string          // see Options
	Agents    agents.Set
	Access    agents.Access // to the agents; the coordinator has its files at other paths
	Image     string
	Token     string            // shared by the parts
	Owned     metav1.ObjectMeta // as in Options
}

// Run identifies a run by its objects: a Job without pods, which owns all others; the coordinator's pod and its order,
// which have the same name; and the coordinator's rights. The rights for agents belong to another Job, in the agents'
// namespace.
type Run struct {
	agents.Job
	Experiment string
	Made       time.Time
	Agents     agents.Job // the Job of the rights for agents and of temporary agents; without UID until it is found

	looked time.Time // when Gone first saw that the pod does not run
}

const (
	experimentKey = "tare/experiment" // annotations of the Job
	agentsKey     = "tare/agents"

	// Coordinator is the hidden command of kubectl-tare that runs a coordinator. Its run directory is in its working
	// directory.
	Coordinator = "_coordinator"
	coordinator = "coordinator" // name of its container

	// KeptFor is the time for which a coordinator keeps the results of a run until they are fetched.
	KeptFor = time.Hour

	ordersDir = "/etc/tare"
	workDir   = "/run/tare"
	orderKey  = "order.json.gz"
	caKey     = "agents-ca"
	secretKey = "agents-password"
	maxOrder  = 64 << 20 // bytes
	most      = 3        // restarts after which a coordinator that ends with an error is given up
)

// NewRun returns a run with a new name. Nothing of it exists before Start.
func NewRun(namespace string) *Run {
	return &Run{Job: agents.Job{Namespace: namespace, Name: "tare-" + strings.ToLower(rand.Text()[:6])}}
}

// String returns the namespace and the name of the run, as its agents' Job names it.
func (r *Run) String() string { return r.Namespace + "/" + r.Name }

// Start creates the objects of the run, the coordinator's pod last, and leaves nothing after an error. agentsOwner is
// metadata for objects that belong to temporary agents; it has no name if the agents are installed. Start fills in the
// order's Token and Owned.
func (r *Run) Start(ctx context.Context, c *agents.Cluster, o Order, agentsOwner metav1.ObjectMeta) (err error) {
	namespace, agentsNamespace := r.Namespace, o.Agents.Namespace
	r.Experiment = o.Run.Experiment
	agentsName := cmp.Or(agentsOwner.Name, r.Name+"-agents")
	owner := agents.Owner{What: agents.RunName, Namespace: namespace, Name: r.Name,
		Lifetime: startWithin + o.Life + KeptFor, Pod: new(podSpec(o.Image)),
		Notes: map[string]string{experimentKey: r.Experiment, agentsKey: agentsNamespace + "/" + agentsName}}
	if o.Owned, err = c.MakeOwner(ctx, owner); err != nil {
		return refused(err, namespace, "making the Job that owns the run")
	}
	r.Job = agents.JobOf(&o.Owned)
	defer func() {
		if err != nil {
			_ = Remove(ctx, c, r) // the cluster removes what this does not
		}
	}()
	if agentsOwner.Name == "" {
		owner.What, owner.Namespace, owner.Name, owner.Notes = agents.TemporaryName, agentsNamespace, agentsName, nil
		owner.Run = r.String()
		if agentsOwner, err = c.MakeOwner(ctx, owner); err != nil {
			return refused(err, agentsNamespace, "making the Job that owns the rights for agents")
		}
	}
	r.Agents = agents.JobOf(&agentsOwner)
	if err := c.Grant(ctx, o.Owned, agentsOwner); err != nil {
		return refused(err, namespace, "giving the coordinator its rights")
	}
	o.Token = rand.Text()
	secret, err := secretOf(&o)
	if err != nil {
		return err
	}
	how := metav1.CreateOptions{FieldManager: agents.Manager}
	if _, err := c.Core().Secrets(namespace).Create(ctx, secret, how); err != nil {
		return refused(err, namespace, "making the Secret of the run")
	}
	if _, err := c.Core().Pods(namespace).Create(ctx, coordinatorPod(&o), how); err != nil {
		return refused(err, namespace, "making the coordinator's pod")
	}
	return nil
}

// secretOf returns the Secret with the order and, separately, the token, which the parts receive. It puts the files of
// o.Access in the Secret, and changes their paths in o to those in the coordinator's pod.
func secretOf(o *Order) (*api.Secret, error) {
	secret := &api.Secret{ObjectMeta: o.Owned, Data: map[string][]byte{tokenKey: []byte(o.Token)}}
	for _, f := range []struct {
		path *string
		key  string
	}{{&o.Access.CAFile, caKey}, {&o.Access.PasswordFile, secretKey}} {
		if *f.path == "" {
			continue
		}
		data, err := files.Read(*f.path, 1<<20)
		if err != nil {
			return nil, fault.Wrap(err, fault.Usage, *f.path, "", "the file cannot be sent to the coordinator")
		}
		secret.Data[f.key], *f.path = data, filepath.Join(ordersDir, f.key)
	}
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if err := errors.Join(json.NewEncoder(w).Encode(o), w.Close()); err != nil {
		return nil, fmt.Errorf("encoding the order of the coordinator: %w", err)
	}
	secret.Data[orderKey] = b.Bytes()
	return secret, nil
}

// ReadOrder reads the order for the coordinator that runs in this process.
func ReadOrder() (o Order, err error) {
	f, err := os.Open(filepath.Join(ordersDir, orderKey))
	if err != nil {
		return o, fault.Wrap(err, fault.Usage, "", "kubectl tare run starts this command", "the order of the run is missing")
	}
	defer f.Close()
	return decodeOrder(f)
}

// coordinatorPod returns the pod of the coordinator. If the coordinator ends with an error, it is restarted in the
// same pod, where its results still exist.
func coordinatorPod(o *Order) *api.Pod {
	pod := &api.Pod{ObjectMeta: o.Owned, Spec: podSpec(o.Image, "/usr/bin/kubectl-tare", Coordinator)}
	s := &pod.Spec
	s.RestartPolicy, s.TerminationGracePeriodSeconds = api.RestartPolicyOnFailure, nil
	s.ServiceAccountName, s.AutomountServiceAccountToken = o.Owned.Name, new(true)
	s.Volumes = []api.Volume{
		{Name: "run", VolumeSource: api.VolumeSource{EmptyDir: &api.EmptyDirVolumeSource{}}},
		{Name: "order", VolumeSource: api.VolumeSource{Secret: &api.SecretVolumeSource{SecretName: o.Owned.Name}}},
	}
	c := &s.Containers[0]
	c.Name, c.WorkingDir = coordinator, workDir
	c.VolumeMounts = []api.VolumeMount{{Name: "run", MountPath: workDir},
		{Name: "order", MountPath: ordersDir, ReadOnly: true}}
	// If possible, the coordinator does not run on a node with parts of the trials, whose usage it would add to.
	s.Affinity = &api.Affinity{NodeAffinity: &api.NodeAffinity{
		PreferredDuringSchedulingIgnoredDuringExecution: []api.PreferredSchedulingTerm{{Weight: 1,
			Preference: named(api.NodeSelectorOpNotIn, slices.Compact(slices.Sorted(busy(o)))...)}}}}
	return pod
}

// busy returns the nodes with parts of trials.
func busy(o *Order) iter.Seq[string] {
	if len(o.Spread) > 0 {
		return slices.Values(o.Spread)
	}
	return maps.Values(o.NodeOf)
}

// Remove removes all objects of a run, and waits until its pods have ended. What belongs to no Job of the run stays.
func Remove(ctx context.Context, c *agents.Cluster, r *Run) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	err := refused(c.RemoveRun(ctx, r.Job), r.Namespace, "removing the run's objects")
	if r.Agents.UID == "" {
		var finding error
		r.Agents, finding = c.AgentsOf(ctx, r.String(), r.Agents.Namespace, r.Agents.Name)
		err = errors.Join(err, finding)
	}
	if r.Agents.UID != "" {
		err = errors.Join(err, c.RemoveAgents(ctx, r.Agents))
	}
	if err != nil {
		return err
	}
	return gone(ctx, c, r.Namespace, agents.InstanceLabel+"="+r.Name)
}

// Runs returns the runs of a namespace, the oldest first.
func Runs(ctx context.Context, c *agents.Cluster, namespace string) (all []*Run, err error) {
	jobs, err := c.Batch().Jobs(namespace).List(ctx, metav1.ListOptions{LabelSelector: agents.RunSelector})
	if err != nil {
		return nil, refused(err, namespace, "listing runs")
	}
	for i := range jobs.Items {
		j := &jobs.Items[i]
		if j.DeletionTimestamp != nil { // it was removed, and the garbage collector is slow or off
			continue
		}
		r := &Run{Job: agents.Job{Namespace: j.Namespace, Name: j.Name, UID: j.UID},
			Experiment: j.Annotations[experimentKey], Made: j.CreationTimestamp.Time}
		r.Agents.Namespace, r.Agents.Name, _ = strings.Cut(j.Annotations[agentsKey], "/")
		all = append(all, r)
	}
	slices.SortFunc(all, func(a, b *Run) int { return a.Made.Compare(b.Made) })
	return all, nil
}

// Gone returns as lost the reason why the coordinator will not answer any more; nil if it still may, or if its state is
// unknown. A pod that may still recover counts as gone only after some time, so callers repeat the call. err reports
// that the user may not look at the coordinator.
func (r *Run) Gone(ctx context.Context, c *agents.Cluster) (lost, err error) {
	pod, err := c.Core().Pods(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err) && time.Since(r.Made).Abs() < stuckAfter:
		return nil, nil // the command that has made the run may be about to make its pod
	case apierrors.IsNotFound(err):
		return r.lost("its pod was deleted, with its node or by somebody"), nil
	case apierrors.IsForbidden(err):
		return nil, refused(err, r.Namespace, "looking at the coordinator")
	case err != nil:
		return nil, nil //nolint:nilerr // the state is unknown
	}
	why, patience := stuck(pod)
	if why == "" {
		r.looked = time.Time{}
		return nil, nil
	}
	if r.looked.IsZero() {
		r.looked = time.Now()
	}
	if time.Since(r.looked) < patience {
		return nil, nil
	}
	return r.lost(why), nil
}

func (r *Run) lost(why string) error {
	return fault.New(fault.Invalid, "pod "+r.Namespace+"/"+r.Name, "what was fetched until then is kept; run it again",
		"the coordinator is lost: %s", why)
}

// stuck returns the reason why the pod of a coordinator does not run, and how long to wait for that to change. The
// reason is "" if it runs or is being restarted.
func stuck(pod *api.Pod) (why string, patience time.Duration) {
	switch pod.Status.Phase {
	case api.PodSucceeded:
		return "it has ended: somebody has fetched the run, or nobody has in time", 0
	case api.PodFailed:
		return cmp.Or(strings.Trim(pod.Status.Reason+": "+pod.Status.Message, ": "), "its pod has failed"), 0
	}
	if why := EndedBefore(pod); why != "" {
		often := func(s api.ContainerStatus) bool { return s.Name == coordinator && s.RestartCount >= most }
		if slices.ContainsFunc(pod.Status.ContainerStatuses, often) {
			return "it has ended " + fmt.Sprint(most) + " times, the last time " + why, 0
		}
		return "", 0
	}
	ready, why, patience := stateOf(pod)
	if ready {
		return "", 0
	}
	return why, max(patience, stuckAfter)
}

// EndedBefore returns how the coordinator's container last ended; "" if it has not.
func EndedBefore(pod *api.Pod) string {
	for _, s := range pod.Status.ContainerStatuses {
		if t := cmp.Or(s.LastTerminationState.Terminated, s.State.Terminated); s.Name == coordinator && t != nil {
			return strings.TrimSpace(fmt.Sprintf("with code %d: %s %s", t.ExitCode, t.Reason, t.Message))
		}
	}
	return ""
}

// Ended returns EndedBefore of the run's coordinator, or "" if the API server does not answer.
func (r *Run) Ended(ctx context.Context, c *agents.Cluster) string {
	pod, err := c.Core().Pods(r.Namespace).Get(ctx, r.Name, metav1.GetOptions{})
	if err != nil {
		return ""
	}
	return EndedBefore(pod)
}

func decodeOrder(r io.Reader) (o Order, err error) {
	z, err := gzip.NewReader(r)
	if err == nil {
		err = json.NewDecoder(io.LimitReader(z, maxOrder)).Decode(&o)
	}
	return o, fault.Wrap(err, fault.Usage, "", "", "the order of the coordinator cannot be read")
}
