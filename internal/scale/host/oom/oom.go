// Package oom reports which processes the kernel kills because memory is short.
package oom

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -target bpfel -cc clang -cflags "-O2 -g -Wall -Werror" oom bpf/oom.bpf.c

import (
	"errors"
	"fmt"
	"os"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"tare/internal/lib/fault"
	"tare/internal/lib/text"
)

// maxVictims is the number of victims that are kept until they are read. Further ones are lost.
const maxVictims = 64

// Victim is a process that the kernel killed. Before Linux 6.8 only the PID is known, unless the victim is the process
// that asked for the memory.
type Victim struct {
	PID       int
	Comm      string // name of its first thread
	Program   string // base name of its executable, at most 31 bytes
	Group     uint64 // id of the control group that its memory is charged to (cgroup.ID); 0: unknown
	GroupName string // last part of that group's path

	// Limit is the memory limit in bytes that was reached, of the victim's own group or the nearest group above it. 0:
	// unknown, or the machine's own memory was short. Limited is the id of that group.
	Limit   uint64
	Limited uint64
}

// Watch records victims on the whole machine until Close. It is not safe for concurrent use.
type Watch struct {
	objects oomObjects
	link    link.Link
}

// Open starts recording victims. An error has code fault.Machine: this machine, or this process's rights, do not allow
// it. Each call reads the kernel's BTF.
func Open() (w *Watch, err error) {
	const hint = "run as root on Linux 5.8 or newer, with CONFIG_DEBUG_INFO_BTF"
	w = &Watch{}
	err = loadOomObjects(&w.objects, nil)
	if err != nil {
		return nil, fault.Wrap(err, fault.Machine, "", hint, "the program that notes out-of-memory kills cannot be loaded")
	}
	w.link, err = link.AttachRawTracepoint(link.RawTracepointOptions{Name: "mark_victim", Program: w.objects.TareOom})
	if err != nil {
		err = fault.Wrap(err, fault.Machine, "mark_victim", hint,
			"the program that notes out-of-memory kills cannot be attached")
		return nil, errors.Join(err, w.Close())
	}
	return w, nil
}

// Close stops recording.
func (w *Watch) Close() error {
	var err error
	if w.link != nil {
		err = w.link.Close()
		w.link = nil
	}
	return errors.Join(err, w.objects.Close())
}

// victim is struct victim of oom.bpf.c.
type victim struct {
	Group     uint64
	Limited   uint64
	Limit     uint64
	PID       uint32
	Comm      [16]byte
	Program   [32]byte
	GroupName [132]byte
}

// Victims returns the victims since the last call, in order.
func (w *Watch) Victims() (all []Victim, err error) {
	for range maxVictims {
		var v victim
		err := w.objects.TareVictims.LookupAndDelete(nil, &v)
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return all, nil
		}
		if err != nil {
			return all, fmt.Errorf("reading which processes the kernel killed when memory ran out: %w", err)
		}
		all = append(all, Victim{
			PID: int(v.PID), Comm: text.OfC(v.Comm[:]), Program: text.OfC(v.Program[:]), Group: v.Group,
			GroupName: text.OfC(v.GroupName[:]),
			Limit:     v.Limit * uint64(os.Getpagesize()), Limited: v.Limited,
		})
	}
	return all, nil
}
