package write

import (
	"tare/internal/experiment/kind"
	"tare/internal/experiment/load"
	"tare/internal/lib/pace"
	"tare/internal/lib/param"
)

// Settings are the settings of the load, in specs and on the command line.
var Settings = []param.Setting{
	{Name: "mode", Type: param.TypeWord, Default: load.Open, Words: []string{load.Open, load.Closed},
		Doc: "open: requests start on an absolute schedule; closed: each connection or worker sends the next when " +
			"one ends"},
	{Name: "rate", Type: param.TypeNumber, Min: 0.1, Max: 10_000_000, Phrase: map[string]string{"": "at {} writes/s"},
		Doc: "requests per second; required by open loads, which alone have it"},
	{Name: "arrivals", Type: param.TypeWord, Default: string(pace.Poisson),
		Words: []string{string(pace.Poisson), string(pace.Constant)},
		Doc:   "distribution of an open load's starts"},
	{Name: "workers", Type: param.TypeCount, Min: 1, Max: 1024,
		Phrase: map[string]string{"": "with {} workers", "1": "with one worker"},
		Doc:    "threads; one for each CPU when left out"},
	{Name: "size", Type: param.TypeBytes, Default: "4096", Min: 1, Max: 64 << 20,
		Phrase: map[string]string{"": "with writes of {} bytes"},
		Doc:    "bytes of a write, appended"},
	{Name: "sync", Type: param.TypeWord, Default: SyncNone, Words: []string{SyncNone, SyncFile, SyncData},
		Phrase: map[string]string{"": "with {}", SyncNone: "without sync"},
		Doc:    "system call after each write"},
	{Name: "directory", Type: param.TypeText, Reach: param.ReachFile,
		Doc: "where the load makes and removes a directory; the system's temporary one when left out"},
	{Name: "limit", Type: param.TypeBytes, Default: "67108864", Min: 1, Max: 1 << 40,
		Doc: "most bytes of all files together; the oldest files are truncated"},
	{Name: "drain", Type: param.TypeDuration, Default: "1s", Max: 600,
		Doc: "time after the window for what was due in it"},
}

// OptionsOf converts settings to options. It returns an error if settings contradict each other.
func OptionsOf(v param.Values) (Options, error) {
	o := Options{
		Rate: v.Float("rate"), Arrivals: pace.Arrivals(v["arrivals"]), Workers: v.Int("workers"), Size: v.Int("size"),
		Sync: v["sync"], Directory: v["directory"], Limit: int64(v.Float("limit")), Drain: v.Duration("drain"),
		Seed: v.Uint(kind.SeedSetting.Name), Spin: load.SpinOf(v),
	}
	if err := load.CheckRate(v, "writes"); err != nil {
		return o, err
	}
	return o, o.check()
}
