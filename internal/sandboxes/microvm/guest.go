package microvm

import (
	_ "embed"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/sandboxes/cpio"
)

//go:generate go run ../../tracing/exec/freestanding -arch amd64 -o init_amd64.elf c/init.c

// initProgram is the guest's first process, built from c/init.c by go generate.
//
//go:embed init_amd64.elf
var initProgram []byte

// Paths in the guest.
const (
	guestShare = "/share"     // the files that virtiofsd shares, or that were packed into the archive
	guestRoot  = "/container" // the container's root
	planPath   = "/plan"
)

// firstFS returns the guest's first file system, without the container's root. It contains the plan that the guest runs
// at boot, which ends with the calls of p.
func firstFS(k Kernel, p *plan) (*cpio.Archive, error) {
	a := &cpio.Archive{}
	for _, d := range []string{"dev", "proc", "sys", guestShare, guestRoot, "modules"} {
		a.Dir(d, 0o755)
	}
	modules, err := k.GuestModules()
	if err != nil {
		return nil, err
	}
	boot := &plan{}
	boot.mount("dev", "/dev", "devtmpfs", unix.MS_NOSUID, "")
	boot.mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	boot.mount("sys", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	for _, m := range modules {
		path := "/modules/" + m.Name + ".ko"
		a.File(path, 0o644, m.Data)
		boot.load(path)
		boot.add("removing "+path, sysUnlink, path) // frees its memory
	}
	boot.calls = append(boot.calls, p.calls...)
	a.File("init", 0o755, initProgram)
	a.File(planPath, 0o644, boot.encode())
	return a, nil
}

// openPorts returns a plan that opens the ports at the descriptors that c/init.c expects. A port's file name contains
// the number of its device, which is 0, because the console is the only device with ports. The kernel creates the files
// asynchronously: wait limits how long the guest waits for them, by its own clock.
func openPorts(wait time.Duration) *plan {
	p := &plan{}
	for r := controlPort; r <= stderrPort; r++ {
		path := fmt.Sprintf("/dev/vport0p%d", r)
		p.add("waiting for "+path, opWaitFile, path, int(wait.Milliseconds()))
		p.add("opening "+path, sysOpen, path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0).into = r
	}
	return p
}
