package report

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/results/analysis"
)

func init() {
	register(Format{
		Name: "influx", Help: "the line protocol of InfluxDB, which Telegraf reads too",
		Run: func(w io.Writer, r *Run, _ Options) error { return Influx(w, r.Summary, r.Record) },
	})
}

// Influx writes a summary in the line protocol of InfluxDB
// (docs.influxdata.com/influxdb/v2/reference/syntax/line-protocol): a line for the run, one for each assertion and one
// for each estimate that may be quoted. Unknown values have no field. All lines have the time at which the run began,
// in nanoseconds. The run's ID is a field and not a tag, since each new value of a tag makes a new series.
func Influx(w io.Writer, s *analysis.Summary, run record.Run) error {
	b := bufio.NewWriter(w)
	at := ""
	if year := run.Started.UTC().Year(); year >= 1970 && year < 2262 { // InfluxDB's times are nanoseconds in 64 bits
		at = " " + strconv.FormatInt(run.Started.UnixNano(), 10)
	}
	line := func(measurement string, tags map[string]string, fields *influxFields) {
		tags["experiment"], tags["host"] = s.Experiment, run.Environment.Hostname
		b.WriteString(measurement)
		for key, tag := range lists.ByKey(tags) {
			if value := influxTag(tag); value != "" {
				b.WriteString("," + influxTag(key) + "=" + value)
			}
		}
		b.WriteString(" " + strings.Join(fields.text("run", run.ID).all, ",") + at + "\n")
	}

	line("tare_run", map[string]string{}, new(influxFields).truth("valid", s.Valid).truth("partial", s.Partial).
		count("blocks", s.Blocks).text("question", s.Question))
	for _, v := range s.Verdicts {
		line("tare_assertion", map[string]string{"assertion": v.Assertion},
			new(influxFields).text("result", string(v.Result)))
	}
	for i := range s.Estimates {
		e := &s.Estimates[i]
		if e.Withheld != "" {
			continue
		}
		f := new(influxFields).number("value", &e.Value).number("lo", e.Lo).number("hi", e.Hi).count("n", e.N)
		if d := e.Difference; d != nil && !d.BaselineWithheld() {
			f.number("difference", &d.Value).number("difference_lo", d.Lo).number("difference_hi", d.Hi).
				number("smallest_visible", d.SmallestVisible).truth("resolved", d.Resolved)
			if r := e.Ratio; r != nil {
				f.number("ratio", &r.Value).number("ratio_lo", r.Lo).number("ratio_hi", r.Hi)
			}
		}
		tags := attributes(e)
		tags["metric"] = e.Metric
		line("tare_estimate", tags, f)
	}
	if err := b.Flush(); err != nil {
		return fmt.Errorf("writing the summary for InfluxDB: %w", err)
	}
	return nil
}

// influxFields holds the fields of a line. Unknown numbers are left out.
type influxFields struct{ all []string }

func (f *influxFields) add(key, value string) *influxFields {
	f.all = append(f.all, key+"="+value)
	return f
}

func (f *influxFields) number(key string, v *float64) *influxFields {
	if v == nil || !finite(*v) {
		return f
	}
	return f.add(key, decimal(v))
}

func (f *influxFields) count(key string, n int) *influxFields { return f.add(key, strconv.Itoa(n)+"i") }

func (f *influxFields) truth(key string, is bool) *influxFields {
	return f.add(key, strconv.FormatBool(is))
}

func (f *influxFields) text(key, value string) *influxFields {
	return f.add(key, `"`+strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(clean(value))+`"`)
}

// influxTag escapes the key or the value of a tag. It appends an underscore to a text that ends in a backslash: the
// backslash would escape the delimiter that follows, and the protocol has no escape for backslashes.
func influxTag(text string) string {
	text = clean(text)
	if strings.HasSuffix(text, `\`) {
		text += "_"
	}
	return strings.NewReplacer(",", `\,`, "=", `\=`, " ", `\ `).Replace(text)
}
