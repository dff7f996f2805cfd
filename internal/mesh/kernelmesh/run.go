package kernelmesh

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/experiment/load"
	"tare/internal/experiment/role"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/mesh"
	"tare/internal/mesh/xds"
)

// Ready is the ready message: what the data plane put into the kernel.
type Ready struct {
	Version      string        `json:"version"`
	Cgroup       string        `json:"cgroup"`
	ServicesFile string        `json:"services_file,omitempty"`
	Services     int           `json:"services"` // number of services in the file
	Endpoints    int           `json:"endpoints"`
	XDS          string        `json:"xds,omitempty"`  // address of the control plane
	Node         string        `json:"node,omitempty"` // Options.Node.ID
	Store        string        `json:"store"`
	Atomic       string        `json:"atomic"` // how much of a change programs see at once
	Fail         string        `json:"fail"`
	Peer         string        `json:"peer"`
	Sources      []netip.Addr  `json:"sources"` // source addresses that rules assume for unbound sockets
	Programs     []ProgramInfo `json:"programs"`
	Maps         []MapInfo     `json:"maps"`
	Links        []LinkInfo    `json:"links"`
}

// ProgramInfo identifies a program in the kernel.
type ProgramInfo struct {
	ID   uint32 `json:"id"`
	Name string `json:"name"`
}

// MapInfo identifies a map in the kernel.
type MapInfo struct {
	ID         uint32 `json:"id"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	MaxEntries uint32 `json:"max_entries"`
}

// LinkInfo identifies a link in the kernel.
type LinkInfo struct {
	ID      uint32 `json:"id"`
	Program uint32 `json:"program"`
	Attach  string `json:"attach"`
}

// Run runs the data plane as a process: it loads and attaches the programs, sends ready, and returns nil when ctx or
// conn's input ends. It reads its services file again on SIGHUP (an invalid file is logged, and changes nothing), or
// follows its control plane. The work that Options.Work selects begins at the start message, and Run sends its result.
// The goroutine that reads conn's input ends with that input, and Run does not wait for it.
func Run(ctx context.Context, o Options, conn *role.Conn) (err error) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP) // before the ready message: a SIGHUP that follows it must not kill the process
	defer signal.Stop(hup)

	if err := o.check(); err != nil {
		return err
	}
	var services []Service
	if o.XDS == "" {
		if services, err = ReadFile(o.ServicesFile); err != nil {
			return err
		}
	}
	if err := checkCgroup(o.CgroupDir, o.AllowRoot); err != nil {
		return err
	}
	d, err := Load(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	r := &running{DataPlane: d, o: o, conn: conn, source: NewSource(d.Apply)}
	if r.worker, err = d.newWorker(o); err != nil {
		return err
	}
	if o.XDS == "" {
		if _, err := r.source.Set(ctx, services); err != nil {
			return inFile(err, o.ServicesFile)
		}
	}
	d.shared.refuse(o.Fail == FailClosed && o.XDS != "")
	if err := d.Attach(o.CgroupDir, o.AllowRoot); err != nil {
		return err
	}
	ready, err := d.ready(o, services)
	if err != nil {
		return err
	}
	if err := conn.Send(role.Ready, ready); err != nil {
		return err
	}
	return r.serve(ctx, hup)
}

// running is an attached data plane.
type running struct {
	*DataPlane
	o      Options
	conn   *role.Conn
	source *Source
	worker Worker
	gate   gate
}

// worked is what Worker.Run returned.
type worked struct {
	result *load.Result
	err    error
}

// serve serves until ctx or the input ends. It then ends the client of the control plane and the work, if they run, and
// waits for both.
func (r *running) serve(ctx context.Context, hup <-chan os.Signal) (err error) {
	inner, stop := context.WithCancel(ctx)
	started, ended := make(chan role.Schedule, 1), make(chan error, 1)
	go func() { ended <- listen(r.conn, started) }()
	client, err := r.client(inner)
	if err != nil {
		stop()
		return err
	}
	var work chan worked // nil while no work runs
	defer func() {
		stop()
		if client != nil {
			err = errors.Join(err, <-client)
		}
		if work != nil {
			<-work // it was stopped, so its result is not sent
		}
	}()
	for {
		select {
		case <-ctx.Done():
			return r.logTotals()
		case err := <-ended:
			return errors.Join(err, r.logTotals())
		case err := <-client:
			client = nil
			if ctx.Err() != nil {
				return errors.Join(err, r.logTotals())
			}
			return cmp.Or(err, fmt.Errorf("the client of the control plane has ended"))
		case s := <-started:
			if r.worker == nil || work != nil {
				continue
			}
			work = make(chan worked, 1)
			go func() {
				result, err := r.worker.Run(inner, s)
				work <- worked{result, err}
			}()
		case w := <-work:
			work = nil
			r.worker = nil
			if w.err != nil {
				return w.err
			}
			if err := r.conn.Send(role.Result, w.result); err != nil {
				return err
			}
		case <-hup:
			if err := r.conn.Send(role.Log, r.reload(ctx)); err != nil {
				return err
			}
		}
	}
}

// listen reads messages until the other side closes.
func listen(conn *role.Conn, started chan<- role.Schedule) error {
	for {
		m, err := conn.Receive()
		if errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		if m.Event != role.Start {
			continue
		}
		var s role.Schedule
		if err := json.Unmarshal(m.Data, &s); err != nil {
			return fmt.Errorf("decoding %s message: %w", m.Event, err)
		}
		select {
		case started <- s:
		default: // a second start is ignored
		}
	}
}

// client runs a client that follows the control plane until ctx ends, and then sends the client's error on the channel.
// Without a control plane the channel is nil.
func (r *running) client(ctx context.Context) (chan error, error) {
	if r.o.XDS == "" {
		return nil, nil
	}
	shut := r.o.Fail == FailClosed
	last := ""
	var c *xds.Client
	seen := newWarnings()
	placed := false
	c, err := xds.New(xds.Options{
		Address:         r.o.XDS,
		Node:            r.o.Node.ID,
		Metadata:        r.o.Node.Metadata,
		Own:             r.o.Node.own(),
		StateOfTheWorld: r.o.StateOfTheWorld,
		Apply: func(ctx context.Context, change mesh.Change) error {
			_, err := r.Apply(ctx, change)
			return err
		},
		OnEvent: func(e xds.Event) {
			both := r.gate.record(e)
			if shut {
				r.gate.look(c, &r.shared)
			}
			if r.onEvent != nil {
				r.onEvent(e)
			}
			for _, line := range seen.lines(e) {
				_ = r.conn.Send(role.Log, line)
			}
			if !placed && both && c.Metrics().Complete() {
				placed = true
				_ = r.conn.Send(role.Log, placedLine)
			}
		},
		OnState: func(s xds.State) {
			if line := describe(s, r.o.XDS); line != last { // repeated failures give the same line
				last = line
				_ = r.conn.Send(role.Log, line)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() {
		watching, unwatch := context.WithCancel(ctx)
		var looking sync.WaitGroup
		if shut {
			looking.Go(func() { r.gate.watch(watching, c, &r.shared) })
		}
		err := c.Run(ctx)
		unwatch()
		looking.Wait()
		ended <- err
	}()
	return ended, nil
}

// placedLine is logged once, when the first configuration of a control plane is served.
const placedLine = "the control plane's first configuration is served"

// gate is closed while everything is refused before the first configuration (FailClosed). It opens once, when the
// control plane has sent its clusters and its listeners, no cluster waits for its endpoints any more, and either no
// listener waits for its routes any more or routesTimeout has passed.
type gate struct {
	heard [2]atomic.Bool // clusters and listeners
	since atomic.Int64   // when both had been received, ns by pace.Now
	open  atomic.Bool
}

// routesTimeout is how long the gate waits for routes: as long as Envoy waits for each resource
// (initial_fetch_timeout).
const routesTimeout = 15 * time.Second

// record records clusters and listeners, and reports whether both have been received.
func (g *gate) record(e xds.Event) bool {
	switch e.Kind {
	case xds.Clusters:
		g.heard[0].Store(true)
	case xds.Listeners:
		g.heard[1].Store(true)
	}
	return g.both()
}

func (g *gate) both() bool { return g.heard[0].Load() && g.heard[1].Load() }

// look opens the gate if its conditions hold.
func (g *gate) look(c *xds.Client, s *shared) {
	if g.open.Load() || !g.both() {
		return
	}
	g.since.CompareAndSwap(0, pace.Now())
	m := c.Metrics()
	late := time.Duration(pace.Now()-g.since.Load()) > routesTimeout
	if m.WaitingClusters == 0 && (m.WaitingRoutes == 0 || late) && !g.open.Swap(true) {
		s.refuse(false)
	}
}

// watch calls look periodically until the gate is open or ctx ends, because a cluster can stop waiting without a
// response, when it times out.
func (g *gate) watch(ctx context.Context, c *xds.Client, s *shared) {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for !g.open.Load() {
		select {
		case <-tick.C:
			g.look(c, s)
		case <-ctx.Done():
			return
		}
	}
}

// describe describes the connection to the control plane for the log.
func describe(s xds.State, address string) string {
	if s.Err != nil {
		return fmt.Sprintf("control plane %s: %s: %s", address, s.Phase, s.Err)
	}
	return fmt.Sprintf("control plane %s: %s", address, s.Phase)
}

// reload applies the services file again, and returns a line for the log.
func (r *running) reload(ctx context.Context) string {
	if r.o.XDS != "" {
		return "there is no services file to read again: the control plane says what is served"
	}
	services, err := ReadFile(r.o.ServicesFile)
	if err != nil {
		return fmt.Sprintf("the services stay as they were: %s", err)
	}
	changes, err := r.source.Set(ctx, services)
	if err != nil {
		return fmt.Sprintf("applying %s: %s", r.o.ServicesFile, err)
	}
	return fmt.Sprintf("applied %s: %s", r.o.ServicesFile, changes)
}

// inFile adds the file to an error. If a store refuses services because of their number, the hint names the settings
// for the sizes of maps.
func inFile(err error, file string) error {
	var f *fault.Error
	if !errors.As(err, &f) {
		return fmt.Errorf("applying %s: %w", file, err)
	}
	if f.Code != fault.Usage || f.Where == file {
		return err
	}
	hint := ""
	if f.Where != "" { // a store has set it to a service's name
		hint = "raise --max-services and --max-endpoints, or choose another --store"
	}
	return fault.Wrap(err, f.Code, file, hint, "the services cannot be applied")
}

// logTotals logs at the end what each program did. It ignores errors of sending, because the reader may have gone.
func (r *running) logTotals() error {
	programs, err := r.Stats()
	if err != nil {
		return err
	}
	var parts []string
	for _, p := range programs {
		if p.runs() > 0 {
			parts = append(parts, fmt.Sprintf("%s %d runs (%d matched, %d refused)", p.Name, p.runs(), p.Matched, p.refused()))
		}
	}
	if len(parts) == 0 {
		parts = []string{"no program ran"}
	}
	_ = r.conn.Send(role.Log, "totals: "+strings.Join(parts, "; "))
	return nil
}

// ready describes what is in the kernel.
func (d *DataPlane) ready(o Options, services []Service) (Ready, error) {
	r := Ready{Version: Version, Cgroup: o.CgroupDir, ServicesFile: o.ServicesFile, Services: len(services), XDS: o.XDS,
		Node: o.Node.ID, Store: o.Store, Atomic: d.design.Atomic.String(), Fail: o.Fail, Peer: o.Peer,
		Sources: append([]netip.Addr{}, o.Sources...)}
	for _, s := range services {
		r.Endpoints += len(s.Endpoints)
	}
	ids := map[ebpf.MapID]bool{} // ids of all maps: the store's, and the programs' own, including those of constants
	for name, m := range d.store.Maps() {
		info, err := m.Info()
		if err != nil {
			return r, fmt.Errorf("reading map %s: %w", name, err)
		}
		id, _ := info.ID()
		ids[id] = true
	}
	for _, a := range d.links {
		info, err := d.programs[a.hook.program].Info()
		if err != nil {
			return r, fmt.Errorf("reading program %s: %w", a.hook.program, err)
		}
		id, _ := info.ID()
		r.Programs = append(r.Programs, ProgramInfo{ID: uint32(id), Name: a.hook.program})
		used, _ := info.MapIDs()
		for _, id := range used {
			ids[id] = true
		}
		r.Links = append(r.Links, LinkInfo{ID: uint32(a.id), Program: uint32(id), Attach: a.hook.attach.String()})
	}
	for id := range ids {
		m, err := mapInfo(id)
		if err != nil {
			return r, err
		}
		r.Maps = append(r.Maps, m)
	}
	slices.SortFunc(r.Maps, func(a, b MapInfo) int { return strings.Compare(a.Name, b.Name) })
	return r, nil
}

func mapInfo(id ebpf.MapID) (MapInfo, error) {
	m, err := ebpf.NewMapFromID(id)
	if err != nil {
		return MapInfo{}, explain(err, fmt.Sprintf("opening map %d", id))
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return MapInfo{}, fmt.Errorf("reading map %d: %w", id, err)
	}
	return MapInfo{ID: uint32(id), Name: info.Name, Type: info.Type.String(), MaxEntries: info.MaxEntries}, nil
}
