package microvm

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// probeTime limits the time that a kernel gets to boot under KVM. After that, KVM counts as not working. With hardware
// support this takes a fraction of a second. It is not enough that /dev/kvm can be opened: some hosts provide virtual
// processors on which a stock kernel never boots.
const probeTime = 5 * time.Second

// probe records whether KVM works here with the given kernel. It is valid until the host boots again.
type probe struct {
	Boot   string `json:"boot"`   // the host's boot_id
	Kernel string `json:"kernel"` // path of the guest's kernel
	Works  bool   `json:"works"`
	Reason string `json:"reason"`
}

// probeFile is the file that holds the probe. Its content is about the machine, so it is not removed with sandboxes.
const probeFile = sandboxDir + "/.kvm-probe.json"

// chooseAccel returns the accelerator to use, and the reason. For AccelAuto, it boots the kernel under KVM to find out
// whether KVM works. It keeps the result in probeFile until this machine boots again or another kernel is used.
func chooseAccel(ctx context.Context, wanted, qemu string, k Kernel) (accel, reason string, err error) {
	if wanted != AccelAuto {
		return wanted, "asked for", nil
	}
	if _, err := os.Stat("/dev/kvm"); err != nil {
		return AccelTCG, "there is no /dev/kvm", nil
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // if it cannot be read, the id is always empty
	now := probe{Boot: strings.TrimSpace(string(boot)), Kernel: k.Image}
	var kept probe
	if b, err := readBounded(probeFile, 64<<10); err == nil && json.Unmarshal(b, &kept) == nil &&
		kept.Boot == now.Boot && kept.Kernel == now.Kernel {
		now = kept
	} else {
		err := probeKVM(ctx, qemu, k)
		if ctx.Err() != nil {
			return "", "", ctx.Err()
		}
		now.Works, now.Reason = err == nil, "a kernel boots under KVM"
		if err != nil {
			now.Reason = fmt.Sprintf("there is /dev/kvm, but under it a kernel does not boot: %v", err)
		}
		if b, err := json.Marshal(now); err == nil {
			_ = os.MkdirAll(sandboxDir, 0o700)
			_ = os.WriteFile(probeFile, b, 0o600) // an error only means that the next call probes again
		}
	}
	if now.Works {
		return AccelKVM, now.Reason, nil
	}
	return AccelTCG, now.Reason, nil
}

// probeKVM boots the kernel under KVM, up to the first process, which reports success.
func probeKVM(ctx context.Context, qemu string, k Kernel) error {
	archive, err := firstFS(k, openPorts(probeTime))
	if err != nil {
		return err
	}
	m := machine{id: "probe", accel: AccelKVM, cpus: 1, memoryMiB: 128, kernel: k.Image}
	v, err := startVM(newThread(), &m, qemu, archive.Bytes(), nil)
	if err != nil {
		return err
	}
	err = v.hello(ctx, probeTime)
	v.end()
	return err
}
