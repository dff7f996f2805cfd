// Package kernelmesh is a small service mesh data plane in the kernel: eBPF programs on the socket calls of one control group turn the
// address of a service into that of one of its endpoints, by weight, and count the connections. It is real - applications use it
// unchanged - and small enough to know what it should cost, so it is the reference that Tare weighs first. docs/kernelmesh.md has
// the programs, the maps and the limits.
package kernelmesh

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tare/internal/fault"
)

// Version of the data plane; it changes when its programs or maps do.
const Version = "1"

// Sizes of the maps where Options leave them open: about 1.2 MB with two CPUs.
const (
	DefaultMaxServices  = 1024
	DefaultMaxEndpoints = 16384
)

// MaxSteps bounds the planted weight: BPF_MAX_LOOPS of include/linux/bpf_verifier.h.
const MaxSteps = 1 << 23

const (
	maxServices  = 1 << 20
	maxEndpoints = 1 << 24 // bits for a slot's number in a table word
)

// Options are the settings of a data plane.
type Options struct {
	ServicesFile string
	CgroupDir    string // a cgroup v2 directory; its processes and those below it are served
	AllowRoot    bool   // let CgroupDir be the root of the hierarchy
	Steps        uint32 // extra steps of work in every run of the connect programs
	SockopsSteps uint32 // the same in every run of the sockops program
	MaxServices  uint32 // 0: DefaultMaxServices
	MaxEndpoints uint32 // 0: DefaultMaxEndpoints; see docs/kernelmesh.md for bytes
}

func (o *Options) check() error {
	o.MaxServices = cmp.Or(o.MaxServices, DefaultMaxServices)
	o.MaxEndpoints = cmp.Or(o.MaxEndpoints, DefaultMaxEndpoints)
	for _, l := range []struct {
		flag         string
		value, limit uint32
	}{
		{"--steps", o.Steps, MaxSteps},
		{"--sockops-steps", o.SockopsSteps, MaxSteps},
		{"--max-services", o.MaxServices, maxServices},
		{"--max-endpoints", o.MaxEndpoints, maxEndpoints},
	} {
		if l.value > l.limit {
			return fault.New(fault.Usage, l.flag, fmt.Sprintf("give %d or less", l.limit), "%d is too many", l.value)
		}
	}
	return nil
}

// DataPlane is a loaded data plane. It is gone from the kernel when it is closed, or its process ends in whatever way.
type DataPlane struct {
	objects kernelmeshObjects
	store   *mapStore
	links   []attached
}

type attached struct {
	link *link.RawLink
	id   link.ID
	hook hook
}

// hook is a program and the place that it is attached to.
type hook struct {
	program *ebpf.Program
	name    string
	attach  ebpf.AttachType
}

// hooks are in the order of attachment: first those that answer for and count a rewritten connection, then those that rewrite. The names
// index the programs' counters: see index.
func (d *DataPlane) hooks() []hook {
	o := &d.objects
	return []hook{
		{o.KmSockops, kernelmeshProgKmSockops, ebpf.AttachCGroupSockOps},
		{o.KmGetpeername4, kernelmeshProgKmGetpeername4, ebpf.AttachCgroupInet4GetPeername},
		{o.KmGetpeername6, kernelmeshProgKmGetpeername6, ebpf.AttachCgroupInet6GetPeername},
		{o.KmRecvmsg4, kernelmeshProgKmRecvmsg4, ebpf.AttachCGroupUDP4Recvmsg},
		{o.KmRecvmsg6, kernelmeshProgKmRecvmsg6, ebpf.AttachCGroupUDP6Recvmsg},
		{o.KmSendmsg4, kernelmeshProgKmSendmsg4, ebpf.AttachCGroupUDP4Sendmsg},
		{o.KmSendmsg6, kernelmeshProgKmSendmsg6, ebpf.AttachCGroupUDP6Sendmsg},
		{o.KmConnect4, kernelmeshProgKmConnect4, ebpf.AttachCGroupInet4Connect},
		{o.KmConnect6, kernelmeshProgKmConnect6, ebpf.AttachCGroupInet6Connect},
	}
}

// counterOrder is enum program of bpf/kernelmesh.c.
var counterOrder = []string{
	kernelmeshProgKmConnect4, kernelmeshProgKmConnect6, kernelmeshProgKmSendmsg4, kernelmeshProgKmSendmsg6, kernelmeshProgKmRecvmsg4,
	kernelmeshProgKmRecvmsg6, kernelmeshProgKmGetpeername4, kernelmeshProgKmGetpeername6, kernelmeshProgKmSockops,
}

// Load loads the programs and maps, with no services, attached to nothing. A machine that cannot do it is a *fault.Error of code Machine.
func Load(o Options) (*DataPlane, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	spec, err := loadKernelmesh()
	if err != nil {
		return nil, fmt.Errorf("reading the embedded BPF object: %w", err)
	}
	if err := spec.Variables[kernelmeshVarTareSteps].Set(o.Steps); err != nil {
		return nil, fmt.Errorf("setting steps: %w", err)
	}
	if err := spec.Variables[kernelmeshVarTareSockopsSteps].Set(o.SockopsSteps); err != nil {
		return nil, fmt.Errorf("setting sockops steps: %w", err)
	}
	for name, size := range map[string]uint32{
		kernelmeshMapKmServices:    o.MaxServices,
		kernelmeshMapKmTables:      o.MaxServices,
		kernelmeshMapKmSvcCounts:   o.MaxServices,
		kernelmeshMapKmSlots:       o.MaxEndpoints,
		kernelmeshMapKmEndpoints:   o.MaxEndpoints,
		kernelmeshMapKmConnections: o.MaxEndpoints,
	} {
		spec.Maps[name].MaxEntries = size
	}
	d := &DataPlane{}
	if err := spec.LoadAndAssign(&d.objects, nil); err != nil {
		return nil, explain(err, "loading the data plane")
	}
	if d.store, err = newMapStore(&d.objects.kernelmeshMaps); err != nil {
		return nil, errors.Join(explain(err, "loading the data plane"), d.objects.Close())
	}
	return d, nil
}

// Store is the way to the services.
func (d *DataPlane) Store() Store { return d.store }

// Attach attaches the programs to a cgroup v2 directory, by links, which end with the process.
func (d *DataPlane) Attach(dir string, allowRoot bool) error {
	if err := checkCgroup(dir, allowRoot); err != nil {
		return err
	}
	cgroup, err := os.Open(dir)
	if err != nil {
		return fault.Wrap(err, fault.Machine, dir, "run as root", "the control group cannot be opened")
	}
	defer cgroup.Close()
	for _, h := range d.hooks() {
		// Not link.AttachCgroup: where links are missing it attaches without one, and that would outlive the process.
		l, err := link.AttachRawLink(link.RawLinkOptions{Target: int(cgroup.Fd()), Program: h.program, Attach: h.attach})
		if err != nil {
			return explain(err, "attaching "+h.name+" to "+dir)
		}
		a := attached{link: l, hook: h}
		d.links = append(d.links, a)
		info, err := l.Info()
		if err != nil {
			return fmt.Errorf("reading the link of %s: %w", h.name, err)
		}
		d.links[len(d.links)-1].id = info.ID
	}
	return nil
}

// Close detaches the programs, those that rewrite first, and removes all from the kernel.
func (d *DataPlane) Close() error {
	var errs []error
	for _, a := range slices.Backward(d.links) {
		errs = append(errs, a.link.Close())
	}
	d.links = nil
	return errors.Join(append(errs, d.store.close(), d.objects.Close())...)
}

// checkCgroup says why the programs must not or cannot be attached to dir.
func checkCgroup(dir string, allowRoot bool) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fault.Wrap(err, fault.Usage, dir, "make it with mkdir, and move processes into it", "there is no such control group")
	}
	if fs.Type != unix.CGROUP2_SUPER_MAGIC {
		mount := cgroup2Mount()
		if mount == "" {
			return fault.New(fault.Machine, dir, "mount it: mount -t cgroup2 none /sys/fs/cgroup/unified",
				"this machine has no cgroup v2 hierarchy mounted, which eBPF programs on sockets need")
		}
		return fault.New(fault.Usage, dir, "name a directory below "+mount, "this is not a cgroup v2 directory")
	}
	// Every control group but the root of the hierarchy has this file (Documentation/admin-guide/cgroup-v2.rst, Core Interface Files).
	if _, err := os.Stat(filepath.Join(dir, "cgroup.type")); errors.Is(err, os.ErrNotExist) && !allowRoot {
		return fault.New(fault.Usage, dir, "name a control group below it, or give --allow-root",
			"this is the root of the hierarchy: every connection of the machine would go through the data plane")
	}
	return nil
}

// cgroup2Mount is where the cgroup v2 hierarchy is mounted, "" if nowhere; for messages.
func cgroup2Mount() string {
	data, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(data)) {
		mount, rest, ok := strings.Cut(line, " - ")
		fields := strings.Fields(mount)
		if ok && len(fields) > 4 && strings.HasPrefix(rest, "cgroup2 ") {
			return fields[4]
		}
	}
	return ""
}

// explain turns a refusal of the kernel into a fault with a mend.
func explain(err error, doing string) error {
	var verifier *ebpf.VerifierError
	switch {
	// Without CAP_BPF or CAP_PERFMON the verifier refuses what it would take from others: that is a question of rights.
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) && !hasRights():
		mend := "run as root (it needs CAP_BPF and CAP_NET_ADMIN)"
		if hasRights() {
			mend = "the kernel refuses BPF to root as well: look at /sys/kernel/security/lockdown, at the container's seccomp profile and its devices"
		}
		return fault.Wrap(err, fault.Machine, "", mend, "%s: not permitted", doing)
	case errors.As(err, &verifier):
		return fault.New(fault.Machine, "", "it needs Linux 5.18 with CONFIG_CGROUP_BPF; on a newer one this is a defect of Tare: report this text with uname -r",
			"%s: the kernel's verifier refuses a program: %-12v", doing, verifier)
	case errors.Is(err, unix.ENOMEM):
		return fault.Wrap(err, fault.Machine, "", "lower --max-services and --max-endpoints, or raise the memory limit of the control group it runs in",
			"%s: no memory", doing)
	}
	return fault.Wrap(err, fault.Machine, "", "it needs Linux 5.18 with CONFIG_BPF_SYSCALL, CONFIG_BPF_JIT and CONFIG_CGROUP_BPF", "%s", doing)
}

// hasRights reports whether this process has the capabilities that loading takes, in its own user namespace.
func hasRights() bool {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return os.Geteuid() == 0
	}
	has := func(capability uint) bool { return data[capability/32].Effective>>(capability%32)&1 == 1 }
	return has(unix.CAP_SYS_ADMIN) || has(unix.CAP_BPF) && has(unix.CAP_NET_ADMIN)
}

// Stats are the counters of a data plane since it was loaded.
type Stats struct {
	Programs []ProgramStats `json:"programs"`
	Services []ServiceStats `json:"services"`
	// Retired counts the endpoints that no service has any more, and that still have open connections.
	Retired int `json:"retired"`
}

// ProgramStats are the runs of one program by outcome. Every run has one.
type ProgramStats struct {
	Name       string `json:"name"`
	Matched    uint64 `json:"matched"`     // acted: rewrote an address, counted a connection
	Passed     uint64 `json:"passed"`      // nothing matched
	NoEndpoint uint64 `json:"no_endpoint"` // a service matched that has no endpoint; refused
}

// ServiceStats are the counters of one service.
type ServiceStats struct {
	Address    netip.AddrPort  `json:"address"`
	Protocol   string          `json:"protocol"`
	Matched    uint64          `json:"matched"`     // connections and, for unconnected UDP, datagrams given to an endpoint
	NoEndpoint uint64          `json:"no_endpoint"` // the same, refused for want of one
	Endpoints  []EndpointStats `json:"endpoints"`
}

// EndpointStats are the TCP connections to one endpoint.
type EndpointStats struct {
	Address     netip.AddrPort `json:"address"`
	Weight      uint32         `json:"weight"`
	Opened      uint64         `json:"opened"`      // first SYN sent
	Established uint64         `json:"established"` //
	Closed      uint64         `json:"closed"`      // of the established ones
	Failed      uint64         `json:"failed"`      // opened and never established
}

// Active is the number of established connections that are not closed.
func (e EndpointStats) Active() uint64 {
	return e.Established - min(e.Closed, e.Established) // one that closed while the two were read is in closed alone
}

// Stats reads the counters. They go on while they are read: numbers of different lines may differ by what happened meanwhile.
func (d *DataPlane) Stats() (Stats, error) {
	var stats Stats
	for i, name := range counterOrder {
		var perCPU []kernelmeshProgramCounters
		if err := d.objects.KmProgCounts.Lookup(uint32(i), &perCPU); err != nil {
			return stats, fmt.Errorf("reading the counters of %s: %w", name, err)
		}
		p := ProgramStats{Name: name}
		for _, c := range perCPU {
			p.Matched += c.Matched
			p.Passed += c.Passed
			p.NoEndpoint += c.NoEndpoint
		}
		stats.Programs = append(stats.Programs, p)
	}
	var err error
	stats.Services, stats.Retired, err = d.store.stats()
	return stats, err
}

// stats are the counters of all services, by address, and how many endpoints are retired.
func (s *mapStore) stats() ([]ServiceStats, int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.reap(); err != nil {
		return nil, 0, err
	}
	all := make([]ServiceStats, 0, len(s.services))
	for _, service := range s.services {
		var perCPU []kernelmeshServiceCounters
		if err := s.maps.KmSvcCounts.Lookup(service.id, &perCPU); err != nil {
			return nil, 0, fmt.Errorf("reading the counters of service %s: %w", service, err)
		}
		t := ServiceStats{Address: service.Address, Protocol: service.Protocol.String()}
		for _, c := range perCPU {
			t.Matched += c.Matched
			t.NoEndpoint += c.NoEndpoint
		}
		for _, e := range service.Endpoints {
			c, err := s.connections(service.ids[canonical(e.Address)])
			if err != nil {
				return nil, 0, err
			}
			t.Endpoints = append(t.Endpoints, EndpointStats{Address: e.Address, Weight: e.Weight,
				Opened: c.Opened, Established: c.Established, Closed: c.Closed, Failed: c.Failed})
		}
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b ServiceStats) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Protocol, b.Protocol))
	})
	return all, len(s.retired), nil
}
