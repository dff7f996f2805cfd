// Package kernelmesh is a small service mesh data plane in the kernel: eBPF programs on the socket calls of one control
// group replace the address of a service with that of one of its endpoints, chosen by weight, and count the
// connections. Its configuration, from a file or from a control plane, is kept in a store of any design (package
// store). It works with unmodified applications, and is small enough that its cost can be predicted, so it is the
// reference subject of Tare. docs/kernelmesh.md describes the programs, the maps and the limits.
package kernelmesh

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/mesh"
	"tare/internal/mesh/store"
	"tare/internal/mesh/xds"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/host/mount"
	"tare/internal/scale/host/proc"
)

// Version is the version of the data plane; it changes when its programs or maps do.
const Version = "2"

// Default sizes of the maps.
const (
	DefaultMaxServices  = 1024
	DefaultMaxEndpoints = 16384
)

// MaxSteps is the maximum of Options.Steps and Options.SockopsSteps: BPF_MAX_LOOPS of include/linux/bpf_verifier.h.
const MaxSteps = 1 << 23

const (
	maxServices  = 1 << 20
	maxEndpoints = 1 << 24
)

// DefaultStore is the default design of the store.
const DefaultStore = "snapshot"

// Values of Options.Fail: what happens to connections before the control plane's first configuration is there.
const (
	FailOpen   = "open"   // they are left unchanged
	FailClosed = "closed" // they are refused
)

// Values of Options.Peer: what applications see as the peer of a connection to a service.
const (
	PeerService  = "service"  // the service that they connected to
	PeerEndpoint = "endpoint" // the endpoint that was chosen
)

// Fails and Peers are the possible values of Options.Fail and Options.Peer.
var (
	Fails = []string{FailOpen, FailClosed}
	Peers = []string{PeerService, PeerEndpoint}
)

// Options configures a data plane.
type Options struct {
	ServicesFile string // YAML file of services; empty if XDS is set
	XDS          string // address of a control plane: host:port, or unix:PATH
	Node         Node   // identifies the data plane to the control plane
	// StateOfTheWorld selects the variant of xDS that sends the state of the world, instead of deltas.
	StateOfTheWorld bool
	CgroupDir       string // a cgroup v2 directory; the programs apply to processes in it and below it
	AllowRoot       bool   // let CgroupDir be the root of the hierarchy
	Store           string // design, or design:variant, of package store; empty: DefaultStore
	Fail            string // FailOpen or FailClosed; empty: FailOpen
	Peer            string // PeerService or PeerEndpoint; empty: PeerService
	Work            string // the process's own work after the start message, one of Works; empty: none
	// Sources are the addresses, at most one of each family, that rules use as the source of unbound sockets. Without an
	// address of a family, the source is unknown, and rules with a condition on the source do not match.
	Sources      []netip.Addr
	Steps        uint32 // extra steps of work in every run of the connect programs
	SockopsSteps uint32 // extra steps in every run of the sockops program
	MaxServices  uint32 // 0: DefaultMaxServices
	MaxEndpoints uint32 // 0: DefaultMaxEndpoints; docs/kernelmesh.md says how much memory they take
}

func (o *Options) check() error {
	o.MaxServices = cmp.Or(o.MaxServices, DefaultMaxServices)
	o.MaxEndpoints = cmp.Or(o.MaxEndpoints, DefaultMaxEndpoints)
	o.Store = cmp.Or(o.Store, DefaultStore)
	o.Fail = cmp.Or(o.Fail, FailOpen)
	o.Peer = cmp.Or(o.Peer, PeerService)
	for i, a := range o.Sources {
		a = a.Unmap()
		o.Sources[i] = a
		switch {
		case !a.IsValid() || a.IsUnspecified() || a.IsMulticast() || a.Zone() != "":
			return fault.New(fault.Usage, "--source", "give an address that connections can come from",
				"%s cannot be the source of a connection", a)
		case slices.ContainsFunc(o.Sources[:i], func(b netip.Addr) bool { return a.Is4() == b.Is4() }):
			return fault.New(fault.Usage, "--source", "give one of each", "there are two addresses of one family")
		}
	}
	return nil
}

// Outward returns the addresses from which this process would connect to the Internet, by the current routes of its
// network namespace. Nothing is sent.
func Outward() (sources []netip.Addr) {
	// Addresses for documentation (RFC 5737, RFC 3849), which take the default route.
	for _, to := range []string{"192.0.2.1:9", "[2001:db8::1]:9"} {
		c, err := net.Dial("udp", to)
		if err != nil {
			continue // no route
		}
		sources = append(sources, c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap())
		c.Close()
	}
	return sources
}

// DataPlane is a loaded data plane. It leaves the kernel when it is closed, or when its process ends in any way.
type DataPlane struct {
	options  Options // with defaults filled in
	design   store.Design
	programs map[string]*ebpf.Program
	maps     map[string]*ebpf.Map // of the programs; those of the store are copies, with separate descriptors
	links    []attached
	shared   shared
	onEvent  func(xds.Event) // called for every response of the control plane; nil: not called; a Worker may set it

	mu       sync.Mutex // guards the fields below
	store    store.Store
	clusters map[string]uint32 // the numbers of current clusters, by name
}

type attached struct {
	link *link.RawLink
	id   link.ID
	hook hook
}

// hook is a program and where it is attached.
type hook struct {
	program string
	attach  ebpf.AttachType
}

// hooks are in the order of attachment: first the programs that translate addresses back and count rewritten
// connections, then those that rewrite.
var hooks = []hook{
	{snapshotProgKmSockops, ebpf.AttachCGroupSockOps},
	{snapshotProgKmGetpeername4, ebpf.AttachCgroupInet4GetPeername},
	{snapshotProgKmGetpeername6, ebpf.AttachCgroupInet6GetPeername},
	{snapshotProgKmRecvmsg4, ebpf.AttachCGroupUDP4Recvmsg},
	{snapshotProgKmRecvmsg6, ebpf.AttachCGroupUDP6Recvmsg},
	{snapshotProgKmSendmsg4, ebpf.AttachCGroupUDP4Sendmsg},
	{snapshotProgKmSendmsg6, ebpf.AttachCGroupUDP6Sendmsg},
	{snapshotProgKmConnect4, ebpf.AttachCGroupInet4Connect},
	{snapshotProgKmConnect6, ebpf.AttachCGroupInet6Connect},
}

// namesPeers are the programs that are left out with PeerEndpoint.
var namesPeers = []string{snapshotProgKmGetpeername4, snapshotProgKmGetpeername6}

// Load opens a store, and loads the programs on it, without a configuration and without attaching them. If the machine
// does not support the data plane, the error is a *fault.Error of code Machine.
func Load(o Options) (_ *DataPlane, err error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	d := &DataPlane{options: o, clusters: map[string]uint32{}}
	defer func() {
		if err != nil {
			err = errors.Join(explain(err, "loading the data plane"), d.Close())
		}
	}()
	var so store.Options
	if d.design, so, err = store.Lookup(o.Store); err != nil {
		return nil, err
	}
	so.MaxClusters, so.MaxListeners, so.MaxEndpoints = o.MaxServices, o.MaxServices, o.MaxEndpoints
	ids := so.ClusterNumbers()
	kept, err := d.design.Open(so)
	if fault.CodeOf(err) == fault.Usage {
		return nil, fault.Wrap(err, fault.Usage, "--store",
			"lower --max-services and --max-endpoints, or choose another store", "the store %s cannot be made so large",
			d.design.Name)
	} else if err != nil {
		return nil, err
	}
	d.store = kept
	if err := d.load(o, ids); err != nil {
		return nil, err
	}
	return d, d.shared.open(d.maps, ids)
}

// Apply makes a change of the configuration while programs run; see store.Store for its guarantees. Concurrent calls
// run in turn.
func (d *DataPlane) Apply(ctx context.Context, change mesh.Change) (store.Work, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	work, err := d.store.Apply(ctx, change)
	for _, c := range change.Clusters { // even after an error, because part of the change may have been made
		d.recount(c.Name)
	}
	for _, name := range change.RemovedClusters {
		d.recount(name)
	}
	d.shared.changed()
	return work, err
}

// recount checks whether a cluster was added or removed, and updates its number and its counters.
func (d *DataPlane) recount(name string) {
	id, is := d.store.Cluster(name)
	before, was := d.clusters[name]
	if is && was && id == before {
		return
	}
	if was {
		delete(d.clusters, name)
		d.shared.retire(before)
	}
	if is {
		d.clusters[name] = id
	}
}

// Attach attaches the programs to a cgroup v2 directory with links, which end with the process.
func (d *DataPlane) Attach(dir string, allowRoot bool) error {
	if err := checkCgroup(dir, allowRoot); err != nil {
		return err
	}
	cgroup, err := os.Open(dir)
	if err != nil {
		return fault.Wrap(err, fault.Machine, dir, "run as root", "the control group cannot be opened")
	}
	defer cgroup.Close()
	for _, h := range hooks {
		program := d.programs[h.program]
		if program == nil {
			continue // left out
		}
		// Do not use link.AttachCgroup: on kernels without links, it attaches the program without a link, and that attachment
		// would outlive the process.
		l, err := link.AttachRawLink(link.RawLinkOptions{Target: int(cgroup.Fd()), Program: program, Attach: h.attach})
		if err != nil {
			return explain(err, "attaching "+h.program+" to "+dir)
		}
		a := attached{link: l, hook: h}
		d.links = append(d.links, a)
		info, err := l.Info()
		if err != nil {
			return fmt.Errorf("reading the link of %s: %w", h.program, err)
		}
		d.links[len(d.links)-1].id = info.ID
	}
	return nil
}

// Close detaches the programs, those that rewrite first, and removes everything from the kernel.
func (d *DataPlane) Close() error {
	var errs []error
	for _, a := range slices.Backward(d.links) {
		errs = append(errs, a.link.Close())
	}
	d.links = nil
	for _, p := range d.programs {
		errs = append(errs, p.Close())
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	errs = append(errs, d.shared.close())
	for _, m := range d.maps {
		errs = append(errs, m.Close())
	}
	if d.store != nil {
		errs = append(errs, d.store.Close())
	}
	d.programs, d.maps, d.store = nil, nil, nil
	return errors.Join(errs...)
}

// checkCgroup returns an error if the programs must not or cannot be attached to dir.
func checkCgroup(dir string, allowRoot bool) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fault.Wrap(err, fault.Usage, dir, "make it with mkdir, and move processes into it", "no such control group")
	}
	if fs.Type != unix.CGROUP2_SUPER_MAGIC {
		mount := cgroup2Mount()
		if mount == "" {
			return fault.New(fault.Machine, dir, cgroup.MountV2,
				"this machine has no cgroup v2 hierarchy mounted, which eBPF programs on sockets need")
		}
		return fault.New(fault.Usage, dir, "name a directory below "+mount, "this is not a cgroup v2 directory")
	}
	// Every control group but the root of the hierarchy has this file (Documentation/admin-guide/cgroup-v2.rst, Core
	// Interface Files).
	if _, err := os.Stat(filepath.Join(dir, "cgroup.type")); errors.Is(err, os.ErrNotExist) && !allowRoot {
		return fault.New(fault.Usage, dir, "name a control group below it, or give --allow-root",
			"this is the root of the hierarchy: every connection of the machine would go through the data plane")
	}
	return nil
}

// cgroup2Mount returns where the cgroup v2 hierarchy is mounted, or "" if it is not; for messages.
func cgroup2Mount() string {
	mounts, err := mount.Read("")
	if err != nil {
		return ""
	}
	for _, m := range mounts {
		if m.Type == "cgroup2" {
			return m.Point
		}
	}
	return ""
}

// explain turns an error of the kernel into a fault with a hint.
func explain(err error, doing string) error {
	var verifier *ebpf.VerifierError
	var known *fault.Error
	switch {
	case errors.As(err, &known):
		return err
	// For an unprivileged process the verifier refuses programs that it would otherwise allow, so a missing privilege is
	// then the cause of EACCES.
	case errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) && !hasRights():
		hint := "run as root, or with CAP_SYS_ADMIN"
		if hasRights() {
			hint = "the kernel refuses BPF to root as well: look at /sys/kernel/security/lockdown, at the container's seccomp " +
				"profile and its devices"
		}
		return fault.Wrap(err, fault.Machine, "", hint, "%s: not permitted", doing)
	case errors.As(err, &verifier):
		return fault.New(fault.Machine, "", "it needs Linux 5.18 with CONFIG_CGROUP_BPF; on a newer one this is a defect "+
			"of Tare: report this text with uname -r",
			"%s: the kernel's verifier refuses a program: %-12v", doing, verifier)
	case errors.Is(err, unix.ENOMEM):
		return fault.Wrap(err, fault.Machine, "",
			"lower --max-services and --max-endpoints, or raise the memory limit of the control group it runs in",
			"%s: no memory", doing)
	}
	return fault.Wrap(err, fault.Machine, "",
		"it needs Linux 5.18 with CONFIG_BPF_SYSCALL, CONFIG_BPF_JIT and CONFIG_CGROUP_BPF", "%s", doing)
}

// hasRights reports whether this process has the capability that a data plane needs, in its own user namespace: to
// load its programs, and to open its maps by their ids.
func hasRights() bool { return proc.Capable(unix.CAP_SYS_ADMIN) }
