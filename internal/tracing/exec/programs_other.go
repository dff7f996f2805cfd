//go:build !amd64 && !arm64

package exec

// workerProgram and targetProgram are empty on other architectures: New returns an error.
var workerProgram, targetProgram []byte
