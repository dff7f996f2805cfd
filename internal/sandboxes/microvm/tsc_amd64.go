package microvm

// readTSC reads the time stamp counter of the processor (tsc_amd64.s).
func readTSC() uint64
