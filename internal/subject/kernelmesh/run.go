package kernelmesh

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"tare/internal/fault"
	"tare/internal/role"
)

// Ready is the data of the ready message: what the data plane put into the kernel.
type Ready struct {
	Version      string        `json:"version"`
	Cgroup       string        `json:"cgroup"`
	ServicesFile string        `json:"services_file"`
	Services     int           `json:"services"`
	Endpoints    int           `json:"endpoints"`
	Programs     []ProgramInfo `json:"programs"`
	Maps         []MapInfo     `json:"maps"`
	Links        []LinkInfo    `json:"links"`
}

// ProgramInfo names one program in the kernel.
type ProgramInfo struct {
	ID   uint32 `json:"id"`
	Name string `json:"name"`
}

// MapInfo names one map in the kernel.
type MapInfo struct {
	ID         uint32 `json:"id"`
	Name       string `json:"name"`
	Type       string `json:"type"`
	MaxEntries uint32 `json:"max_entries"`
}

// LinkInfo names one link in the kernel.
type LinkInfo struct {
	ID      uint32 `json:"id"`
	Program uint32 `json:"program"`
	Attach  string `json:"attach"`
}

// Run is the data plane as a process: it loads and attaches, says ready, reads its services file again on SIGHUP (one that is wrong
// changes nothing, and is logged), and ends with ctx or with conn's input. It returns nil then. The goroutine that watches conn's input
// ends with that input; a process that is about to exit need not wait for it.
func Run(ctx context.Context, o Options, conn *role.Conn) (err error) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, unix.SIGHUP) // before ready, so that nobody's SIGHUP kills
	defer signal.Stop(hup)

	services, err := ReadFile(o.ServicesFile)
	if err != nil {
		return err
	}
	if err := checkCgroup(o.CgroupDir, o.AllowRoot); err != nil {
		return err
	}
	d, err := Load(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	if _, err := d.store.Apply(ctx, services); err != nil {
		return inFile(err, o.ServicesFile)
	}
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
	ended := make(chan error, 1)
	go func() { ended <- untilEnd(conn) }()
	for {
		select {
		case <-ctx.Done():
			return d.logTotals(conn)
		case err := <-ended:
			return errors.Join(err, d.logTotals(conn))
		case <-hup:
			if err := conn.Send(role.Log, d.reload(ctx, o.ServicesFile)); err != nil {
				return err
			}
		}
	}
}

// untilEnd reads until the other side closes.
func untilEnd(conn *role.Conn) error {
	for {
		if _, err := conn.Receive(); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// reload applies the services file again, and says how that went.
func (d *DataPlane) reload(ctx context.Context, file string) string {
	services, err := ReadFile(file)
	if err != nil {
		return fmt.Sprintf("the services stay as they were: %s", err)
	}
	changes, err := d.store.Apply(ctx, services)
	if err != nil {
		return fmt.Sprintf("applying %s: %s", file, err)
	}
	return fmt.Sprintf("applied %s: %s", file, changes)
}

// inFile adds the services file to a fault that has no place yet.
func inFile(err error, file string) error {
	var f *fault.Error
	if errors.As(err, &f) && f.Where == "" {
		return fault.Wrap(errors.New(f.What), f.Code, file, f.Mend, "the services cannot be applied")
	}
	return fmt.Errorf("applying %s: %w", file, err)
}

// logTotals says at the end what each program did. The reader may have gone: that is no failure of the data plane.
func (d *DataPlane) logTotals(conn *role.Conn) error {
	stats, err := d.Stats()
	if err != nil {
		return err
	}
	var parts []string
	for _, p := range stats.Programs {
		if runs := p.Matched + p.Passed + p.NoEndpoint; runs > 0 {
			parts = append(parts, fmt.Sprintf("%s %d runs (%d matched, %d without endpoint)", p.Name, runs, p.Matched, p.NoEndpoint))
		}
	}
	if len(parts) == 0 {
		parts = []string{"no program ran"}
	}
	_ = conn.Send(role.Log, "totals: "+strings.Join(parts, "; "))
	return nil
}

// ready describes what is in the kernel.
func (d *DataPlane) ready(o Options, services []Service) (Ready, error) {
	r := Ready{Version: Version, Cgroup: o.CgroupDir, ServicesFile: o.ServicesFile, Services: len(services)}
	for _, s := range services {
		r.Endpoints += len(s.Endpoints)
	}
	ids := map[ebpf.MapID]bool{} // of all maps: the programs' own, also those of constants, and the store's
	for _, m := range []*ebpf.Map{d.store.grace, d.store.inner} {
		info, err := m.Info()
		if err != nil {
			return r, fmt.Errorf("reading map %s: %w", m, err)
		}
		id, _ := info.ID()
		ids[id] = true
	}
	for _, a := range d.links {
		info, err := a.hook.program.Info()
		if err != nil {
			return r, fmt.Errorf("reading program %s: %w", a.hook.name, err)
		}
		id, _ := info.ID()
		r.Programs = append(r.Programs, ProgramInfo{ID: uint32(id), Name: a.hook.name})
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
		return MapInfo{}, fmt.Errorf("opening map %d: %w", id, err)
	}
	defer m.Close()
	info, err := m.Info()
	if err != nil {
		return MapInfo{}, fmt.Errorf("reading map %d: %w", id, err)
	}
	return MapInfo{ID: uint32(id), Name: info.Name, Type: info.Type.String(), MaxEntries: info.MaxEntries}, nil
}
