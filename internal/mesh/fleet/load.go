package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/services"
)

// Generator is the name of this load in results.
const Generator = "fleet"

// The names of the histograms. Times of changes (the first five) start when the control plane gets the change. The
// first four get a value for each change of one service; histogramEffect gets a value from each Envoy for each change
// of the service that shows effects. Times of rollouts and churn start when the first proxy begins to connect.
const (
	histogramFirst    = "fleet_first"          // until the first proxy concerned had the response
	histogramMedian   = "fleet_median"         // until half of them had it
	histogramLast     = "fleet_last"           // until all had it
	histogramAnswered = "fleet_answered"       // until all had acknowledged it
	histogramEffect   = "fleet_effect"         // until the new endpoint answered a request through a real Envoy
	histogramHalf     = "fleet_rollout_median" // until half of all proxies had everything
	histogramRollout  = "fleet_rollout"        // until all proxies had everything
	histogramChurn    = "fleet_churn"          // until all proxies that reconnected had everything
)

// The names of the counts. Bytes, responses and ends are counted from the first piece of work that begins in the window
// until the last one has ended.
const (
	countProxies   = "proxies"   // connected, at the end
	countConcerned = "concerned" // proxies that a change concerned, summed over the changes that count
	countBytes     = "bytes"     // of the resources that all proxies received
	countResponses = "responses" // that all proxies received
	// countPieces is the number of pieces of work in the window: changes, rollouts, or reconnections of a tenth of the
	// proxies. A piece at the window's edge counts by the fraction of its time that is in the window, because costs are
	// counted between the edges.
	countPieces = "pieces"
	countEnds   = "ends" // connections that ended although the load did not close them
)

// longest is the longest time that histograms distinguish, in ns.
const longest = int64(600e9)

// patience is the time limit for all proxies to get everything, and for a change to reach the proxies that it concerns.
const patience = 2 * time.Minute

// Load is a fleet at a control plane, ready to run once. Its methods must not be called concurrently.
type Load struct {
	o      LoadOptions
	ready  Ready
	fleet  *Fleet
	mesh   *services.Client
	random *rand.Rand
	change int // number of the last change

	concerning []int // services whose changes concern at least one answering proxy
	returning  []int // indexes i: the tenth of the proxies from i on has at least one answering proxy
	envoys     []*envoy
	effects    int  // changes so far of the service that shows effects
	pieces     int  // changes so far
	left       bool // the proxies that leave have been disconnected (Leave)
}

// Prepare connects all proxies to a control plane, and waits until each has everything. It also starts the Envoys.
func Prepare(ctx context.Context, o LoadOptions, r Ready) (l *Load, err error) {
	if r.Address == "" || r.Control == "" || r.Services == 0 {
		return nil, fault.New(fault.Usage, "subject", "weigh one of kind controlplane",
			"the subject is not a control plane that proxies can connect to")
	}
	if r.Proxies < o.Proxies {
		return nil, fault.New(fault.Usage, proxiesKey, "", "the control plane has %d proxies, and %d are to connect",
			r.Proxies,
			o.Proxies)
	}
	l = &Load{o: o, ready: r, random: rand.New(rand.NewPCG(o.Seed, 0)), change: 1}
	l.ready.Proxies = o.Proxies
	secure, err := l.secure()
	if err != nil {
		return nil, err
	}
	if l.mesh, err = services.Dial(ctx, r.Control, ""); err != nil {
		return nil, err
	}
	l.fleet = New(o.Proxies, Options{Address: r.Address, Node: r.nodes(), TLS: secure, Delta: o.Delta, Manner: o.manner,
		MarkOf: MarkOf, Again: time.Second})
	for service := range r.Services {
		if l.concerned(service) > 0 {
			l.concerning = append(l.concerning, service)
		}
	}
	for from := range o.Proxies - tenth(o.Proxies) + 1 {
		if slices.ContainsFunc(l.fleet.proxies[from:from+tenth(o.Proxies)], (*proxy).answers) {
			l.returning = append(l.returning, from)
		}
	}
	if !still(o.Work) && (len(l.returning) == 0 || o.Work == OneChange && len(l.concerning) == 0) {
		return nil, errors.Join(fault.New(fault.Usage, proxiesKey, "give the mesh more services, or more proxies",
			"no %s would concern a proxy that answers", o.Work), l.Close())
	}
	if err := l.connect(ctx, 0, l.fleet.Len(), nil); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	if r.Effect != nil {
		if l.envoys, err = startEnvoys(ctx, r.Effect); err != nil {
			return nil, errors.Join(err, l.Close())
		}
	}
	return l, nil
}

// secure reads the proxies' credentials. It returns nil if there are none.
func (l *Load) secure() (func(int) *tls.Config, error) {
	if l.ready.Credentials == "" {
		return nil, nil
	}
	var all []*tls.Config
	for i := range min(l.ready.Services, l.o.Proxies) {
		c, err := authority.ReadFiles(filepath.Join(l.ready.Credentials, ServiceName(i)))
		if err != nil {
			return nil, fmt.Errorf("reading the credentials of a proxy: %w", err)
		}
		plane, err := c.ControlPlane()
		if err != nil {
			return nil, err
		}
		all = append(all, authority.ClientTLS(func() (authority.Credentials, error) { return c, nil }, plane))
	}
	return func(i int) *tls.Config { return all[l.ready.ServiceOf(i)] }, nil
}

// Close closes all connections, and ends the Envoys.
func (l *Load) Close() error {
	closeEnvoys(l.envoys)
	l.fleet.Close()
	return l.mesh.Close()
}

// Run does the fleet's work by the schedule. Pieces of work that begin in the window count, whenever they end. If none
// begins in the window, the first piece after it counts, so that there is at least one; idle and leave have none.
func (l *Load) Run(ctx context.Context, s role.Schedule) (*load.Result, error) {
	begin, end, err := s.Window()
	if err != nil {
		return nil, err
	}
	w := &window{begin: begin, end: end, times: map[string]*hdrhistogram.Histogram{}}
	cpu, err := s.CPUTime(func() error {
		if err := pace.SleepUntil(ctx, s.Begin); err != nil {
			return err
		}
		return l.work(ctx, w)
	})
	if err != nil {
		return nil, err
	}
	return l.result(w, cpu)
}

// work does pieces of work until the window has ended and at least one piece has counted.
func (l *Load) work(ctx context.Context, w *window) error {
	for counting := false; ; {
		began := pace.Now()
		if began >= w.begin && !counting {
			counting, w.before = true, l.fleet.Counts()
		}
		if began >= w.end && (w.n > 0 || still(l.o.Work)) {
			return nil
		}
		var to *window
		if counting {
			to = w
		}
		if err := l.piece(ctx, to, w); err != nil {
			return err
		}
		if !still(l.o.Work) {
			w.holds(began, pace.Now())
		}
	}
}

// piece makes one change, one rollout or one reconnection of a tenth of the proxies, or waits for a while. If the piece
// counts, to is the same window as w; otherwise to is nil.
func (l *Load) piece(ctx context.Context, to, w *window) (err error) {
	switch n := l.fleet.Len(); l.o.Work {
	case Idle, Leave:
		if l.o.Work == Leave && to != nil && !l.left {
			l.left = true
			l.fleet.Disconnect(tenth(n), n)
		}
		edge := w.end
		if to == nil {
			edge = w.begin
		}
		return pace.SleepUntil(ctx, min(pace.Now()+int64(100*time.Millisecond), edge))
	case Rollout, Churn:
		from, until := 0, n
		if l.o.Work == Churn {
			from = l.returning[l.random.IntN(len(l.returning))]
			until = from + tenth(n)
		}
		l.fleet.Disconnect(from, until)
		if err = l.pause(ctx); err == nil {
			err = l.connect(ctx, from, until, to)
		}
	default:
		l.pieces++
		if len(l.envoys) > 0 && l.pieces%effectEvery == 0 {
			err = l.effect(ctx, to)
		} else {
			err = l.one(ctx, to)
		}
		if err == nil {
			err = l.pause(ctx)
		}
	}
	return err
}

// effectEvery determines how often the service that shows effects is changed: if there are real proxies, in one of
// effectEvery changes.
const effectEvery = 4

// pause waits for a random 0.5 to 1.5 times LoadOptions.Pause.
func (l *Load) pause(ctx context.Context) error {
	return pace.SleepUntil(ctx, pace.Now()+int64((0.5+l.random.Float64())*float64(l.o.Pause)))
}

// tenth returns a tenth of n, and at least 1.
func tenth(n int) int { return max(1, n/10) }

// connect connects some proxies, and waits until all that are connected have everything. It adds the times to w,
// unless w is nil.
func (l *Load) connect(ctx context.Context, from, until int, w *window) error {
	waiting, stop := context.WithTimeout(ctx, patience)
	defer stop()
	began := pace.Now()
	if err := l.fleet.Connect(ctx, from, until); err != nil {
		return err
	}
	at, err := l.fleet.Complete(waiting)
	if err != nil {
		return fault.Wrap(err, fault.Machine, l.ready.Address, "see what the control plane says",
			"the proxies do not get what they ask for")
	}
	switch {
	case w == nil || len(at) == 0:
		return nil
	case l.o.Work == Churn: // the others have had everything all the time
		return w.add(began, map[string]int64{histogramChurn: at[len(at)-1] - began})
	}
	return w.add(began, map[string]int64{histogramRollout: at[len(at)-1] - began,
		histogramHalf: at[(len(at)-1)/2] - began})
}

// concerned returns how many answering proxies a change of a service concerns.
func (l *Load) concerned(service int) (n int) {
	for _, i := range l.ready.Concerned(service) {
		if l.fleet.proxies[i].answers() {
			n++
		}
	}
	return n
}

// one changes one service, and waits until all proxies that it concerns have acknowledged the change.
func (l *Load) one(ctx context.Context, to *window) error {
	service := l.concerning[l.random.IntN(len(l.concerning))]
	want := l.concerned(service)
	next := l.change%Changes + 1
	wait := l.fleet.Expect(Mark{Service: 1 + service, Change: next}, want)
	if err := l.mesh.Ask(service); err != nil {
		return err
	}
	made, err := l.mesh.Changed()
	if err != nil {
		return err
	}
	if made.Number != next {
		return fault.New(fault.Machine, l.ready.Control, "make sure that nothing else changes the mesh",
			"the control plane made change %d, want change %d", made.Number, next)
	}
	l.change = next
	waiting, stop := context.WithTimeout(ctx, patience)
	defer stop()
	s, err := wait(waiting)
	if err != nil {
		return fault.Wrap(err, fault.Machine, l.ready.Address, "see what the control plane says", "a change does not arrive")
	}
	if to == nil {
		return nil
	}
	to.concerned += want
	return to.add(made.Set, map[string]int64{histogramFirst: s.Received[0] - made.Set,
		histogramLast:   s.Received[want-1] - made.Set,
		histogramMedian: s.Received[(want-1)/2] - made.Set, histogramAnswered: s.Answered[want-1] - made.Set})
}

// window collects the measurements.
type window struct {
	begin, end int64                              // ns by pace.Now
	before     Counts                             // when counting began
	n          int64                              // pieces of work that began in the window
	pieces     float64                            // countPieces
	concerned  int                                // countConcerned
	times      map[string]*hdrhistogram.Histogram // ns
	slices     [load.Slices]int64                 // pieces of work by the part of the window in which they began
}

// holds adds to w.pieces the fraction of a piece's time that is in the window.
func (w *window) holds(began, ended int64) {
	if in := min(ended, w.end) - max(began, w.begin); in > 0 {
		w.pieces += float64(in) / float64(ended-began)
	}
}

// add counts a piece of work that began at a time, and adds its times.
func (w *window) add(began int64, times map[string]int64) error {
	w.n++
	w.slices[min(max(began-w.begin, 0)*load.Slices/(w.end-w.begin), load.Slices-1)]++
	return w.took(times)
}

// took adds times of a piece of work.
func (w *window) took(times map[string]int64) error {
	for name, ns := range times {
		if ns < 0 {
			return fault.New(fault.Internal, name, "", "measured a negative time, %d ns", ns)
		}
		h := w.times[name]
		if h == nil {
			h = hdrhistogram.New(1, longest, 3)
			w.times[name] = h
		}
		_ = h.RecordValue(min(max(ns, 1), longest)) // within its bounds
	}
	return nil
}

func (l *Load) result(w *window, cpu float64) (*load.Result, error) {
	now := l.fleet.Counts()
	r := &load.Result{
		Generator: Generator, Mode: load.Closed, Seconds: float64(w.end-w.begin) / 1e9, Intended: w.n, Sent: w.n, Done: w.n,
		CPUSeconds: cpu, CPUs: float64(runtime.NumCPU()), Errors: map[string]int64{},
		Counts: map[string]float64{
			countPieces: w.pieces, countProxies: float64(l.fleet.Connected()), countConcerned: float64(w.concerned),
			countBytes:     float64(now.Bytes - w.before.Bytes),
			countResponses: float64(now.Responses - w.before.Responses), countEnds: float64(now.Ends - w.before.Ends),
		},
	}
	r.Rate = float64(w.n) / r.Seconds
	for _, n := range w.slices {
		r.Slices = append(r.Slices, load.Slice{Done: n})
	}
	return r, r.SetHistograms(w.times)
}
