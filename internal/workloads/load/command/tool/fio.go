package tool

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"

	"tare/internal/lib/text"
)

func init() {
	register(Tool{
		Name: "fio", Reads: "the JSON of --output-format=json",
		Tested: "3.25, 3.33, 3.39 and 3.41; of other versions 3 the format is the same",
		Clock: "from when the kernel was given an I/O until that was complete (clat), without the time to submit " +
			"it",
		parse: parseFio,
		grain: 1.0 / 64, // the width of its histogram's buckets (FIO_IO_U_PLAT_BITS in its stat.h)
	})
}

// fioSide is one direction of a job in fio's JSON (show_ddir_status_json in fio's stat.c).
type fioSide struct {
	Bytes   *int64  `json:"io_bytes"`
	IOPS    float64 `json:"iops"`
	Runtime float64 `json:"runtime"` // ms
	Total   *int64  `json:"total_ios"`
	Clat    struct {
		Max        float64            `json:"max"`
		Mean       float64            `json:"mean"`
		N          int64              `json:"N"`
		Percentile map[string]float64 `json:"percentile"`
	} `json:"clat_ns"`
	Lat struct {
		Percentile map[string]float64 `json:"percentile"`
	} `json:"lat_ns"`
}

// fioResult is the part of fio's JSON that Tare uses.
type fioResult struct {
	Version string     `json:"fio version"`
	Set     fioOptions `json:"global options"`
	Jobs    []fioJob   `json:"jobs"`
}

// fioJob is one job, or a group of jobs that fio reports as one (group_reporting), under the name of the first.
type fioJob struct {
	Name   string `json:"jobname"`
	Group  int64  `json:"groupid"`
	Error  int64  `json:"error"`
	Failed int64  `json:"total_err"` // number of errors, counted with continue_on_error
	Began  int64  `json:"job_start"` // ms since 1970; absent before 3.34
	// Took is the job's time in ms. It is the sum over directions that run in turn, as with verify, and over the jobs of a
	// group that is reported as one.
	Took  float64    `json:"job_runtime"`
	Set   fioOptions `json:"job options"`
	Read  fioSide    `json:"read"`
	Write fioSide    `json:"write"`
	Trim  fioSide    `json:"trim"`
	Mixed fioSide    `json:"mixed"` // all directions, with unified_rw_reporting
}

// fioOptions holds the options that determine when jobs run, and how many there are.
type fioOptions struct {
	Delay  string `json:"startdelay"`
	After  string `json:"wait_for"`
	Jobs   string `json:"numjobs"`
	Verify string `json:"verify"`
}

// together returns how many jobs entry i stands for. With group_reporting, which fio's JSON does not show, there is one
// entry for all jobs of a name.
func (f *fioResult) together(i int) float64 {
	n, err := strconv.ParseFloat(cmp.Or(f.Jobs[i].Set.Jobs, f.Set.Jobs), 64)
	if err != nil {
		return 1
	}
	written := 0.0
	for _, j := range f.Jobs {
		if j.Name == f.Jobs[i].Name {
			written++
		}
	}
	return max(n/written, 1)
}

// longest returns the time of the direction that ran longest, in ms.
func (j *fioJob) longest() float64 {
	return max(j.Read.Runtime, j.Write.Runtime, j.Trim.Runtime, j.Mixed.Runtime)
}

// hides reports whether entry i stands for other jobs than its options say, so that it is unknown when those jobs ran.
// With group_reporting, fio reports several sections under the name of the first, and divides the work of all by the
// time of the longest, even if one began after another had ended. Jobs that run concurrently each take as long as the
// longest.
func (f *fioResult) hides(i int) bool {
	j, n := &f.Jobs[i], f.together(i)
	each := j.longest()
	if cmp.Or(j.Set.Verify, f.Set.Verify) != "" { // fio reads back what it wrote, after all writes
		each = j.Read.Runtime + j.Write.Runtime + j.Trim.Runtime
	}
	return j.Took > 10+1.1*each*n || n > 1 && j.Took > 0 && j.Took < 0.9*j.longest()*n-10
}

// fioTerse matches the beginning of a line in fio's terse format: the version of the format, fio's version (since
// version 3 of the format), the name of the job, its group and its error (show_thread_status_terse in fio's stat.c).
var fioTerse = text.LazyRegexp(`(?m)^[2-9];(?:[^;\n]+;){1,2}[0-9]+;-?[0-9]+;`)

// fioVersion matches versions whose JSON has the units that parseFio expects.
var fioVersion = text.LazyRegexp(`^(?:fio-)?3[.]`)

// parseFio parses fio's JSON. Each direction of a job with any I/O becomes a part.
func parseFio(output string, r *Reading) error {
	f, err := object(output, func(f *fioResult) bool { return len(f.Jobs) > 0 }, "its JSON has no jobs")
	if err != nil && fioTerse().MatchString(output) {
		return errors.New("it is fio's terse format (--minimal or --output-format=terse), whose lines have no names for " +
			"their figures and are not read; run it with --output-format=json")
	}
	if err != nil {
		return fmt.Errorf("%w; run it with --output-format=json", err)
	}
	if f.Version == "" {
		return errors.New("it has no \"fio version\", which says in which units it counts")
	}
	if !fioVersion().MatchString(f.Version) {
		return fmt.Errorf("it is of version %s: fio 2 counts in KiB and microseconds, and only version 3 is read",
			clip(f.Version))
	}
	if len(f.Jobs) > maxParts {
		return fmt.Errorf("it has more than %d jobs", maxParts)
	}
	r.Version = clip(f.Version)
	var parts []Part
	var groups []int64
	apart, hidden := false, "" // apart: some jobs ran while others did not; hidden: a job for which that is unknown
	for i, j := range f.Jobs {
		longest := j.longest()
		apart = apart || j.Set.Delay != f.Jobs[0].Set.Delay || j.Set.After != "" ||
			j.Took > 10+1.1*longest*f.together(i) ||
			math.Abs(float64(j.Began-f.Jobs[0].Began)) > 100+0.1*longest
		if !slices.Contains(groups, j.Group) {
			groups = append(groups, j.Group)
		}
		if j.Error != 0 {
			r.Warnings = append(r.Warnings, fmt.Sprintf("job %s failed with error %d", clip(j.Name), j.Error))
		}
		before := len(parts)
		for _, d := range []struct {
			name string
			side fioSide
		}{{"read", j.Read}, {"write", j.Write}, {"trim", j.Trim}, {"mixed", j.Mixed}} {
			if d.side.Total == nil && (d.side.Runtime > 0 || d.side.Bytes != nil) {
				return fmt.Errorf("of job %s, %s has no total_ios", clip(j.Name), d.name)
			}
			if d.side.Total != nil && *d.side.Total != 0 && (d.name != "mixed" || len(parts) == before) {
				parts = append(parts, d.side.part(r, clip(j.Name)+" "+d.name))
			}
		}
		if f.hides(i) {
			hidden = clip(j.Name)
			for k := range parts[before:] {
				parts[before+k].Rate, parts[before+k].Seconds = nil, nil
			}
		}
	}
	if len(parts) == 0 {
		reason := "none of its jobs did any I/O"
		if len(r.Warnings) > 0 {
			reason += ": " + r.Warnings[0]
		}
		return errors.New(reason)
	}
	r.Part = together(parts, false)
	failed, known := int64(0), true
	for _, j := range f.Jobs {
		failed, known = failed+j.Failed, known && (j.Error == 0 || j.Failed > 0) && failed >= 0 && j.Failed >= 0
	}
	if known {
		r.Errors = &failed
	}
	switch {
	case len(groups) > 1:
		r.Rate, r.Seconds = nil, nil
		r.once("its groups of jobs may have run one after the other, so they have no rate together")
	case hidden != "":
		r.Rate, r.Seconds = nil, nil
		r.once("job " + hidden + " stands for several that may not all have run at the same time, so they have no rate " +
			"together: leave out group_reporting, and fio reports each")
	case len(parts) > 1 && (apart || r.Rate != nil && r.Seconds != nil && !r.agrees(0)):
		r.Rate, r.Seconds = nil, nil
		r.once("its jobs and directions did not all run at the same time, so they have no rate together")
	}
	if len(parts) > 1 {
		r.Name, r.Parts = "", parts
	}
	return nil
}

func (d fioSide) part(r *Reading, name string) Part {
	s := d.Runtime / 1e3
	p := Part{Name: name, Requests: d.Total, Bytes: d.Bytes, Rate: &d.IOPS, Seconds: &s}
	if d.Clat.N == 0 {
		return p
	}
	r.latency(&p, "", "mean", d.Clat.Mean/1e9)
	r.latency(&p, "", "max", d.Clat.Max/1e9)
	for percent, ns := range d.Clat.Percentile {
		if q, err := number(percent); err != nil {
			r.strange(name+": clat_ns", percent)
		} else if q != 100 {
			r.latency(&p, name+": clat_ns", fmt.Sprintf("p%g", q), ns/1e9)
		}
	}
	if len(d.Clat.Percentile) == 0 && len(d.Lat.Percentile) > 0 { // lat is measured by a different clock
		r.heading(name + ": lat_ns")
	}
	return p
}
