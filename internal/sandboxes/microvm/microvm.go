// Package microvm is a sandbox runtime in the manner of Kata Containers: it has runc's command line and runs each
// container in a separate virtual machine.
package microvm

// The accelerators of QEMU that can be chosen.
const (
	AccelAuto = "auto"
	AccelKVM  = "kvm"
	AccelTCG  = "tcg"
)
