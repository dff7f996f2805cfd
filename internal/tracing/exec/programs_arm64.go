package exec

import _ "embed"

// The programs, built from c/ by go generate (exec.go).
var (
	//go:embed worker_arm64.elf
	workerProgram []byte
	//go:embed target_arm64.elf
	targetProgram []byte
)
