package pods

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	api "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/record"
	"tare/internal/kube/agents"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/text"
	"tare/internal/scale/ledger"
)

const (
	quiet      = 2 * time.Second        // after this time without a new event, missing events count as lost
	whole      = 500 * time.Millisecond // the same time if no event is missing
	drainMost  = 30 * time.Second       // the longest wait for events after the end of the loads
	refusedIn  = 500 * time.Millisecond // how long the API server may take to refuse access to a log
	logHistory = 60                     // seconds of a log that are read from before the time when following starts
	maxLine    = 64 << 10               // bytes of a line that are looked at; the rest is skipped
)

// logs counts the events in the logs of an installed subject. Each log is followed from before the loads begin, so the
// kubelet may rotate it during the trial. An event counts if the loads had begun when its node logged it.
type logs struct {
	cancel context.CancelFunc
	ended  sync.WaitGroup

	mu     sync.Mutex
	counts map[string]*count // by node
}

// count holds the number of events in the log of one node.
type count struct {
	From time.Time // by the node's clock: earlier lines are not counted
	N    int64
	err  error // why the log can no longer be followed
}

// follow begins to read the logs of the arm's subject on the nodes of the loads. It returns nil for an arm without such
// logs.
func (x *trial) follow(ctx context.Context) (*logs, error) {
	if x.marks == nil || x.marks.Logs == nil {
		return nil, nil
	}
	of := x.marks.Logs
	list, err := x.o.Cluster.Core().Pods(of.Of.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, refusedLogs(err, of.Of.Namespace)
	}
	logged, err := x.logged(list.Items)
	if err != nil {
		return nil, err
	}
	l := &logs{counts: map[string]*count{}}
	for node := range logged {
		l.counts[node] = &count{}
	}
	ctx, l.cancel = context.WithCancel(ctx)
	for node, of := range logged {
		l.ended.Go(func() { x.read(ctx, l, node, of) })
	}
	if err = pace.Sleep(ctx, refusedIn); err == nil {
		_, err = l.now()
	}
	if err != nil {
		l.close()
		return nil, err
	}
	x.followed = true
	return l, nil
}

// logged returns, for each node of the loads, the container whose log has the subject's events.
func (x *trial) logged(all []api.Pod) (map[string]*ledger.Name, error) {
	logged := map[string]*ledger.Name{}
	for _, p := range x.loads {
		logged[p.node] = nil
	}
	for i := range all {
		pod := &all[i]
		node := pod.Spec.NodeName
		if _, has := logged[node]; !has || pod.DeletionTimestamp != nil || pod.Status.Phase != api.PodRunning {
			continue
		}
		for _, c := range pod.Spec.Containers {
			name := &ledger.Name{Namespace: pod.Namespace, Pod: pod.Name, Container: c.Name}
			if !x.marks.Logs.Of.MatchesPod(name, "", "") {
				continue
			}
			if logged[node] != nil {
				return nil, fault.New(fault.Usage, "arms."+x.record.Arm, "narrow the rule with pod= and container=",
					"two containers of the node %s match the rule for its logs: %s of %s, and %s of %s", node,
					logged[node].Container, logged[node].Pod, c.Name, pod.Name)
			}
			logged[node] = name
		}
	}
	for _, node := range slices.Sorted(maps.Keys(logged)) {
		if logged[node] == nil {
			if x.followed { // its pod is being replaced
				x.record.Validity.Cause = ledger.Neighbour
			}
			return nil, fault.New(fault.Machine, "arms."+x.record.Arm, "kubectl get pods -o wide -n "+x.marks.Logs.Of.Namespace,
				"no container that runs on the node %s matches the rule for its logs", node)
		}
	}
	return logged, nil
}

func refusedLogs(err error, namespace string) error {
	hint := agents.Hint(err)
	if apierrors.IsForbidden(err) {
		hint = "give the service accounts of the run's namespace a Role like tare-logs of deploy/kubernetes/exectrace.yaml"
	}
	return fault.Wrap(err, fault.Machine, "namespace "+namespace, hint, "reading the logs of a subject failed")
}

// read counts the events in the log of a container, until ctx ends.
func (x *trial) read(ctx context.Context, l *logs, node string, of *ledger.Name) {
	// SinceSeconds counts back by the node's clock, whereas an absolute time would be by this machine's.
	stream, err := x.o.Cluster.Core().Pods(of.Namespace).GetLogs(of.Pod, &api.PodLogOptions{Container: of.Container,
		Follow: true, Timestamps: true, SinceSeconds: new(int64(logHistory))}).Stream(ctx)
	if err == nil {
		err = l.take(stream, node, x.marks.Logs.Event)
		stream.Close()
		if errors.Is(err, io.EOF) {
			err = errors.New("it ended: the container was stopped, or the API server")
		}
	} else {
		err = refusedLogs(err, of.Namespace)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.counts[node].err = fmt.Errorf("the log of %s on %s: %w", of.Pod, node, err)
}

// take counts the events in a log whose lines begin with times, until the log ends. A line that is too long is cut.
func (l *logs) take(log io.Reader, node string, event func([]byte) bool) error {
	for r := bufio.NewReaderSize(log, maxLine); ; {
		line, err := r.ReadSlice('\n')
		long := errors.Is(err, bufio.ErrBufferFull)
		if err != nil && !long {
			return err
		}
		stamp, said, _ := bytes.Cut(bytes.TrimSuffix(line, []byte{'\n'}), []byte{' '})
		at, err := time.Parse(time.RFC3339Nano, string(stamp))
		if err != nil {
			return fmt.Errorf("a line has no time: %s", text.ClipLine(string(line), maxWhy))
		}
		if event(said) {
			l.add(node, at)
		}
		for long {
			_, err := r.ReadSlice('\n')
			if long = errors.Is(err, bufio.ErrBufferFull); err != nil && !long {
				return err
			}
		}
	}
}

// add counts an event, unless it is from before the loads began.
func (l *logs) add(node string, at time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.counts[node]; !c.From.IsZero() && !at.Before(c.From) {
		c.N++
	}
}

// from sets the time from which events count: when the loads begin, by the clocks of their nodes.
func (l *logs) from(begin time.Time, offsets map[string]time.Duration) {
	if l == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for node, c := range l.counts {
		c.From = begin.Add(offsets[node])
	}
}

// now returns the number of events so far, by node, or an error if one of the logs can no longer be followed.
func (l *logs) now() (map[string]int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := map[string]int64{}
	for node, c := range l.counts {
		if c.err != nil {
			return nil, c.err
		}
		n[node] = c.N
	}
	return n, nil
}

// settle waits until the logs have all events that the loads made (made, by node), or no new ones for some time, and
// returns the number of events in the logs, by node.
func (l *logs) settle(ctx context.Context, made map[string]int64) (map[string]int64, error) {
	begin := time.Now()
	last, _ := l.now()
	for since := begin; ; {
		now, err := l.now()
		if err != nil {
			return nil, err
		}
		if !maps.Equal(now, last) {
			last, since = now, time.Now()
		}
		switch still := time.Since(since); {
		case still >= quiet || maps.Equal(now, made) && still >= whole:
			return now, nil
		case time.Since(begin) >= drainMost:
			return nil, fault.New(fault.Invalid, "", "lower the rate", "%v after the end of the loads, their events still "+
				"come", drainMost)
		}
		if err := pace.Sleep(ctx, poll); err != nil {
			return nil, err
		}
	}
}

// close stops following.
func (l *logs) close() {
	if l != nil {
		l.cancel()
		l.ended.Wait()
	}
}

// events records how many events the loads made and how many the subject delivered, and notes the nodes on which some
// were lost.
func (x *trial) events(ctx context.Context, l *logs) error {
	e, made := &record.Events{}, map[string]int64{}
	for name, p := range x.loads {
		maker, is := x.spec.Loads[name].Kind.(kind.EventMaker)
		if !is {
			continue
		}
		r := x.record.Loads[name]
		n, failed := maker.Events(&r)
		e.Generated, e.Failed = e.Generated+n, e.Failed+failed
		made[p.node] += n
	}
	if len(made) == 0 {
		return nil
	}
	x.record.Events = e
	if l == nil {
		return nil
	}
	delivered, err := l.settle(ctx, made)
	if err != nil {
		if ctx.Err() == nil && fault.CodeOf(err) != fault.Invalid {
			x.record.Validity.Cause = ledger.Neighbour
		}
		return err
	}
	e.Expected, e.AtMost, e.Delivered = &e.Generated, &e.Generated, new(int64(0))
	for _, node := range slices.Sorted(maps.Keys(delivered)) {
		n, of := delivered[node], made[node]
		switch *e.Delivered += n; {
		case n > of: // the surplus would hide losses of other nodes
			return fault.New(fault.Invalid, "arms."+x.record.Arm, "narrow lines: they may match what others execute",
				"the log of %s has %d events, and its loads made %d", node, n, of)
		case n < of:
			x.lacking = append(x.lacking, fmt.Sprintf("%s: %d of %d", node, n, of))
		}
	}
	return nil
}

// describe adds a warning to l that names the nodes on which events were lost.
func (x *trial) describe(l *ledger.Ledger) {
	if len(x.lacking) > 0 {
		l.Warn("events-lost", "%s did not deliver all events: %s", x.record.Arm, strings.Join(x.lacking, "; "))
	}
}
