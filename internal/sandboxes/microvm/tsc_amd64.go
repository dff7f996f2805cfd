package microvm

// readTSC reads the processor's time stamp counter (tsc_amd64.s).
func readTSC() uint64
