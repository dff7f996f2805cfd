//go:build !amd64 && !arm64

package exec

// The programs know the system calls of no other machine: New says so.
var workerProgram, targetProgram []byte
