//go:build !amd64

package microvm

// readTSC returns 0, because only x86-64 processors have the counter.
func readTSC() uint64 { return 0 }
