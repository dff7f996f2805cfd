package exec

import _ "embed"

// The programs, built from c/ by go generate (exec.go).
var (
	//go:embed worker_amd64.elf
	workerProgram []byte
	//go:embed target_amd64.elf
	targetProgram []byte
)
