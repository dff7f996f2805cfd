package sidecar

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/process"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/lists"
	"tare/internal/mesh/redirect"
	"tare/internal/scale/host/proc"
)

// joined holds the proxies of a trial.
type joined struct {
	proxy Proxy
	guest Guest
	trial kind.Trial
	name  string // the arm's name
	part  *kind.Part

	pods    *redirect.Pods // nil: everything is in the host's network
	rules   *redirect.Rules
	files   *files.Scratch
	held    []*process.Reservation // the ports of the proxies, until Close
	entry   map[string]string      // the address that loads connect to, by application
	proxies []*one                 // for each application, the server's proxy before the client's

	version   string
	startTime time.Duration
	evidence  *Evidence
}

// one holds the state of one proxy.
type one struct {
	place   Place
	group   kind.Group
	running *process.Running // nil before it is started
	began   []proc.Process   // the proxy's processes when it became ready
}

// The interfaces that the engine looks for.
var _ interface {
	kind.Starter
	kind.Addresser
	kind.After
	kind.Explainer
	kind.Evidence
	io.Closer
} = (*joined)(nil)

// Evidence holds what a trial's record says about the proxies.
type Evidence struct {
	Hops int  `json:"hops"`
	MTLS bool `json:"mtls"` // between the two proxies
	// Services, Discovery and Rules are the values of the settings services, discovery and rules.
	Services  int    `json:"services"`
	Discovery string `json:"discovery"`
	Rules     int    `json:"rules"`
	Network   string `json:"network"`
	// Redirect is how connections reached the proxies.
	Redirect string  `json:"redirect"`
	Version  string  `json:"version,omitempty"`
	Proxies  []Found `json:"proxies"`
}

// Found describes one proxy after the end of the window.
type Found struct {
	Component string `json:"component"`
	App       string `json:"app"` // the application that the proxy serves
	Listen    string `json:"listen"`
	// From is the address that clients connect to if their connections are redirected to the proxy; otherwise empty.
	From      string            `json:"from,omitempty"`
	To        string            `json:"to"`
	Command   string            `json:"command"`
	Processes []process.Process `json:"processes"`
	// Own holds the proxy's own counters since its start, keyed by the proxy's names for them. They include readiness
	// checks and warm-up. Own is nil if the proxy has no counters, or if they could not be read. No metric is computed
	// from them.
	Own map[string]float64 `json:"own"`
	// OwnFewer holds the same counters after services were removed. It is left out if none were removed.
	OwnFewer map[string]float64 `json:"own_fewer,omitempty"`
	// Unsaid is the reason why the proxy's counters could not be read.
	Unsaid string `json:"unsaid,omitempty"`
}

// Start starts the proxies, each server's proxy before its client's, and waits until a request to each application has
// passed through them. If the mesh has further services, Start also waits until the proxies have put all of their
// configuration into effect.
func (j *joined) Start(ctx context.Context) error {
	j.entry = map[string]string{}
	apps := j.trial.Applications()
	if err := j.checkPlaces(apps); err != nil {
		return err
	}
	if Hops(j.part.Options) == 0 {
		for name, app := range apps {
			j.entry[name] = app.Address
		}
		return nil
	}
	program, err := j.guest.program(j.part.Options)
	if err != nil {
		return err
	}
	if j.files, err = files.NewScratch("", "sidecar"); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(apps)) {
		if err := j.plan(name, apps[name].Address, program); err != nil {
			return err
		}
	}
	if err := j.prepare(ctx); err != nil {
		return err
	}
	if err := j.redirect(); err != nil {
		return err
	}
	began := time.Now()
	for _, p := range j.proxies {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := j.start(p); err != nil {
			return err
		}
	}
	for _, name := range slices.Sorted(maps.Keys(apps)) {
		if err := j.reach(ctx, name, began); err != nil {
			return err
		}
	}
	if j.part.Options.Int(settingServices) > len(apps) {
		if err := j.settled(ctx, "their configuration"); err != nil {
			return err
		}
	}
	for _, p := range j.proxies {
		p.began = p.processes()
	}
	j.startTime = time.Since(began)
	j.version = j.proxy.About().version(ctx, program)
	return nil
}

// StartTime returns the time from the start of the first proxy until a request had passed through all of them; 0 if
// there are none.
func (j *joined) StartTime() time.Duration { return j.startTime }

// plan determines the Place of each proxy of an application, and adds these proxies to j.proxies.
func (j *joined) plan(app, address, program string) error {
	components := []string{Server, Client}[:Hops(j.part.Options)]
	mtls := MTLS(j.part.Options)
	to := address
	for _, component := range components {
		own, err := identityOf(component, app)
		if err != nil {
			return err
		}
		r, err := j.reserve(component)
		if err != nil {
			return err
		}
		from, err := j.from(component, address)
		if err != nil {
			return err
		}
		p := Place{
			Component: component, App: app, Options: j.part.Options, Self: j.trial.Self(), Program: program,
			Dir:    filepath.Join(j.files.Path(), component+"-"+app),
			Listen: r.Address, To: to, From: from, Dial: j.dialer(component),
			Transparent: component == Server && from != "" && redirect.Unchanged(wayOf(j.part.Options)),
			AcceptTLS:   mtls && component == Server, DialTLS: mtls && component == Client,
			Identity: own,
			Workers:  j.part.Options.Int(settingWorkers), Connections: j.part.Options.Int(settingConnections),
			Protocol: j.part.Options[settingProtocol],
		}
		if mtls {
			other := Server
			if component == Server {
				other = Client
			}
			if p.Peer, err = identityOf(other, app); err != nil {
				return err
			}
			p.PeerName = nameOf(other)
		}
		if p.AcceptTLS {
			p.Rules = callers(Rules(j.part.Options), p.Peer)
		}
		if err := j.know(&p, len(j.trial.Applications())); err != nil {
			return err
		}
		if err := p.unprivileged(); err != nil {
			return err
		}
		j.proxies = append(j.proxies, &one{place: p})
		if to = r.Address; from != "" {
			to = from
		}
	}
	j.entry[app] = to
	return nil
}

// driven returns the proxy as a Driven, or nil if no control plane configures it.
func (j *joined) driven() Driven {
	d, _ := j.proxy.(Driven)
	return d
}

// prepare makes the directories of all proxies, and either writes certificates into them or starts the control plane
// that issues certificates.
func (j *joined) prepare(ctx context.Context) error {
	for _, p := range j.proxies {
		if err := makeDir(p.place.Dir); err != nil {
			return fmt.Errorf("making the directory of a proxy: %w", err)
		}
	}
	if d := j.driven(); d != nil {
		places := lists.Map(j.proxies, func(p *one) Place { return p.place })
		control, err := d.Drive(ctx, Drive{
			Trial: j.trial, Part: j.part, Dir: j.files.Path(), Host: j.host(Server).String(), Proxies: places,
		})
		if err != nil {
			return fmt.Errorf("starting the control plane of %s: %w", j.name, err)
		}
		for _, p := range j.proxies {
			p.place.Control = control
		}
		return nil
	}
	if !MTLS(j.part.Options) {
		return nil
	}
	a, err := newAuthority()
	if err != nil {
		return err
	}
	defer a.Close()
	for _, p := range j.proxies {
		if err := issue(a, p.place.Dir, p.place.Identity); err != nil {
			return err
		}
	}
	return nil
}

// makeDir makes the directory of a proxy. Its mode does not depend on the umask, so that processes that have dropped
// root can reach their files in it.
func makeDir(path string) error {
	const mode = 0o711
	if err := os.Mkdir(path, mode); err != nil {
		return err
	}
	return os.Chmod(path, mode)
}

// start starts one proxy in a separate group.
func (j *joined) start(p *one) error {
	if err := j.enter(p); err != nil {
		return err
	}
	c, err := j.proxy.Command(p.place)
	if err != nil {
		return fmt.Errorf("configuring %s: %w", p.place.Component, err)
	}
	c.CgroupDir = p.group.V2Dir()
	if c.Stop == 0 {
		c.Stop = stopSignal
	}
	if c.StopTime == 0 {
		c.StopTime = stopTime
	}
	begin := p.group.In(j.networkOf(p.place.Component))
	p.running, err = process.Start(c, begin, func(err error) { j.trial.Fail(p.ended(err)) })
	if err != nil {
		return fmt.Errorf("starting %s: %w", p.place.Component, err)
	}
	return nil
}

// enter makes the control group of a proxy, unless the proxy has one.
func (j *joined) enter(p *one) (err error) {
	if p.group == nil {
		p.group, err = j.trial.ServingGroup(p.place.Component, p.place.App, nil)
	}
	return err
}

// ended returns the error for a proxy that has ended unexpectedly. err is the cause, or nil if it is unknown.
func (p *one) ended(err error) error {
	if err == nil {
		err = errors.New("it exited unexpectedly")
	}
	return death{fault.Wrap(err, fault.Machine, p.place.Component, fault.HintOf(err), "the proxy that serves %s is gone",
		p.place.App)}
}

// died returns the error for the first proxy found to have ended, or nil if all proxies run. The argument when says in
// the error when it ended, such as "before it was ready".
func (j *joined) died(when string) error {
	for _, p := range j.proxies {
		if p.running == nil {
			continue
		}
		select {
		case <-p.running.Ended():
			return p.ended(p.running.Failure(when))
		default:
		}
	}
	return nil
}

// Explain implements kind.Explainer. If the first process of a proxy has exited, that explains other failures, so
// Explain puts it before err.
func (j *joined) Explain(err error) error {
	if errors.As(err, new(death)) {
		return err
	}
	for _, p := range j.proxies {
		if p.running == nil {
			continue
		}
		if !p.running.Exited() {
			continue
		}
		return fmt.Errorf("%w; then %w", p.ended(p.running.Failure("during the trial")), err)
	}
	return err
}

// death is the error of a proxy that ended unexpectedly.
type death struct{ error }

func (d death) Unwrap() error { return d.error }

// processes returns the live processes of a proxy.
func (p *one) processes() (all []proc.Process) {
	for _, pid := range p.running.Processes() {
		if now, err := (proc.FS{}).Process(pid); err == nil && now.Alive() {
			all = append(all, now)
		}
	}
	return all
}

// lost returns the processes of a proxy that have ended since it became ready, such as workers that its first process
// has replaced.
func (p *one) lost() (gone []string) {
	now := p.processes()
	for _, was := range p.began {
		same := func(q proc.Process) bool { return q.PID == was.PID && q.Start == was.Start }
		if !slices.ContainsFunc(now, same) {
			gone = append(gone, fmt.Sprintf("%s (process %d)", was.Comm, was.PID))
		}
	}
	return gone
}

// Address returns the address that loads connect to in order to reach an application.
func (j *joined) Address(app string) (string, error) {
	address, ok := j.entry[app]
	if !ok {
		return "", fmt.Errorf("%s does not serve %q: it is not an application that accepts connections", j.name, app)
	}
	return address, nil
}

// After checks that the processes of the proxies are still those that became ready, and reads the counters of each
// proxy. It then removes services if the setting then-services is set (down).
func (j *joined) After(ctx context.Context) error {
	j.evidence = &Evidence{
		Hops: Hops(j.part.Options), MTLS: MTLS(j.part.Options), Services: j.part.Options.Int(settingServices),
		Discovery: j.part.Options[settingDiscovery], Rules: Rules(j.part.Options), Network: j.part.Options[settingNetwork],
		Redirect: wayOf(j.part.Options), Version: j.version, Proxies: []Found{},
	}
	if err := j.died("during the trial"); err != nil {
		return err
	}
	for _, p := range j.proxies {
		if gone := p.lost(); len(gone) > 0 {
			return j.withWords(fault.New(fault.Machine, p.place.Component, "see why it ended; the trial did not measure "+
				"a working proxy", "%s ended during the trial", strings.Join(gone, ", ")), p.place.App)
		}
		found := Found{
			Component: p.place.Component, App: p.place.App, Listen: p.place.Listen, From: p.place.From, To: p.place.To,
			Command: p.running.Line(),
		}
		seen, err := process.Discover(proc.FS{}, p.group.Members(), nil, false, j.trial.Record().Ledger, time.Time{})
		if err != nil {
			return fmt.Errorf("finding the processes of %s: %w", p.place.Component, err)
		}
		found.Processes = seen.Processes
		if found.Own, err = j.own(ctx, p); err != nil {
			found.Unsaid = err.Error()
		}
		j.evidence.Proxies = append(j.evidence.Proxies, found)
	}
	return j.down(ctx)
}

// own returns a proxy's own counters, or nil if its kind of proxy is not a Teller.
func (j *joined) own(ctx context.Context, p *one) (map[string]float64, error) {
	t, ok := j.proxy.(Teller)
	if !ok {
		return nil, nil
	}
	asking, cancel := context.WithTimeout(ctx, tellFor)
	defer cancel()
	return t.Own(asking, p.place)
}

// Evidence returns the *Evidence that After has collected, or nil if After has not run.
func (j *joined) Evidence() any {
	if j.evidence == nil {
		return nil
	}
	return j.evidence
}

// How proxies are ended. They have nothing to finish, because all loads have ended.
const (
	stopSignal = unix.SIGTERM
	stopTime   = 5 * time.Second
)

// Close ends the proxies, releases their ports, and removes the redirection, the pods and the proxies' files.
func (j *joined) Close() error {
	var wg sync.WaitGroup
	killed := make([]bool, len(j.proxies))
	for i, p := range slices.Backward(j.proxies) {
		if p.running != nil {
			wg.Go(func() { killed[i] = p.running.Stop() })
		}
	}
	wg.Wait()
	for i, p := range j.proxies {
		if killed[i] {
			j.trial.Warn("proxy-killed", "%s of %s did not end in time after a signal, and was killed",
				p.place.Component, j.trial.Arm())
		}
	}
	for _, r := range j.held {
		r.Release()
	}
	j.held = nil
	err := errors.Join(j.rules.Close(), j.pods.Close())
	if err != nil {
		err = fmt.Errorf("removing the networks of the proxies of %s: %w", j.trial.Arm(), err)
	}
	if closed := j.files.Close(); closed != nil {
		err = errors.Join(err, fmt.Errorf("removing the files of the proxies of %s: %w", j.trial.Arm(), closed))
	}
	return err
}
