package pods

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	api "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tare/internal/experiment/engine"
	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/experiment/measured"
	"tare/internal/experiment/part"
	"tare/internal/experiment/record"
	"tare/internal/experiment/role"
	"tare/internal/experiment/spec"
	"tare/internal/kube/agents"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/scale/charge"
	"tare/internal/scale/ledger"
)

const (
	startWithin  = 2 * time.Minute  // for all pods of a trial to become ready, including image pulls
	stuckAfter   = 20 * time.Second // after this time, a pod that is not scheduled or cannot pull its image is given up
	listenWithin = 20 * time.Second // from the start of a pod until its process listens
	dialWithin   = 5 * time.Second  // for one connection to a pod
)

// trial is one trial under way.
type trial struct {
	*Place
	spec   *spec.Spec // at the trial's level, with each copy of a part as a separate part
	marks  *kind.Marks
	seed   uint64
	id     string
	record *record.Trial
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	pods   map[string]*api.Pod // by part
	apps   map[string]kind.App
	loads  map[string]*playing
	all    []*playing
	silent []string // nodes that gave no window, with the reason
	lost   []string // entries of silent for nodes that have an agent, or had one in this run and are to have one
	// complete reports whether every node that is to have an agent had one when the window was opened. A node without an
	// agent was then not waiting for one: it has left the cluster, or the DaemonSet leaves it out.
	complete bool

	nodes   []string          // nodes that are weighed; empty: all
	nodeOf  map[string]string // by part; one without an entry may run anywhere
	lacking []string          // nodes on which events were lost, with the counts
}

// playing is a part whose process runs in a pod.
type playing struct {
	*role.Remote
	clock part.Clock
	met   time.Time     // when clock was read, by this machine's clock, within half of took
	took  time.Duration // to connect to the part
	node  string
	wants role.Wants
}

// stepped returns how far the time of day on the part's node has jumped since clock was read. offset is how far it is
// ahead of this machine's at the time now.
func (p *playing) stepped(now time.Time, offset time.Duration) time.Duration {
	passed := time.Duration(now.Add(offset).UnixNano() - p.clock.Wall)
	return (passed - now.Sub(p.met)).Abs() // now and met have monotonic clock readings
}

// Trial implements engine.Place.
func (p *Place) Trial(ctx context.Context, level *spec.Spec, seed uint64, t *record.Trial) error {
	t.Started, t.Clocks, t.Loads = time.Now(), map[string]time.Duration{}, map[string]load.Result{}
	work, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	x := &trial{
		Place: p, spec: level.WithCopies(), seed: seed, id: trialName(t.Index, t.Attempt), record: t, cancel: cancel,
		pods: map[string]*api.Pod{}, apps: map[string]kind.App{}, loads: map[string]*playing{}, nodeOf: map[string]string{},
	}
	x.place(level.Nodes())
	views, err := x.measure(work)
	if err != nil && ctx.Err() == nil {
		err = x.explain(ctx, err)
	}
	begin := time.Now()
	err = errors.Join(err, x.tearDown(ctx))
	t.Ended = time.Now()
	t.Clocks["tear-down"] = t.Ended.Sub(begin)
	if err == nil {
		err = x.account(views)
	}
	if err != nil {
		t.Validity.Failed = engine.Failure(ctx, err)
	}
	return err
}

// measure sets up the trial, has the agents take a window over the measured time of the loads, and collects the
// results.
func (x *trial) measure(ctx context.Context) ([]ledger.View, error) {
	last := x.record.Started
	lap := func(name string) {
		now := time.Now()
		x.record.Clocks[name], last = now.Sub(last), now
	}
	if err := x.setUp(ctx); err != nil {
		return nil, fmt.Errorf("setting up: %w", err)
	}
	lap("set-up")
	all, err := x.o.Agents(ctx)
	if err != nil {
		return nil, err
	}
	x.complete = x.hasAll(ctx, all)
	all = slices.DeleteFunc(all, func(a agents.Agent) bool { return !x.weighs(a.Node) })
	log, err := x.follow(ctx)
	if err != nil {
		return nil, err
	}
	defer log.close()
	w := x.o.Cluster.OpenAfter(ctx, all, x.spec.Warmup, x.spec.Duration)
	log.from(w.Start.Add(-x.spec.Warmup), w.Offsets)
	answers := make(chan []ledger.View, 1)
	go func() { answers <- x.gather(w) }() // ends with the window's context
	begun := x.begin(w)
	views := <-answers
	lap("measured")
	if begun != nil && len(x.silent) > 0 {
		begun = fmt.Errorf("%w; nodes that gave no window: %s", begun, strings.Join(x.silent, "; "))
	}
	if err := cmp.Or(begun, context.Cause(ctx)); err != nil {
		return nil, err
	}
	if err := x.results(ctx); err != nil {
		return nil, err
	}
	if err := x.events(ctx, log); err != nil {
		return nil, err
	}
	if err := x.lasted(ctx); err != nil {
		return nil, err
	}
	lap("drain")
	return views, context.Cause(ctx)
}

// gather collects the answers of a window. It returns the ledgers, sorted by node, and sets silent to the nodes without
// one, including nodes that have no agent because it is being replaced. It also sets lost.
func (x *trial) gather(w *agents.Window) (views []ledger.View) {
	silent := map[string]string{}
	for _, n := range x.o.Nodes {
		if n.OS == "linux" && x.weighs(n.Name) {
			silent[n.Name] = noAgent
		}
	}
	for a := range w.Answers {
		switch why := cmp.Or(a.Failed, apart(w, &a)); {
		case why != "":
			silent[a.Node] = why
		case slices.ContainsFunc(views, func(v ledger.View) bool { return v.Name == a.Node }):
			// While a DaemonSet with maxSurge is updated, two agents of a node see the same groups.
		default:
			views = append(views, ledger.View{Name: a.Node, Ledger: a.Ledger})
		}
	}
	for _, v := range views {
		delete(silent, v.Name) // also if another agent of the node failed
		x.weighed[v.Name] = true
	}
	for node, why := range silent {
		switch {
		case why == noAgent && x.weighed[node] && x.complete:
			why = leftCluster
		case why != noAgent || x.weighed[node]:
			x.lost = append(x.lost, node+": "+why)
		}
		x.silent = append(x.silent, node+": "+why)
	}
	slices.SortFunc(views, func(a, b ledger.View) int { return strings.Compare(a.Name, b.Name) })
	slices.Sort(x.silent)
	slices.Sort(x.lost)
	return views
}

// hasAll reports whether every node that is to have an agent has one of these. It asks the API server only if a node
// that was weighed before has none.
func (x *trial) hasAll(ctx context.Context, all []agents.Agent) bool {
	nodes := lists.Keyed(all, func(a agents.Agent) (string, bool) { return a.Node, true })
	for node := range x.weighed {
		if !nodes[node] {
			wanted, err := x.o.Wanted(ctx)
			return err == nil && wanted == len(nodes)
		}
	}
	return true
}

// apart returns how the window of a ledger differs from that of the loads; "" if both are the same time, or if there is
// no ledger. The rates of a ledger from another time must not be compared with those of the loads.
func apart(w *agents.Window, a *agents.Answer) string {
	if a.Ledger == nil {
		return ""
	}
	start := a.Ledger.Window.Start.Add(-a.Offset).Sub(w.Start)
	end := a.Ledger.Window.End.Add(-a.Offset).Sub(w.End)
	switch off := max(start.Abs(), end.Abs()); {
	case off+a.Uncertainty <= tolerated(w):
		return ""
	case off <= tolerated(w):
		return fmt.Sprintf("its clock is known only to %v, which is too little for a window of %v",
			a.Uncertainty.Round(time.Millisecond), w.End.Sub(w.Start))
	}
	return fmt.Sprintf("its window began %v and ended %v after that of the loads", start.Round(time.Millisecond),
		end.Round(time.Millisecond))
}

// tolerated returns how far a window may be from that of the loads.
func tolerated(w *agents.Window) time.Duration { return max(w.End.Sub(w.Start)/5, 20*time.Millisecond) }

// Reasons why a node has no view.
const (
	noAgent     = "it has no agent"
	leftCluster = "it has no agent any more, and is to have none: it has left the cluster, or the DaemonSet leaves it out"
)

// place chooses the node of each part. If n is above 0, every part runs on each of the first n nodes of Options.Spread.
func (x *trial) place(n int) {
	whole := x.parts()
	if n == 0 {
		for name := range whole {
			part, _, _ := strings.Cut(name, "_") // copies run on the node of the whole part
			x.nodeOf[name] = x.o.NodeOf[part]
		}
		return
	}
	x.spec, x.nodes = x.spec.OnEach(n), x.o.Spread[:n]
	for i, node := range x.nodes {
		for name := range whole {
			x.nodeOf[kind.CopyName(name, i+1, n)] = node
		}
	}
}

// weighs reports whether usage on a node counts as cost of the trial. In an experiment on nodes, it does only on nodes
// of the trial; otherwise, on every node.
func (x *trial) weighs(node string) bool { return len(x.nodes) == 0 || slices.Contains(x.nodes, node) }

// parts returns the applications and the loads, by name.
func (x *trial) parts() map[string]*kind.Part {
	all := maps.Clone(x.spec.Applications)
	maps.Copy(all, x.spec.Loads)
	return all
}

// setUp creates the pods and Services, and starts the applications and then the loads in them.
func (x *trial) setUp(ctx context.Context) error {
	if subject := x.spec.Of(x.record.Arm); subject != nil {
		marks, err := subject.Kind.(kind.Marked).Marks(subject.Options)
		if err != nil {
			return err
		}
		x.marks = &marks
	}
	services := map[string]string{} // addresses, by application
	for name, of := range x.spec.Applications {
		s, err := x.o.Cluster.Core().Services(x.o.Owned.Namespace).Create(ctx, x.service(x.id, name, of),
			metav1.CreateOptions{FieldManager: agents.Manager})
		if err != nil {
			return x.refused(err, "making the Service of "+name)
		}
		services[name] = net.JoinHostPort(s.Spec.ClusterIP, strconv.Itoa(appPort))
	}
	for name, part := range x.parts() {
		pod, err := x.o.Cluster.Core().Pods(x.o.Owned.Namespace).Create(ctx,
			x.pod(x.id, name, part, x.marks.On(name), x.nodeOf[name]), metav1.CreateOptions{FieldManager: agents.Manager})
		if err != nil {
			return x.refused(err, "making the pod of "+name)
		}
		x.pods[name] = pod
	}
	if err := x.await(ctx); err != nil {
		return err
	}
	if err := x.applies(); err != nil {
		return err
	}
	x.cameUp[x.record.Arm] = true
	if x.marks != nil {
		if err := x.runs(imagesOf(x.pods)); err != nil {
			return err
		}
	}
	err := x.each(x.spec.Applications, func(name string, of *kind.Part) error {
		host := "0.0.0.0"
		if strings.Contains(x.pods[name].Status.PodIP, ":") {
			host = "::"
		}
		_, raw, err := x.start(ctx, kind.Application, name, of, kind.Site{Host: host, Port: appPort})
		x.mu.Lock()
		defer x.mu.Unlock()
		x.apps[name] = kind.App{Address: services[name], Ready: raw}
		return err
	})
	if err != nil {
		return err
	}
	err = x.each(x.spec.Loads, func(name string, of *kind.Part) error {
		app := x.apps[of.To]
		p, raw, err := x.start(ctx, kind.Load, name, of,
			kind.Site{Address: app.Address, Ready: app.Ready, Seed: engine.LoadSeed(x.seed, name)})
		if err == nil {
			err = p.Decode(raw, "ready message", &p.wants)
		}
		if err != nil {
			return err
		}
		x.mu.Lock()
		defer x.mu.Unlock()
		x.loads[name] = p
		return nil
	})
	if err != nil {
		return err
	}
	return pace.Sleep(ctx, x.spec.Settle())
}

// each calls do for all parts at the same time, and returns the first error once all calls have returned.
func (x *trial) each(parts map[string]*kind.Part, do func(string, *kind.Part) error) error {
	var g errgroup.Group
	for name, of := range parts {
		g.Go(func() error { return do(name, of) })
	}
	return g.Wait()
}

// selector returns the selector of the trial's pods.
func (x *trial) selector() string {
	return agents.InstanceLabel + "=" + x.o.Owned.Name + "," + trialLabel + "=" + x.id
}

// await waits until all pods are ready. Containers that were injected into them may have to be ready before anything
// reaches the parts.
func (x *trial) await(ctx context.Context) error {
	begin := time.Now()
	waiting := waits{}
	for {
		list, err := x.o.Cluster.Core().Pods(x.o.Owned.Namespace).List(ctx, metav1.ListOptions{LabelSelector: x.selector()})
		if err != nil {
			return x.refused(err, "listing pods")
		}
		ready, reason := 0, ""
		for i := range list.Items {
			pod := &list.Items[i]
			x.pods[pod.Labels[partLabel]] = pod
			is, why, patience := stateOf(pod)
			if lacks := x.lacks(pod); is && lacks != "" {
				is, why, patience = false, "the subject does not apply: it did not add the annotation "+lacks, stuckAfter
			}
			if is {
				ready++
				continue
			}
			reason = cmp.Or(reason, why)
			if waiting.over(pod.Labels[partLabel], patience, time.Now()) {
				return x.broken(pod, why)
			}
		}
		if ready == len(x.pods) {
			return nil
		}
		if time.Since(begin) > startWithin {
			return fault.New(fault.Machine, "namespace "+x.o.Owned.Namespace, "kubectl describe pods",
				"%d of %d pods are ready after %v: %s", ready, len(x.pods), startWithin,
				cmp.Or(reason, "the others are being made"))
		}
		if err := pace.Sleep(ctx, poll); err != nil {
			return err
		}
	}
}

// waits holds when each pod, by part, was first seen in a state from which few pods recover.
type waits map[string]time.Time

// over reports whether a pod has been in such states for as long as the patience that stateOf returned. A pod that is
// being started, for which the patience is startWithin, is not in such a state: its image may take a minute to pull.
func (w waits) over(part string, patience time.Duration, now time.Time) bool {
	if patience >= startWithin {
		delete(w, part)
		return false
	}
	if w[part].IsZero() {
		w[part] = now
	}
	return now.Sub(w[part]) >= patience
}

func (x *trial) broken(pod *api.Pod, why string) error {
	return fault.New(fault.Machine, "pod "+pod.Namespace+"/"+pod.Name, "kubectl describe pod", "%s: %s",
		pod.Labels[partLabel], text.ClipLine(why, maxWhy))
}

const maxWhy = 400 // bytes of a reason from the cluster

// stateOf reports whether a pod is ready. If it is not, it returns why, and how long to wait for that to change.
func stateOf(pod *api.Pod) (ready bool, why string, patience time.Duration) {
	notReady := "it is being made"
	for _, c := range pod.Status.Conditions {
		switch {
		case c.Type == api.PodScheduled && c.Status == api.ConditionFalse:
			return false, "it is not scheduled: " + c.Message, stuckAfter
		case c.Type == api.PodReady && c.Status == api.ConditionTrue:
			ready = true
		case c.Type == api.PodReady:
			notReady = "it is not ready: " + c.Message
		}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		switch {
		case s.State.Waiting != nil && s.State.Waiting.Reason != "" && s.State.Waiting.Reason != "ContainerCreating" &&
			s.State.Waiting.Reason != "PodInitializing":
			return false, s.Name + " waits: " + s.State.Waiting.Reason + ": " + s.State.Waiting.Message, stuckAfter
		case s.State.Terminated != nil && s.State.Terminated.ExitCode != 0:
			return false, fmt.Sprintf("%s has ended with code %d: %s %s", s.Name, s.State.Terminated.ExitCode,
				s.State.Terminated.Reason, s.State.Terminated.Message), 0
		}
	}
	if pod.Status.Phase == api.PodFailed || pod.Status.Phase == api.PodSucceeded {
		return false, cmp.Or(strings.Trim(pod.Status.Reason+": "+pod.Status.Message, ": "), "it has ended"), 0
	}
	if ready {
		return true, "", 0
	}
	return false, notReady, startWithin
}

// lacks returns the first annotation that the arm's subject should have added to a pod and has not; "" if it has added
// all.
func (x *trial) lacks(pod *api.Pod) string {
	marks := x.marks.On(pod.Labels[partLabel])
	if marks == nil {
		return ""
	}
	for _, key := range slices.Sorted(maps.Keys(marks.Applied)) {
		if value := marks.Applied[key]; pod.Annotations[key] != value {
			return key + "=" + value
		}
	}
	return ""
}

// has returns the first annotation of a pod that the subject of any arm adds to the pods to which it applies; "" if
// there is none.
func (x *trial) has(pod *api.Pod) (string, error) {
	for _, subject := range x.spec.Subjects() {
		of, is := subject.Kind.(kind.Marked)
		if !is {
			continue
		}
		marks, err := of.Marks(subject.Options)
		if err != nil {
			return "", err
		}
		for _, key := range slices.Sorted(maps.Keys(marks.Applied)) {
			if value := marks.Applied[key]; pod.Annotations[key] == value {
				return key + "=" + value, nil
			}
		}
	}
	return "", nil
}

// added returns the names of a pod's containers that are not Tare's.
func added(pod *api.Pod) (others []string) {
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		if c.Name != container {
			others = append(others, c.Name)
		}
	}
	return others
}

// imagesOf returns, by name, the images of containers that are not Tare's. Their tags are the versions of what was
// installed.
func imagesOf(pods map[string]*api.Pod) map[string]string {
	images := map[string]string{}
	for _, pod := range pods {
		for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			if c.Name != container {
				record.AddVersion(images, c.Name, c.Image)
			}
		}
	}
	return images
}

// runs records the images of the subject's containers as what the subject consists of.
func (x *trial) runs(images map[string]string) (err error) {
	x.record.Subject, err = json.Marshal(record.Installed{Images: images})
	return err
}

// ours reports whether a container is in a pod of the trial.
func (x *trial) ours(n *ledger.Name) bool {
	return n.Namespace == x.o.Owned.Namespace &&
		slices.ContainsFunc(slices.Collect(maps.Values(x.pods)), func(p *api.Pod) bool { return p.Name == n.Pod })
}

// applies checks that the arm's subject applies to the pods for which it is meant, and that no subject applies to any
// other pod of the trial.
func (x *trial) applies() error {
	var others []string
	for name, pod := range x.pods {
		marks, of := x.marks.On(name), added(pod)
		if marks == nil && len(of) > 0 {
			return fault.New(fault.Usage, "pod "+pod.Namespace+"/"+pod.Name,
				"choose a namespace in which nothing is injected into pods that do not ask for it",
				"%s has the container %s, and %s must have none but Tare's", name, of[0], x.plain())
		}
		others = append(others, of...)
		if marks == nil {
			given, err := x.has(pod)
			if err != nil {
				return err
			}
			if given != "" {
				return fault.New(fault.Usage, "pod "+pod.Namespace+"/"+pod.Name,
					"choose a namespace in which the subject applies only to pods that ask for it",
					"%s was given the annotation %s: a subject applies to %s too", name, given, x.plain())
			}
		}
		if marks != nil && marks.RuntimeClass != "" &&
			(pod.Spec.RuntimeClassName == nil || *pod.Spec.RuntimeClassName != marks.RuntimeClass) {
			return fault.New(fault.Machine, "pod "+pod.Namespace+"/"+pod.Name, "", "%s does not run under the RuntimeClass %s",
				name, marks.RuntimeClass)
		}
	}
	if x.marks == nil {
		return nil
	}
	for i := range x.marks.Components {
		r := &x.marks.Components[i]
		if kind.InPods(r) && !slices.ContainsFunc(others, r.IsContainer) {
			return fault.New(fault.Machine, "arms."+x.record.Arm, "check the labels that the arm sets, and that the "+
				"injecting webhook runs", "the subject does not apply: no pod of the trial has a container %s; they have %s",
				r.Container, cmp.Or(strings.Join(others, ", "), "none but Tare's"))
		}
	}
	return nil
}

// plain names the pods to which no subject applies in this trial.
func (x *trial) plain() string {
	if x.marks == nil {
		return "the baseline"
	}
	return "a part that \"parts\" leaves out"
}

// start starts a part and waits until it is ready.
func (x *trial) start(ctx context.Context, as kind.Role, name string, of *kind.Part, at kind.Site) (*playing,
	json.RawMessage, error,
) {
	args, err := kind.Command(as, of.Kind, at)
	if err != nil {
		return nil, nil, err
	}
	args = append(args[1:], of.Options.Args(of.Settings())...) // without the command for a process on this machine
	pod := x.pods[name]
	p, err := x.meet(ctx, pod, name, part.To{Reach: at.Address, Args: args})
	if err != nil {
		return nil, nil, err
	}
	x.mu.Lock()
	x.all = append(x.all, p)
	x.mu.Unlock()
	raw, err := p.ReadyWithin(ctx, max(2*role.ReadyTimeout, of.Kind.About().ReadyWithin.With(of.Options)))
	return p, raw, err
}

// dial connects to the port of a part, through the API server or, if the part runs under a RuntimeClass, directly.
func (x *trial) dial(ctx context.Context, pod *api.Pod, name string) (net.Conn, error) {
	if marks := x.marks.On(name); marks == nil || marks.RuntimeClass == "" {
		return x.o.Cluster.Dial(ctx, pod.Namespace, pod.Name, part.Port)
	}
	d := net.Dialer{Timeout: dialWithin}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(part.Port)))
	if err != nil {
		return nil, fault.New(fault.Machine, "pod "+pod.Namespace+"/"+pod.Name,
			"see whether a network policy keeps the coordinator from it, and whether the sandbox has a network", "%v", err)
	}
	return direct{c}, nil
}

// direct is a connection to a pod. It hides which errors are network errors, because ofServer would blame those on the
// API server, although the network of a sandbox is a part of what is weighed.
type direct struct{ net.Conn }

func (d direct) Read(p []byte) (int, error)  { n, err := d.Conn.Read(p); return n, opaque(err) }
func (d direct) Write(p []byte) (int, error) { n, err := d.Conn.Write(p); return n, opaque(err) }

func opaque(err error) error {
	if _, network := errors.AsType[net.Error](err); network {
		return errors.New(err.Error())
	}
	return err
}

// meet connects to a part. It tries repeatedly, because forwarding a port succeeds before the process listens on it.
func (x *trial) meet(ctx context.Context, pod *api.Pod, name string, to part.To) (*playing, error) {
	secret := part.Secret{Token: x.o.Token, Pod: pod.Name}
	p := &playing{node: pod.Spec.NodeName}
	for begin := time.Now(); ; {
		c, err := x.dial(ctx, pod, name)
		if err == nil {
			asked := time.Now()
			if p.Remote, p.clock, err = part.Meet(ctx, name, c, secret, x.o.Version, to, x.cancel); err == nil {
				p.took = time.Since(asked)
				p.met = asked.Add(p.took / 2)
				return p, nil
			}
		}
		if fault.CodeOf(err) == fault.Usage || time.Since(begin) > listenWithin {
			return nil, fmt.Errorf("reaching %s: %w", name, err)
		}
		if err := pace.Sleep(ctx, poll); err != nil {
			return nil, err
		}
	}
}

// begin sends each load the time at which to begin, by the clock of its node. It returns an error if it took so long
// that the time has passed.
func (x *trial) begin(w *agents.Window) error {
	for _, name := range slices.Sorted(maps.Keys(x.loads)) {
		p := x.loads[name]
		offset, known := w.Offsets[p.node]
		if !known {
			x.record.Validity.Cause = ledger.Neighbour
			return fmt.Errorf("the clock of the node %s, on which %s runs, is not known: it has no agent that answers", p.node,
				name)
		}
		// The schedule of the load would be that far from the windows of the nodes.
		if jump := p.stepped(w.Start, offset); jump > tolerated(w)+p.took/2 {
			x.record.Validity.Cause = ledger.Neighbour
			return fmt.Errorf("the clock of the node %s, on which %s runs, was set by %v while the trial was set up", p.node,
				name, jump.Round(time.Millisecond))
		}
		s := role.Schedule{Begin: p.clock.MonotonicAt(w.Start.Add(offset)) - int64(x.spec.Warmup),
			Warmup: int64(x.spec.Warmup), Duration: int64(x.spec.Duration), Stalls: p.wants.Stalls,
			Suspended: new(p.clock.Suspended)}
		if err := p.Send(role.Start, s); err != nil {
			return fmt.Errorf("starting the load %s: %w", name, err)
		}
	}
	if late := time.Since(w.Start.Add(-x.spec.Warmup)); late > 0 {
		return fmt.Errorf("the loads received their start time %v late: the API server is slow",
			late.Round(time.Millisecond))
	}
	return nil
}

// results receives the results of the loads. Stalls are unknown, because agents do not report their times.
func (x *trial) results(ctx context.Context) error {
	for name, p := range x.loads {
		if p.wants.Stalls {
			stalls := role.Stalls{Spans: [][2]int64{}, Unknown: "agents do not say when a machine stood still"}
			if err := p.Send(role.Halts, stalls); err != nil {
				return fmt.Errorf("telling the load %s of stalls: %w", name, err)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(x.loads)) {
		var r load.Result
		timeout := x.spec.Loads[name].Options.Duration("drain") + engine.ResultTimeout
		err := x.loads[name].Result(ctx, timeout, &r)
		if err == nil {
			err = r.Check()
		}
		if err != nil {
			return err
		}
		x.record.Loads[name] = r
	}
	return nil
}

// tearDown ends the parts, removes the pods, and waits until they are gone. It waits for an API server that is away,
// because pods that stay would run beside the next trials, and because the trial has been measured. If the server stays
// away, another attempt at the trial is worthwhile.
func (x *trial) tearDown(ctx context.Context) error {
	for _, p := range x.all {
		p.Close()
	}
	again := func(ctx context.Context) error {
		err := x.remove(ctx)
		for ofServer(err) && pace.Sleep(ctx, poll) == nil {
			err = x.remove(ctx)
		}
		return err
	}
	away, stop := context.WithTimeout(ctx, awayWithin)
	defer stop()
	err := again(away)
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), endWithin)
	defer cancel()
	if err != nil && away.Err() != nil { // the run was interrupted, or the server is still away
		err = again(last)
	}
	if err == nil {
		err = gone(last, x.o.Cluster, x.o.Owned.Namespace, x.selector())
	}
	if ofServer(err) {
		x.record.Validity.Cause = ledger.Neighbour
	}
	return err
}

// remove removes the Services and pods of the trial.
func (x *trial) remove(ctx context.Context) error {
	core := x.o.Cluster.Core()
	var errs []error
	for name := range x.parts() {
		object := x.objectName(x.id, name)
		if _, serves := x.spec.Applications[name]; serves {
			errs = append(errs, agents.Removed(core.Services(x.o.Owned.Namespace).Delete(ctx, object, metav1.DeleteOptions{})))
		}
		errs = append(errs, agents.Removed(core.Pods(x.o.Owned.Namespace).Delete(ctx, object,
			metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))})))
	}
	return x.refused(errors.Join(errs...), "removing pods")
}

// explain adds to an error what happened to the trial's pods. It also records whether an outside cause made the trial
// fail, in which case another attempt is worthwhile: a suspended machine, or an error of the API server if the arm's
// pods have been ready before.
func (x *trial) explain(ctx context.Context, err error) error {
	if x.cameUp[x.record.Arm] && ofServer(err) || errors.Is(err, role.ErrSuspended) {
		x.record.Validity.Cause = ledger.Neighbour
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if why := x.lasted(ctx); why != nil && !ofServer(why) {
		return fmt.Errorf("%w; %w", err, why)
	}
	return err
}

// ofServer reports whether an error says that the API server was unreachable, or could not do what it was asked. This
// includes errors of webhooks that it called.
func ofServer(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return network || apierrors.IsInternalError(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsTooManyRequests(err)
}

// lasted checks that the pods and their containers are still those that were set up. The counters of a container that
// was restarted cover only a part of the window.
func (x *trial) lasted(ctx context.Context) error {
	list, err := x.o.Cluster.Core().Pods(x.o.Owned.Namespace).List(ctx, metav1.ListOptions{LabelSelector: x.selector()})
	if err != nil {
		return x.refused(err, "listing pods")
	}
	for _, name := range slices.Sorted(maps.Keys(x.pods)) {
		was := x.pods[name]
		i := slices.IndexFunc(list.Items, func(p api.Pod) bool { return p.UID == was.UID })
		if i < 0 || list.Items[i].DeletionTimestamp != nil {
			x.record.Validity.Cause = ledger.Neighbour
			return x.broken(was, "the pod was deleted or evicted during the trial")
		}
		pod := &list.Items[i]
		if ready, why, patience := stateOf(pod); !ready && patience == 0 {
			if pod.Status.Reason != "" { // set by the kubelet: Evicted, Preempting, NodeShutdown
				x.record.Validity.Cause = ledger.Neighbour
			}
			return x.broken(pod, why)
		}
		if again := startedAgain(was, pod); again != "" {
			return x.broken(pod, again+" was started again during the trial")
		}
	}
	return nil
}

// startedAgain returns the name of a container of a pod that was restarted, or "".
func startedAgain(before, now *api.Pod) string {
	statuses := func(p *api.Pod) []api.ContainerStatus {
		return slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses)
	}
	for _, was := range statuses(before) {
		if slices.ContainsFunc(statuses(now), func(s api.ContainerStatus) bool {
			return s.Name == was.Name && was.ContainerID != "" && s.ContainerID != was.ContainerID
		}) {
			return was.Name
		}
	}
	return ""
}

// account joins the nodes' ledgers into one whose groups are charged to the parts of the trial, and records it with the
// metrics that follow from it.
func (x *trial) account(views []ledger.View) error {
	for name, pod := range x.pods {
		if !slices.ContainsFunc(views, func(v ledger.View) bool { return v.Name == pod.Spec.NodeName }) {
			x.record.Validity.Cause = ledger.Neighbour
			return fmt.Errorf("the node %s, on which %s ran, gave no window: %s", pod.Spec.NodeName, name,
				cmp.Or(strings.Join(x.silent, "; "), noAgent))
		}
	}
	if component := x.clusterWide(); component != "" && len(x.lost) > 0 {
		x.record.Validity.Cause = ledger.Neighbour
		return fmt.Errorf("%s is part of the cost wherever it runs in the cluster, and %s gave no window: %s",
			component, quantity.Counted(len(x.lost), "node"), strings.Join(x.lost, "; "))
	}
	l := x.join(views)
	if len(x.silent) > 0 {
		l.Warn("nodes-without-window", "%s gave no window, and what a component uses there is in no figure: %s",
			quantity.Counted(len(x.silent), "node"), strings.Join(x.silent, "; "))
	}
	rules, limits, err := x.rules()
	if err != nil {
		return err
	}
	x.describe(l)
	charge.Apply(rules, l, nil)
	roles := map[string]measured.GroupRole{}
	found := map[ledger.Charged]bool{}
	images := imagesOf(x.pods)
	for i := range l.Cgroups {
		g := &l.Cgroups[i]
		var as kind.Role
		switch g.Charge {
		case ledger.ChargeWorkload:
			as = kind.Application
		case ledger.ChargeLoad:
			as = kind.Load
		case ledger.ChargeTare:
			as = kind.Subject
		default:
			continue
		}
		found[g.Charged] = true
		r := measured.GroupRole{Role: as, Charged: g.Charged}
		if as == kind.Subject {
			r.Limited = true // it may have a limit with which it was installed
			if n := g.Name; n != nil && n.Image != "" && n.Container != "" && n.Container != sandbox && !x.ours(n) {
				record.AddVersion(images, n.Container, n.Image)
			}
		} else if g.Name != nil {
			r.Limit = limits[g.Name.Pod]
			r.Limited = r.Limit > 0
		}
		roles[g.Path] = r
	}
	objects := objectsOf(l, found)
	for i := range rules {
		if c := rules[i].Charged; !found[c] {
			return fmt.Errorf("no node has a control group or program of %s (%s)", cmp.Or(c.Component, c.Workload, "the load"),
				rules[i].Patterns.String())
		}
	}
	if x.marks != nil {
		if err := x.runs(images); err != nil {
			return err
		}
	}
	x.record.Ledger = l
	m := &measured.Measured{Setup: &x.spec.Setup, Tree: measured.Nowhere}
	if x.marks != nil {
		m.Subject = objects
		objects.Incomplete = x.mixed(l)
	}
	m.Into(x.record, roles)
	return nil
}

// mixed reports whether a node that is not weighed is on the machine of one that is, so that the ledger has the eBPF
// programs of both. It then adds a warning to the ledger.
func (x *trial) mixed(l *ledger.Ledger) bool {
	machines := map[string]bool{}
	for _, n := range x.o.Nodes {
		if x.weighs(n.Name) {
			machines[n.Machine] = true
		}
	}
	i := slices.IndexFunc(x.o.Nodes, func(n agents.Node) bool { return !x.weighs(n.Name) && machines[n.Machine] })
	if i >= 0 {
		l.Warn("programs-mixed", "the node %s is on the machine of nodes that are weighed: eBPF programs and maps are those "+
			"of both, so what they cost is not given", x.o.Nodes[i].Name)
	}
	return i >= 0
}

// join joins the nodes' ledgers into one, without the charges made by their agents. Nodes on one machine see the same
// eBPF programs, so only those of the first node count.
func (x *trial) join(views []ledger.View) *ledger.Ledger {
	machines := lists.Keyed(x.o.Nodes, func(n agents.Node) (string, string) { return n.Name, n.Machine })
	first := map[string]string{}
	var shared []string
	for _, v := range views {
		l := v.Ledger
		for i := range l.Cgroups {
			l.Cgroups[i].Charged, l.Cgroups[i].Rule, l.Cgroups[i].Role = ledger.Charged{}, "", ""
		}
		machine := cmp.Or(machines[v.Name], v.Name)
		if at := first[machine]; at != "" {
			shared = append(shared, v.Name+" and "+at)
			l.Programs, l.Maps = []ledger.Program{}, []ledger.Map{}
		} else {
			first[machine] = v.Name
		}
		for i := range l.Programs {
			l.Programs[i].Charged, l.Programs[i].Rule = ledger.Charged{}, ""
		}
		for i := range l.Maps {
			l.Maps[i].Charged, l.Maps[i].Rule = ledger.Charged{}, ""
		}
	}
	l := ledger.Join(views)
	if len(shared) > 0 {
		l.Warn("nodes-share-machine", "%s are one machine: its capacity counts for each of them, and eBPF programs are "+
			"seen from the first", strings.Join(shared, ", "))
	}
	return l
}

// rules returns the rules that charge the containers of the trial's pods, or all of these pods, to their parts, and
// those of the subject. limits are the CPU limits of the pods' parts, by pod, in CPUs.
func (x *trial) rules() (rules []charge.Rule, limits map[string]float64, err error) {
	whole, err := wholePods(x.spec)
	if err != nil {
		return nil, nil, err
	}
	limits = map[string]float64{}
	for name, of := range x.parts() {
		pod := x.pods[name].Name
		as := ledger.Charged{Charge: ledger.ChargeLoad}
		if _, is := x.spec.Applications[name]; is {
			as = ledger.Charged{Charge: ledger.ChargeWorkload, Workload: name}
		}
		in := charge.Patterns{Namespace: x.o.Owned.Namespace, Pod: pod, Container: container}
		if whole {
			in.Container = ""
		}
		if marks := x.marks.On(name); marks != nil {
			for _, r := range marks.Components {
				if kind.InPods(&r) && slices.ContainsFunc(added(x.pods[name]), r.IsContainer) {
					r.Namespace, r.Pod, r.Component = x.o.Owned.Namespace, pod, r.Component+"."+name
					r.Workload = as.Workload
					rules = append(rules, r)
				}
			}
		}
		rules = append(rules, charge.Rule{Charged: as, Where: name, Patterns: in})
		limits[pod] = of.Limits.Float("cpus")
	}
	if x.marks != nil {
		for _, r := range x.marks.Components {
			if !kind.InPods(&r) {
				if r.Cgroup != "" {
					r.Cgroup = "/*" + r.Cgroup // of any node
				}
				rules = append(rules, r)
			}
		}
	}
	return rules, limits, nil
}

// clusterWide returns the first component of the arm's subject that may be on any node; "" if there is none.
func (x *trial) clusterWide() string {
	if x.marks != nil {
		for i := range x.marks.Components {
			if r := &x.marks.Components[i]; !kind.InPods(r) {
				return r.Component
			}
		}
	}
	return ""
}

// objectsOf returns the programs and maps that are charged to the subject, and adds their charges to found.
func objectsOf(l *ledger.Ledger, found map[ledger.Charged]bool) *kind.Objects {
	o := &kind.Objects{}
	for i := range l.Programs {
		if p := &l.Programs[i]; p.Charge == ledger.ChargeTare {
			o.Programs = append(o.Programs, kind.Object{ID: p.ID, Name: p.Name})
			found[p.Charged] = true
		}
	}
	for i := range l.Maps {
		if m := &l.Maps[i]; m.Charge == ledger.ChargeTare {
			o.Maps = append(o.Maps, kind.Object{ID: m.ID, Name: m.Name})
			found[m.Charged] = true
		}
	}
	return o
}
