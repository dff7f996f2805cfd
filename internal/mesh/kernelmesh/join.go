package kernelmesh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/kind"
	"tare/internal/lib/fault"
	"tare/internal/lib/lists"
	"tare/internal/lib/pace"
	"tare/internal/lib/quantity"
	"tare/internal/mesh/connect"
	"tare/internal/mesh/istiod"
	"tare/internal/mesh/services"
	"tare/internal/scale/host/cgroup"
)

// joined is the data plane in a trial.
type joined struct {
	trial   kind.Trial
	name    string
	part    *kind.Part
	process kind.Process // nil before Start
	control string       // address of the control plane that was started for the data plane; empty: none was
	said    []string     // lines that the data plane logged until it served its first configuration
}

// Evidence holds what the data plane logged about its control plane's configuration, line by line. Lines that it logged
// while 16 others waited to be read are missing.
type Evidence struct {
	Warnings []string `json:"warnings"` // resources that were accepted with a different meaning
	Refused  []string `json:"refused"`
}

// The interfaces that the engine and the load "connect" look for.
var _ interface {
	kind.Starter
	kind.Addresser
	kind.Before
	kind.After
	kind.Evidence
	io.Closer
	connect.Serving
} = (*joined)(nil)

// The names of the further readings of a trial (record.Trial.Further).
const (
	readingBefore = "before" // with all services, before the load
	readingAfter  = "after"  // after the load has ended and services were removed
)

const (
	// servicesFile is the services file of the trial.
	servicesFile = "services.yaml"

	// settle is how long the kernel gets to free memory: it frees deleted elements of hash maps only after RCU grace
	// periods.
	settle = 200 * time.Millisecond

	// reloadTimeout is how long the process may take to read its services again.
	reloadTimeout = 30 * time.Second
)

func (j *joined) file() string { return filepath.Join(j.trial.Dir(), servicesFile) }

// applications returns the names of the served applications, in the order of their services.
func (j *joined) applications() []string { return slices.Sorted(maps.Keys(j.trial.Applications())) }

// count returns the number of services in a setting, but at least one for each application.
func (j *joined) count(key string) int {
	return max(j.part.Options.Int(key), len(j.trial.Applications()))
}

// write writes the services file: a service for each application, and then others until there are count services.
func (j *joined) write(count int) error {
	addresses := lists.Map(j.applications(), func(name string) string { return j.trial.Applications()[name].Address })
	return writeServicesFile(j.file(), addresses, count, fillerOf(j.part.Options))
}

// Start starts the process, and returns when it serves.
func (j *joined) Start(ctx context.Context) error {
	component, limits := "", j.part.Limits
	if j.part.Options[controlKey] != "" {
		if err := j.startControl(ctx); err != nil {
			return err
		}
		component, limits = dataComponent, nil // the part's limits apply to both components together
	}
	argv, err := j.argv()
	if err != nil {
		return err
	}
	if _, ok := j.part.Options[xdsKey]; !ok && j.control == "" {
		if err := j.write(j.count(servicesKey)); err != nil {
			return err
		}
	}
	if j.process, err = j.trial.StartSubject(ctx, component, limits, argv); err != nil {
		return err
	}
	raw, err := j.process.Ready(ctx)
	if err != nil {
		return err
	}
	var objects kind.Objects
	if err := json.Unmarshal(raw, &objects); err != nil {
		return fmt.Errorf("decoding the ready message of %s: %w", j.name, err)
	}
	j.trial.SetSubject(objects, raw)
	if j.control != "" {
		return j.placed(ctx)
	}
	return nil
}

// The components of a data plane with a control plane.
const (
	controlComponent = "controlplane"
	dataComponent    = "dataplane"
)

// nodeAddress is the address of the data plane's workload for Istio's control plane. No real workload has it.
var nodeAddress = netip.AddrFrom4([4]byte{198, 18, 0, 1})

// startControl starts the control plane, whose arguments are the applications' services.
func (j *joined) startControl(ctx context.Context) error {
	served := map[string]string{}
	for i, name := range j.applications() {
		served[serviceIP(1+i)] = j.trial.Applications()[name].Address
	}
	argv, err := istiod.ControlPlane(j.trial.Self(), served)
	if err != nil {
		return err
	}
	p, err := j.trial.StartSubject(ctx, controlComponent, nil, argv)
	if err != nil {
		return err
	}
	raw, err := p.Ready(ctx)
	if err != nil {
		return err
	}
	var ready services.Ready
	if err := json.Unmarshal(raw, &ready); err != nil {
		return fmt.Errorf("decoding the ready message of the control plane of %s: %w", j.name, err)
	}
	j.control = ready.Address
	return nil
}

// placedTimeout is how long the first configuration may take, even on a busy machine.
const placedTimeout = time.Minute

// placed waits until the data plane serves the control plane's configuration.
func (j *joined) placed(ctx context.Context) error {
	return j.await(ctx, placedTimeout, "before it had its first configuration", func(line string) (bool, error) {
		if line != placedLine {
			j.said = append(j.said, line)
		}
		return line == placedLine, nil
	}, func() error {
		return fmt.Errorf("%s: the control plane's configuration is not served after %v: %s", j.name, placedTimeout,
			strings.Join(j.said, "; "))
	})
}

// await reads the process's log until done(line) returns true or an error. If the process ends first, the error says
// that it ended, followed by the argument meanwhile. If the time limit passes first, the error is that of late().
func (j *joined) await(ctx context.Context, within time.Duration, meanwhile string,
	done func(line string) (bool, error), late func() error) error {
	timeout := time.NewTimer(within)
	defer timeout.Stop()
	for {
		select {
		case line := <-j.process.Log():
			if is, err := done(line); is || err != nil {
				return err
			}
		case <-j.process.Ended():
			return j.process.Failure(meanwhile)
		case <-timeout.C:
			return late()
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// argv returns the command line of the process, which serves the control group of the applications and the loads.
func (j *joined) argv() ([]string, error) {
	dir := j.trial.WorkDir()
	if dir == "" {
		return nil, fault.New(fault.Machine, j.part.Name(), cgroup.MountV2,
			"it attaches to a cgroup v2 directory, and no v2 hierarchy is mounted")
	}
	argv, err := kind.Command(kind.Subject, guest{}, kind.Site{})
	if err != nil {
		return nil, err
	}
	argv = append(append([]string{j.trial.Self()}, argv...), "--cgroup="+dir)
	own := processOptions(j.part.Options, j.count(servicesKey))
	if of, ok := j.part.Options[xdsKey]; ok {
		argv = append(argv, "--xds="+j.trial.Applications()[of].Address)
	} else if j.control != "" {
		argv = append(argv, "--xds="+j.control)
		if own[nodeKey] == "" {
			id, metadata := istiod.Node(nodeAddress)
			own[nodeKey], own[metadataKey] = id, Node{Metadata: metadata}.String()
		}
	} else {
		argv = append(argv, "--services="+j.file())
	}
	return append(argv, own.Args(Settings)...), nil
}

// Address returns the address of the service of an application.
func (j *joined) Address(app string) (string, error) {
	i := slices.Index(j.applications(), app)
	if i < 0 {
		return "", fmt.Errorf("%s does not serve %q: it is not an application that accepts connections", j.name, app)
	}
	return serviceIP(1 + i), nil
}

// Services implements connect.Serving: it returns the services without an application.
func (j *joined) Services() connect.Services {
	applications := len(j.trial.Applications())
	s := connect.Services{
		First:     serviceIP(1 + applications),
		Count:     j.count(servicesKey) - applications,
		Endpoints: j.part.Options["peer"] == PeerEndpoint,
	}
	if j.part.Options["work"] == WorkReplace {
		s.Replacer = j.process.PID()
	}
	return s
}

// Evidence returns the lines that the data plane has logged about its control plane's configuration. It returns nil if
// there is no control plane, or if all of the configuration was accepted as it is.
func (j *joined) Evidence() any {
	if _, ok := j.part.Options[xdsKey]; !ok && j.control == "" || j.process == nil {
		return nil
	}
	e := Evidence{Warnings: []string{}, Refused: []string{}}
	take := func(line string) {
		if text, ok := strings.CutPrefix(line, warningPrefix); ok {
			e.Warnings = append(e.Warnings, text)
		} else if text, ok := strings.CutPrefix(line, refusedPrefix); ok {
			e.Refused = append(e.Refused, text)
		}
	}
	for _, line := range j.said {
		take(line)
	}
	for {
		select {
		case line := <-j.process.Log():
			take(line)
			continue
		default:
		}
		if n := j.process.Dropped(); n > 0 {
			e.Warnings = append(e.Warnings, "the data plane wrote more lines than are kept; dropped: "+
				quantity.Counted(n, "line"))
		}
		if len(e.Warnings)+len(e.Refused) == 0 {
			return nil
		}
		return &e
	}
}

// goesDown reports whether services are removed after the load, and memory is read before the load and after the
// removal.
func (j *joined) goesDown() bool { return j.part.Options[thenKey] != "" }

// Before reads memory with all services in place, if the setting then-services is given.
func (j *joined) Before(ctx context.Context) error {
	if !j.goesDown() {
		return nil
	}
	return j.trial.Read(ctx, readingBefore)
}

// After removes services while the process runs, and then reads memory, if the setting then-services is given.
func (j *joined) After(ctx context.Context) error {
	if !j.goesDown() {
		return nil
	}
	if err := j.write(j.count(thenKey)); err != nil {
		return err
	}
	if err := j.process.Signal(unix.SIGHUP); err != nil {
		return fmt.Errorf("sending SIGHUP to %s: %w", j.name, err)
	}
	if err := j.reloaded(ctx); err != nil {
		return err
	}
	if err := pace.Sleep(ctx, settle); err != nil {
		return err
	}
	return j.trial.Read(ctx, readingAfter)
}

// reloaded waits until the process logs that it has read its services again.
func (j *joined) reloaded(ctx context.Context) error {
	return j.await(ctx, reloadTimeout, "while it read its services again", func(line string) (bool, error) {
		if strings.HasPrefix(line, "applying ") || strings.HasPrefix(line, "the services stay ") {
			return false, fmt.Errorf("%s read its services again, and %s", j.name, line)
		}
		return strings.HasPrefix(line, "applied "), nil
	}, func() error { return fmt.Errorf("%s did not read its services again within %v", j.name, reloadTimeout) })
}

// Close removes the services file.
func (j *joined) Close() error {
	if err := os.Remove(j.file()); !errors.Is(err, fs.ErrNotExist) {
		return err // nil if the file existed
	}
	return nil
}
