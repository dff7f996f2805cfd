package calibrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/experiment/placement"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/pace"
	"tare/internal/lib/quantity"
	"tare/internal/scale/host/cgroup"
	"tare/internal/scale/ledger"
)

const (
	mib = 1 << 20
	// Sizes of one process's memory, all different, so that fields cannot be mixed up unnoticed.
	anonBytes, fileBytes, shmemBytes, sockBytes = 48 * mib, 32 * mib, 20 * mib, 2 * mib
)

func (b *bench) memory() ([]planting, error) {
	return []planting{{"anonymous, file, shared and socket memory", b.takeMemory}}, nil
}

// takeMemory weighs how much the memory of a group grew, by field, when its process took known amounts of each kind.
func (b *bench) takeMemory(ctx context.Context) (ws []Weight, err error) {
	o := memoryOrder{Anon: anonBytes, File: fileBytes, Shmem: shmemBytes, Sock: sockBytes}
	disk, err := diskDir()
	if err == nil {
		var own *files.Scratch
		own, err = files.NewScratch(disk, "weight")
		defer func() { err = errors.Join(err, own.Close()) }()
		o.Dir = own.Path()
	}
	if err != nil {
		o.File = 0
		b.report.Warnings = append(b.report.Warnings, "page cache was not weighed: "+err.Error())
	}
	c, g, err := b.start(ctx, placement.Limits{}, nil, WeightCommand, "memory")
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	counted := countSockets(b.layout, b.tree.Name(), filepath.Base(g.Path()))

	read := func() (*ledger.Memory, error) {
		l, err := b.ledgerOf(ctx, -1, func() error { return pace.Sleep(ctx, 100*time.Millisecond) })
		if err != nil {
			return nil, err
		}
		group := groupOf(l, g.Path())
		switch {
		case group == nil:
			return nil, nil
		case group.Memory == nil:
			return &ledger.Memory{}, nil
		}
		return group.Memory, nil
	}
	before, err := read()
	if err != nil {
		return nil, err
	}
	var r plantedResult
	if err := c.begin(o); err != nil {
		return nil, err
	}
	if err := c.result(ctx, &r); err != nil {
		return nil, err
	}
	after, err := read()
	if err != nil {
		return nil, err
	}

	// 1 MiB, for the stacks and heap of the process itself, and for counters that the kernel batches by 64 pages for each
	// CPU.
	tolerance := Tolerance{Absolute: 1 * mib, Part: 0.02}
	const anon = "private memory, mapped and touched"
	if before == nil || after == nil {
		return []Weight{known("anon", quantity.Bytes, anonBytes, 0, tolerance, anon).noted(groupLost)}, nil
	}
	ws = append(ws, grown("anon", anonBytes, before.Anon, after.Anon, tolerance, anon),
		grown("shmem", shmemBytes, before.Shmem, after.Shmem, tolerance, "a memory file, mapped and touched"))
	if o.File > 0 {
		ws = append(ws, grown("file, which holds shmem", fileBytes+shmemBytes, before.File, after.File, tolerance,
			"a file written on disk, and the memory file"),
			grown("soft", fileBytes, before.Soft, after.Soft, tolerance, "the file on disk, which alone can be dropped"))
	}
	// This includes kernel memory: page tables, socket buffers on v2, and what the file system needs for the file.
	ws = append(ws, grown("hard", anonBytes+shmemBytes, before.Hard, after.Hard, Tolerance{Absolute: 4 * mib, Part: 0.02},
		"private memory and the memory file"))
	const sock = "2 MiB sent to a TCP socket that nobody reads; truth: the two sockets' own account"
	switch {
	case !counted && after.Sock != nil && *after.Sock == 0:
		ws = append(ws, missing("sock", quantity.Bytes, sock,
			"cgroup v1 counts socket buffers only in groups that limit them, and this kernel accepts no such limit, so "+
				"0 means nothing"))
	default:
		ws = append(ws, grown("sock", float64(r.SockBytes), before.Sock, after.Sock,
			Tolerance{Absolute: 256 << 10, Part: 0.05}, sock))
	}
	for field, p := range map[string]*uint64{"slab_reclaimable": after.SlabReclaimable, "kernel": after.Kernel,
		"peak": after.Peak} {
		if p == nil {
			b.report.Warnings = append(b.report.Warnings, "the memory of groups has no "+field+" on this kernel: it is null")
		}
	}
	return ws, nil
}

// grown weighs by how many bytes a field of a group's memory grew. The weight is missing if the kernel does not count
// the field.
func grown[N int64 | uint64](field string, truth float64, before, after *N, t Tolerance, planted string) Weight {
	if before == nil || after == nil {
		return missing(field, quantity.Bytes, planted, "null: this kernel's control groups do not count it")
	}
	return known(field, quantity.Bytes, truth, float64(*after)-float64(*before), t, planted)
}

// countSockets makes a group count its socket buffers, and reports whether it does. cgroup v1 does so once a limit is
// set, v2 always.
func countSockets(l *cgroup.Layout, tree, group string) bool {
	h, ok := l.Controller("memory")
	if !ok || h.V2 {
		return ok
	}
	return os.WriteFile(filepath.Join(h.Mount, tree, group, "memory.kmem.tcp.limit_in_bytes"),
		[]byte(fmt.Sprint(1<<30)), 0) == nil
}

// diskDir returns a directory on a disk: files in memory would count as shared memory.
func diskDir() (string, error) {
	for _, dir := range []string{os.TempDir(), "/var/tmp", "."} {
		var s unix.Statfs_t
		if unix.Statfs(dir, &s) == nil && s.Type != unix.TMPFS_MAGIC && s.Type != unix.RAMFS_MAGIC &&
			unix.Access(dir, unix.W_OK) == nil {
			return dir, nil
		}
	}
	return "", fault.New(fault.Machine, os.TempDir(), "set TMPDIR to a directory on a disk",
		"no directory on a disk can be written")
}
