// Package microvm is a sandbox runtime like Kata Containers: it has runc's command line, and runs each container in a
// separate virtual machine.
package microvm

// The values of Options.Accel.
const (
	AccelAuto = "auto"
	AccelKVM  = "kvm"
	AccelTCG  = "tcg"
)
