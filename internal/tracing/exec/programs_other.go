//go:build !amd64 && !arm64

package exec

// There are no programs for other architectures: New returns an error.
var workerProgram, targetProgram []byte
