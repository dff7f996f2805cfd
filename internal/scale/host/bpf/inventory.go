// Package bpf reads the eBPF programs, maps and links of the whole machine: what they are, how long they have run,
// what memory they take, who holds them, what they are attached to, and which group the kernel charges them to. It
// interprets nothing.
//
// Objects are read by id, through one descriptor at a time, which is closed at once, so reading never extends the life
// of an object. Two small BPF iterators provide what nothing else does (see bpf/iterators.bpf.c); nothing is ever
// pinned.
//
// Measured with 50 programs and 100 maps: opening takes some 16 ms of CPU, most of it for the kernel's type
// information; a snapshot 3 ms; reading all counters again 0.3 ms. A third iterator would read the counters with one
// system call instead of two hundred, but loading it takes 0.6 ms. That is why they are read by id.
package bpf

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/btf"
	"golang.org/x/sys/unix"

	"tare/internal/lib/fault"
	"tare/internal/scale/host/cgroup"
)

// Options configures an Inventory. The zero value is right for production.
type Options struct {
	// WithoutIterators reads as on a kernel without BTF: holders from /proc, and no ChargedTo.
	WithoutIterators bool
	// Proc is where procfs is mounted; /proc if empty. Holders and mounts are read from there.
	Proc string
	// Types holds the kernel's types, if already read. If it is nil, Open reads them, which is most of the cost of Open.
	Types *btf.Cache
	// Iterators are shared with other inventories, and outlive this one. If it is nil, the inventory loads its own.
	Iterators *Iterators
}

// Inventory reads the machine's eBPF objects. It is not safe for concurrent use.
type Inventory struct {
	proc        string
	iterators   *Iterators // nil if disabled
	shared      bool       // iterators belongs to the caller
	own         map[uint32]bool
	bytesMethod BytesMethod
	mounts      cgroupMounts
	charged     bool // the kernel charges BPF memory to control groups

	known    map[Key]*Program // every program seen since the last snapshot
	names    map[Key]string   // full names of programs whose name the kernel truncates
	warnings []Warning        // of the snapshot being taken

	scratch programScratch
	path    []byte
	text    []byte
	buf     []byte
	link    *linkInfo
	name    []byte
}

// Warning describes a limitation of a snapshot to those who use it.
type Warning struct {
	Code    string // short and stable
	Message string
}

// Snapshot holds the machine's programs, maps and links at one time. Lists are ordered by id.
type Snapshot struct {
	Programs []Program
	Maps     []Map
	Links    []Link
	Warnings []Warning

	MapsErr  error         // why Maps could not be read; Maps is then empty
	MapsTook time.Duration // the part of the reading time spent on maps
}

// Open returns an Inventory and loads what it needs into the kernel. The caller must close it. Without the privilege
// to list BPF objects (CAP_SYS_ADMIN), the error is a *fault.Error with code Machine that wraps a
// *feature.MissingError.
func Open(o Options) (*Inventory, error) {
	if err := syscallFeature().Err(); err != nil {
		return nil, fault.Wrap(err, fault.Machine, "", "run as root, or with CAP_SYS_ADMIN", "eBPF programs cannot be listed")
	}
	v := &Inventory{proc: cmp.Or(o.Proc, "/proc"), own: map[uint32]bool{}, known: map[Key]*Program{}}
	var err error
	if v.mounts, err = findCgroupMounts(v.proc); err != nil {
		return nil, err
	}
	v.charged = chargesBPF(v.proc)
	if v.bytesMethod, err = v.probeBytesMethod(); err != nil {
		return nil, fmt.Errorf("finding out how this kernel counts the memory of maps: %w", err)
	}
	if !o.WithoutIterators {
		v.iterators, v.shared = cmp.Or(o.Iterators, &Iterators{}), o.Iterators != nil
		v.iterators.load(o.Types)
		for _, i := range []*iterator{v.iterators.maps, v.iterators.files} {
			if i == nil {
				continue
			}
			var info progInfo
			if _, err := objInfo(i.program.FD(), unsafe.Pointer(&info), unsafe.Sizeof(info)); err != nil {
				v.Close()
				return nil, fmt.Errorf("reading one of Tare's own eBPF programs: %w", err)
			}
			v.own[info.ID] = true
		}
	}
	return v, nil
}

// Close unloads what Open loaded.
func (v *Inventory) Close() error {
	if v.iterators != nil && !v.shared {
		v.iterators.Close()
	}
	v.iterators = nil
	return nil
}

func (v *Inventory) warn(code, format string, args ...any) {
	v.warnings = append(v.warnings, Warning{code, fmt.Sprintf(format, args...)})
}

// Snapshot reads everything, and is the basis of later calls of ReadCounters. An object that goes away in the meantime
// is left out, without an error. If maps cannot be read, only MapsErr is set.
func (v *Inventory) Snapshot() (*Snapshot, error) {
	v.warnings = nil
	programs, err := v.readPrograms()
	if err != nil {
		return nil, err
	}
	s := &Snapshot{Programs: programs}
	began := time.Now()
	if s.Maps, s.MapsErr = v.readMaps(); s.MapsErr != nil {
		s.Maps = nil // an incomplete list would look complete
	}
	s.MapsTook = time.Since(began)
	if s.Links, err = v.readLinks(); err != nil {
		return nil, err
	}
	if err := v.nameTargets(s); err != nil {
		v.warn("bpf-targets", "what programs are attached to is not fully known: %s",
			strings.ReplaceAll(err.Error(), "\n", "; "))
	}
	if err := v.addHolders(s); err != nil {
		v.warn("bpf-holders", "which processes hold programs and maps is not fully known: %v", err)
	}
	if err := v.addCharges(s); err != nil {
		v.warn("bpf-charges", "which control groups pay for maps is not known: %v", err)
	}
	addUsers(s)
	v.markOwn(s)
	v.known = make(map[Key]*Program, len(s.Programs))
	for i := range s.Programs {
		v.known[s.Programs[i].Key()] = new(s.Programs[i])
	}
	s.Warnings = v.warnings
	return s, nil
}

func (v *Inventory) readPrograms() ([]Program, error) {
	boot, err := bootTime()
	if err != nil {
		return nil, err
	}
	var out []Program
	anyHidden := false
	names := map[Key]string{}
	err = v.eachProgram(func(_ uint32, fd int) error {
		p, hidden, err := v.scratch.readProgram(fd, boot)
		if err != nil {
			return err
		}
		v.fullName(&p)
		if len(p.Name) >= cutName {
			names[p.Key()] = p.Name
		}
		anyHidden = anyHidden || hidden
		out = append(out, p)
		return nil
	})
	v.names = names
	if anyHidden {
		v.warn("bpf-addresses-hidden", "the kernel hides the addresses of machine code (it shows them to CAP_SYSLOG, with "+
			"kernel.kptr_restrict below 2): samples cannot be told apart by program")
	}
	return out, err
}

// ReadCounters reads the counters of every program again, including new ones. For programs that have gone since the
// last Snapshot (Vanished) it returns the last values. Owners and Attached are those of that Snapshot, so a new
// program has none. A program that came and went between two calls is not seen.
func (v *Inventory) ReadCounters() ([]Program, error) {
	boot, err := bootTime()
	if err != nil {
		return nil, err
	}
	alive := make(map[Key]bool, len(v.known))
	err = v.eachProgram(func(_ uint32, fd int) error {
		var info progInfo
		size, err := objInfo(fd, unsafe.Pointer(&info), unsafe.Sizeof(info))
		if err != nil {
			return err
		}
		key := Key{info.ID, time.Duration(info.LoadTime)}
		alive[key] = true
		if p, ok := v.known[key]; ok {
			p.Counters = countersOf(&info, size)
			return nil
		}
		p, _, err := v.scratch.readProgram(fd, boot)
		if err != nil {
			return err
		}
		v.fullName(&p)
		p.Own = v.own[p.ID]
		v.known[key] = &p
		return nil
	})
	if err != nil {
		return nil, err
	}
	out := make([]Program, 0, len(v.known))
	for key, p := range v.known {
		p.Vanished = !alive[key]
		out = append(out, *p)
	}
	slices.SortFunc(out, func(a, b Program) int {
		if a.ID != b.ID {
			return int(int64(a.ID) - int64(b.ID))
		}
		return int(a.LoadTime - b.LoadTime)
	})
	return out, nil
}

// readMaps opens every map once. This exposes a kernel bug that affects every reader by id, including bpftool: a
// program array that is opened in the instant between its creator's last close and the work that clears it
// (prog_array_map_clear) is never freed. Observed on 6.1 and 6.18, only if program arrays are created and closed in a
// loop. A map's size can be read only through a descriptor.
func (v *Inventory) readMaps() ([]Map, error) {
	var out []Map
	err := v.eachObject("map", cmdMapGetNextID, cmdMapGetFDByID, openReadOnly, func(_ uint32, fd int) error {
		m, err := v.readMap(fd)
		if err == nil {
			out = append(out, m)
		}
		return err
	})
	return out, err
}

func (v *Inventory) readLinks() ([]Link, error) {
	var out []Link
	err := v.eachObject("link", cmdLinkGetNextID, cmdLinkGetFDByID, 0, func(_ uint32, fd int) error {
		l, err := v.readLink(fd)
		if err == nil {
			out = append(out, l)
		}
		return err
	})
	if errors.Is(err, unix.EINVAL) {
		v.warn("bpf-links", "this kernel cannot list links (Linux 5.8 can): what programs are attached to is known "+
			"only in part")
		return nil, nil
	}
	return out, err
}

// nameTargets completes the targets of links, finds attachments without links, and adds both to the programs.
func (v *Inventory) nameTargets(s *Snapshot) error {
	cgroups := openCgroupNames(v.mounts.v2)
	defer cgroups.close()
	program := make(map[uint32]*Program, len(s.Programs))
	unlinked := map[uint32]bool{} // types of programs without a link
	linked := map[uint32]bool{}
	onDevice := false
	for i := range s.Programs {
		program[s.Programs[i].ID] = &s.Programs[i]
		onDevice = onDevice || s.Programs[i].Type == "xdp"
	}
	for _, l := range s.Links {
		linked[l.ProgramID] = true
		onDevice = onDevice || l.ifindex != 0
	}
	for _, p := range s.Programs {
		if !linked[p.ID] {
			unlinked[p.typ] = true
		}
	}

	var failed error
	var ifaces map[uint32]device
	if onDevice || unlinked[progTypeSchedCLS] {
		ifaces, failed = devices()
	}
	for i := range s.Links {
		l := &s.Links[i]
		switch {
		case l.typ == linkCgroup:
			path := cmp.Or(cgroups.path(l.cgroup), fmt.Sprintf("id %d", l.cgroup))
			l.Target = "cgroup:" + path + " " + typeName(attachTypes, l.attachType)
		case l.ifindex != 0:
			l.Target = l.Type + ":" + interfaceOf(l, ifaces)
			if l.typ != linkXDP {
				l.Target += " " + typeName(attachTypes, l.attachType)
			}
		}
		if p := program[l.ProgramID]; p != nil {
			p.Attached = append(p.Attached, fmt.Sprintf("%s (link %d)", l.Target, l.ID))
		}
	}

	attached := func(id uint32, target string) {
		if p := program[id]; p != nil && !isAttached(p, target) {
			p.Attached = append(p.Attached, target)
		}
	}
	errs := []error{failed, netAttachments(ifaces, unlinked, func(a netAttachment) {
		attached(a.program, a.target(a.device))
	})}
	if unlinked[progTypeFlowDissector] {
		errs = append(errs, ownFlowDissectors(attached))
	}
	if onNetwork(unlinked) {
		errs = append(errs, v.attachmentsElsewhere(unlinked, program))
	}
	if unlinked[progTypeSkSKB] || unlinked[progTypeSkMsg] {
		errs = append(errs, sockmapAttachments(s.Maps, attached))
	}
	return errors.Join(append(errs, v.cgroupAttachments(unlinked, attached))...)
}

// interfaceOf returns the interface name of a link. A link does not say which network namespace its interface index
// belongs to, so the name is used only if the interface with that index in this namespace has the link's program.
func interfaceOf(l *Link, ifaces map[uint32]device) string {
	d, ok := ifaces[l.ifindex]
	if ok && l.typ == linkXDP {
		ok = slices.Contains(d.xdp, l.ProgramID)
	} else if ok {
		ids, err := programsOn(int(l.ifindex), l.attachType)
		ok = err == nil && slices.Contains(ids, l.ProgramID)
	}
	if !ok {
		return unnamed(l.ifindex)
	}
	return d.name
}

// isAttached reports whether a target is already recorded, with or without a link.
func isAttached(p *Program, target string) bool {
	return slices.ContainsFunc(p.Attached, func(have string) bool {
		return have == target || strings.HasPrefix(have, target+" (link ")
	})
}

// addHolders finds the processes that hold programs, maps and links. A process that holds a link, or a perf event that
// a program is attached to, keeps the program alive and counts as its owner.
func (v *Inventory) addHolders(s *Snapshot) error {
	held, err := v.descriptors()
	if err != nil && len(held) == 0 {
		return err
	}
	programs, maps, links := map[uint32]*Program{}, map[uint32]*Map{}, map[uint32]*Link{}
	for i := range s.Programs {
		programs[s.Programs[i].ID] = &s.Programs[i]
	}
	for i := range s.Maps {
		maps[s.Maps[i].ID] = &s.Maps[i]
	}
	for i := range s.Links {
		links[s.Links[i].ID] = &s.Links[i]
	}
	own := func(program uint32, h Holder) *Program {
		p := programs[program]
		if p != nil {
			p.Owners = addHolder(p.Owners, h)
		}
		return p
	}
	for _, d := range held {
		switch d.kind {
		case kindMap:
			if m := maps[d.id]; m != nil {
				m.HeldBy = addHolder(m.HeldBy, d.Holder)
			}
		case kindProg:
			own(d.id, d.Holder)
		case kindLink:
			if l := links[d.id]; l != nil {
				l.HeldBy = addHolder(l.HeldBy, d.Holder)
				own(l.ProgramID, d.Holder)
			}
		case kindPerf:
			program, target, ok := v.perfAttachment(d.PID, d.id)
			if !ok {
				continue
			}
			if p := own(program, d.Holder); p != nil {
				// Before Linux 6.6 the event's link does not show what the event is on.
				complete(p, "perf_event", target)
			}
		}
	}
	return err
}

// complete records what a program is attached to. If a link is already recorded with the less precise target in vague,
// complete replaces that target.
func complete(p *Program, vague, target string) {
	for i, have := range p.Attached {
		if rest, ok := strings.CutPrefix(have, vague+" (link "); ok {
			p.Attached[i] = target + " (link " + rest
			return
		}
	}
	if !isAttached(p, target) {
		p.Attached = append(p.Attached, target)
	}
}

// addCharges finds the control groups that maps are charged to.
func (v *Inventory) addCharges(s *Snapshot) error {
	if !v.charged || v.iterators == nil || v.iterators.maps == nil {
		return nil // a missing feature, which Features reports
	}
	raw, err := v.iterators.maps.read(v.buf[:0])
	v.buf = raw
	if err != nil {
		return err
	}
	charges, err := records[iteratorsMapCharge](raw)
	if err != nil {
		return err
	}
	groups := openCgroupNames(v.mounts.memory)
	defer groups.close()
	to := make(map[uint32]string, len(charges))
	for _, c := range charges {
		switch {
		case c.Known == 0:
		case c.CgroupId == 0:
			to[c.MapId] = "/" // the root group has no object cgroup
		default:
			to[c.MapId] = groups.path(c.CgroupId)
		}
	}
	for i := range s.Maps {
		if path := to[s.Maps[i].ID]; path != "" {
			s.Maps[i].ChargedTo = &path
		}
	}
	return nil
}

// chargesBPF reports whether the kernel charges BPF memory to control groups. It returns false if the kernel was booted
// with this charging, or with the accounting of kernel memory, disabled. A map without a charged group is then charged
// to none, and not to the root.
func chargesBPF(proc string) bool {
	return !cgroup.Booted(proc, "cgroup.memory", "nokmem", "nobpf") && !cgroup.Booted(proc, "cgroup_disable", "memory")
}

// addUsers records which programs use a map. A program that uses a map of maps uses the maps inside.
func addUsers(s *Snapshot) {
	maps := make(map[uint32]*Map, len(s.Maps))
	for i := range s.Maps {
		maps[s.Maps[i].ID] = &s.Maps[i]
	}
	use := func(id, program uint32) *Map {
		m := maps[id]
		if m != nil && !slices.Contains(m.UsedBy, program) {
			m.UsedBy = append(m.UsedBy, program)
		}
		return m
	}
	for _, p := range s.Programs {
		for _, id := range p.MapIDs {
			if outer := use(id, p.ID); outer != nil {
				for _, inner := range outer.Inner {
					use(inner, p.ID)
				}
			}
		}
	}
}

// markOwn marks this process's own objects: those held only by this process, or only by other objects that it owns.
// Programs that Tare loads elsewhere, such as its reference subjects, are held by other processes and weighed like any
// other.
func (v *Inventory) markOwn(s *Snapshot) {
	self := os.Getpid()
	mine := func(holders []Holder) bool { return len(holders) == 1 && holders[0].PID == self }
	for i := range s.Programs {
		p := &s.Programs[i]
		p.Own = v.own[p.ID] || mine(p.Owners)
		if p.Own {
			v.own[p.ID] = true
		}
	}
	for i := range s.Maps {
		m := &s.Maps[i]
		// A program's constants and variables are held only by the program.
		users := len(m.HeldBy) == 0 && len(m.UsedBy) > 0
		m.Own = mine(m.HeldBy) ||
			users && !slices.ContainsFunc(m.UsedBy, func(id uint32) bool { return !v.own[id] })
	}
}

// EnableStats makes the kernel count runs and run time of every program until the result is closed or this process
// ends. It uses BPF_ENABLE_STATS and never the sysctl, which would stay on. It costs the machine about 20 to 50 ns for
// each run of each program.
func EnableStats() (io.Closer, error) {
	stats, err := ebpf.EnableStats(unix.BPF_STATS_RUN_TIME)
	if err != nil {
		return nil, fault.Wrap(statsMissing(err), fault.Machine, "",
			"run as root, or with CAP_SYS_ADMIN, on Linux 5.8 or newer", "the kernel's run statistics cannot be enabled")
	}
	return stats, nil
}

// StatsAlwaysOn reports whether run statistics are enabled by the sysctl kernel.bpf_stats_enabled. The sysctl does not
// show processes that enable them by descriptor.
func StatsAlwaysOn() (bool, error) {
	b, err := os.ReadFile("/proc/sys/kernel/bpf_stats_enabled")
	if err != nil {
		return false, fmt.Errorf("reading kernel.bpf_stats_enabled: %w", err)
	}
	return strings.TrimSpace(string(b)) == "1", nil
}
