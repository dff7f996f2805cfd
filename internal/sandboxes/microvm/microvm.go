// Package microvm is a sandbox runtime in the manner of Kata Containers: it has runc's command line and runs each
// container in a virtual machine of its own.
package microvm

// The accelerators of QEMU that a sandbox can have.
const (
	AccelAuto = "auto"
	AccelKVM  = "kvm"
	AccelTCG  = "tcg"
)
