package analysis

// UsableDelay is the longest wait for a CPU up to which the answers call a machine usable, in seconds: charts draw it
// as a line.
const UsableDelay = usableDelay
