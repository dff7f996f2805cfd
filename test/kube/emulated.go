package kube

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"tare/internal/sandboxes/cpio"
	"tare/test/vm"
)

// emulatedModules are the kernel modules of an emulated node: for its devices and its root file system, for containers,
// the CNI plugins and kube-proxy. All are loaded at the start, so that no program in the machine has to find any.
var emulatedModules = []string{
	"virtio_pci", "virtio_net", "virtio_rng", "virtiofs",
	"overlay", "veth", "bridge", "br_netfilter",
	"nf_tables", "nft_ct", "nft_nat", "nft_masq", "nft_redir", "nft_fib_inet", "nft_reject_inet", "nft_numgen",
	"nft_chain_nat", "nft_compat", "nft_limit", "nft_log", "nft_hash", "nf_conntrack_netlink", "xt_comment",
}

const emulatedInit = `#!/bin/busybox sh
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t devtmpfs dev /dev
for m in /modules/*; do $b insmod $m || echo "no module $m"; done
$b mount -t virtiofs -o ro root /root
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
exec $b switch_root /root "$RIG/node" "$NODE" inside
`

// emulated puts into a directory what emulated nodes boot: a kernel, and an initial file system, from which
// test/kube/node takes over. The error matches vm.ErrMissing if something is not installed.
func emulated(dir string) error {
	for _, program := range []string{"qemu-system-x86_64", "/usr/lib/qemu/virtiofsd"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("needs %s: %w", program, vm.ErrMissing)
		}
	}
	k, err := vm.Kernel()
	if err != nil {
		return err
	}
	modules, err := k.ReadModules(emulatedModules)
	if err != nil {
		return err
	}
	busybox, _, err := vm.Busybox()
	if err != nil {
		return err
	}
	var a cpio.Archive
	for _, d := range []string{"dev", "proc", "root"} {
		a.Dir(d, 0o755)
	}
	a.File("init", 0o755, []byte(emulatedInit))
	a.File("bin/busybox", 0o755, busybox)
	for i, m := range modules {
		a.File(fmt.Sprintf("modules/%03d-%s.ko", i, m.Name), 0o644, m.Data)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := os.Symlink(k.Image, filepath.Join(dir, "kernel")); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "initramfs"), a.Bytes(), 0o600)
}
