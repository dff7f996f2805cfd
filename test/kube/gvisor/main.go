// Command gvisor is containerd's shim for gVisor, for nodes on which root lacks CAP_SYS_RESOURCE. On such a node the
// shim may not lower the OOM score of its process. This build then goes on regardless, as the shim for runc does.
package main

import (
	_ "unsafe" // for go:linkname

	_ "github.com/moby/sys/userns"
	"gvisor.dev/gvisor/shim/v1/cli"
)

// inUserNS is the function that the shim calls when the kernel refuses the score: if it returns true, as in a user
// namespace, the shim goes on.
//
//go:linkname inUserNS github.com/moby/sys/userns.inUserNS
var inUserNS func() bool

func main() {
	inUserNS = func() bool { return true }
	cli.Main()
}
