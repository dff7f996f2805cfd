// Package microvm is a sandbox runtime like Kata Containers: it has runc's command line, and runs each container in a
// separate virtual machine.
package microvm

// The values of Options.Accel: how the guest's processor is provided.
const (
	AccelAuto = "auto" // AccelKVM if it works on this machine, and otherwise AccelTCG
	AccelKVM  = "kvm"
	AccelTCG  = "tcg" // QEMU's emulator
)
