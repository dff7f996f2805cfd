package tool

import (
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strings"

	"tare/internal/lib/text"
)

func init() {
	register(Tool{
		Name: "redis-benchmark", Reads: "its text, that of -q, or --csv", Tested: "6.0.16, 7.0.15 and 8.0.6",
		Clock: "closed loop: from when a request is written until its reply is read",
		parse: parseRedis,
	})
}

var (
	redisHeader   = text.LazyRegexp(`(?m)^"test","rps"`)
	redisTitle    = text.LazyRegexp(`^====== (.+) ======$`)
	redisDone     = text.LazyRegexp(`^ +([0-9]+) requests completed in ([0-9.]+) seconds$`)
	redisRate     = text.LazyRegexp(`^(?: +throughput summary: )?([0-9.]+) requests per second$`) // no prefix before 6.2
	redisQuantile = text.LazyRegexp(`^([0-9.]+)% <= ([0-9.]+) milliseconds`)
	redisOldRow   = text.LazyRegexp(`^"([^"]+)","([0-9.]+)"$`) // a row of --csv before 6.2, which has no header
	redisQuiet    = text.LazyRegexp(`^(.+): ([0-9.]+) requests per second(?:, p50=([0-9.]+) msec)?$`)
)

// parseRedis parses redis-benchmark's output: its long text, the lines of -q, or --csv.
func parseRedis(output string, r *Reading) error {
	var parts []Part
	var err error
	switch {
	case redisHeader().MatchString(output):
		parts, err = redisCSV(output[redisHeader().FindStringIndex(output)[0]:], r)
	case strings.Contains(output, "======"):
		parts, err = redisText(output, r)
	default:
		parts, err = redisLines(output, r)
	}
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return errors.New("it has no line \"requests per second\"")
	}
	r.Part = inRounds(parts)
	operations := byName(parts)
	if len(operations) > 1 {
		r.Name, r.Parts = "", operations
	}
	if rounds := len(parts) - len(operations); rounds > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("it has %d results of %d operations: those of one operation are taken "+
			"for rounds of a loop, each with as many requests, and put together", len(parts), len(operations)))
	}
	return nil
}

// byName combines the rounds of each operation that a loop (-l, or a shell's loop) ran in turn.
func byName(parts []Part) (operations []Part) {
	rounds := map[string][]Part{}
	var names []string
	for _, p := range parts {
		if rounds[p.Name] == nil {
			names = append(names, p.Name)
		}
		rounds[p.Name] = append(rounds[p.Name], p)
	}
	for _, name := range names {
		p := inRounds(rounds[name])
		p.Name = name
		operations = append(operations, p)
	}
	return operations
}

// inRounds combines parts that ran in turn, with the same number of requests each (-n): the operations of
// redis-benchmark, or the rounds of a loop. It leaves out quantiles, because those of several parts cannot be combined.
func inRounds(parts []Part) Part {
	all := together(parts, true)
	if len(parts) == 1 {
		return all
	}
	// If the numbers of requests are known, they are the weights, because several commands may have made different
	// numbers.
	weight := func(p Part) float64 {
		if all.Requests == nil || *all.Requests == 0 {
			return 1 / float64(len(parts))
		}
		return float64(*p.Requests) / float64(*all.Requests)
	}
	all.Mean = sum(parts, func(p Part) *float64 {
		if p.Mean == nil {
			return nil
		}
		return new(*p.Mean * weight(p))
	})
	for _, p := range parts {
		if p.Max == nil {
			all.Max = nil
			break
		}
		if all.Max == nil || *p.Max > *all.Max {
			all.Max = p.Max
		}
	}
	return all
}

// latest returns the last text on a line, because the progress report of a run overwrites itself.
func latest(line string) string {
	line = strings.TrimRight(line, "\r\n ")
	return line[strings.LastIndexByte(line, '\r')+1:]
}

func redisText(output string, r *Reading) ([]Part, error) {
	var parts []Part
	var section string
	for line := range strings.Lines(output) {
		line = latest(line)
		if m := redisTitle().FindStringSubmatch(line); m != nil {
			if len(parts) > maxParts {
				return nil, fmt.Errorf("it has more than %d operations", maxParts)
			}
			parts, section = append(parts, Part{Name: clip(m[1])}), ""
			continue
		}
		if len(parts) == 0 {
			continue
		}
		p := &parts[len(parts)-1]
		if line != "" && line[0] != ' ' && strings.HasSuffix(line, ":") {
			if section = line; strings.HasPrefix(line, redisDistribution) {
				r.heading(p.Name + ": " + redisDistribution)
			}
		}
		if strings.HasPrefix(line, "  "+redisLatency) {
			r.heading(p.Name + ": " + redisLatency)
		}
		if err := redisLine(p, section, line, r); err != nil {
			return nil, err
		}
	}
	for _, p := range parts {
		if p.Rate == nil || p.Requests == nil {
			return nil, fmt.Errorf("the summary of %s is missing", p.Name)
		}
	}
	return parts, nil
}

// The headings of quantiles in the text of an operation.
const (
	redisDistribution = "Latency by percentile distribution"
	redisLatency      = "latency summary"
)

// redisLine parses one line of an operation's text.
func redisLine(p *Part, section, line string, r *Reading) error {
	if m := redisDone().FindStringSubmatch(line); m != nil {
		if p.Requests != nil {
			return fmt.Errorf("below the heading of %s there are two results", p.Name)
		}
		n, err := count(m[1])
		s, err2 := number(m[2])
		p.Requests, p.Seconds = &n, &s
		return errors.Join(err, err2)
	}
	if m := redisRate().FindStringSubmatch(line); m != nil {
		if p.Rate != nil {
			return fmt.Errorf("below the heading of %s there are two rates", p.Name)
		}
		rate, err := number(m[1])
		p.Rate = &rate
		return err
	}
	if m := redisQuantile().FindStringSubmatch(line); m != nil && section == "" {
		r.once("its latencies are shares of requests below whole steps, as redis-benchmark prints them before 6.2: not read")
	} else if m != nil && strings.HasPrefix(section, redisDistribution) {
		v, err := number(m[2])
		return r.quantile(p, p.Name+": "+redisDistribution, m[1], v/1e3, err)
	}
	if fields := strings.Fields(line); section == "Summary:" && len(fields) == 6 && fields[0] != "avg" {
		for i, name := range []string{"mean", "min", "p50", "p95", "p99", "max"} {
			v, err := number(fields[i])
			if err != nil {
				return err
			}
			r.latency(p, p.Name+": "+redisLatency, name, v/1e3)
		}
	}
	return nil
}

func redisLines(output string, r *Reading) ([]Part, error) {
	var parts []Part
	for line := range strings.Lines(output) {
		line = strings.TrimSpace(latest(line))
		m := redisQuiet().FindStringSubmatch(line)
		if row := redisOldRow().FindStringSubmatch(line); row != nil {
			m = append(row, "")
		}
		if m == nil && strings.HasPrefix(line, `"`) {
			return nil, fmt.Errorf("%q is no operation with its rate: the header of the table is missing, or the table was "+
				"cut off", clip(line))
		}
		if m == nil && strings.Contains(line, "requests per second") {
			return nil, fmt.Errorf("%q is no operation with its rate", clip(line))
		}
		if m == nil || strings.HasPrefix(m[1], "WARNING") {
			continue
		}
		if len(parts) > maxParts {
			return nil, fmt.Errorf("it has more than %d operations", maxParts)
		}
		rate, err := number(m[2])
		if err != nil {
			return nil, err
		}
		p := Part{Name: clip(m[1]), Rate: &rate}
		if m[3] != "" {
			v, err := number(m[3])
			if err != nil {
				return nil, err
			}
			r.latency(&p, "", "p50", v/1e3)
		}
		parts = append(parts, p)
	}
	return parts, nil
}

func redisCSV(output string, r *Reading) ([]Part, error) {
	var table strings.Builder // without other output
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, `"`) {
			table.WriteString(line)
		}
	}
	rows, err := csv.NewReader(strings.NewReader(table.String())).ReadAll()
	if err != nil {
		return nil, fmt.Errorf("its table is broken or was cut off: %w", err)
	}
	columns := map[string]int{}
	for i, name := range rows[0] {
		columns[name] = i
	}
	header := clip(strings.Join(rows[0], ","))
	if len(columns) > 2 {
		r.heading(header)
	}
	var parts []Part
	for _, row := range rows[1:] {
		if slices.Equal(row, rows[0]) {
			continue // the next round of a loop in a shell
		}
		if len(parts) > maxParts {
			return nil, fmt.Errorf("it has more than %d operations", maxParts)
		}
		p := Part{Name: clip(row[0])}
		for column, name := range map[string]string{"rps": "", "avg_latency_ms": "mean", "p50_latency_ms": "p50",
			"p99_latency_ms": "p99", "max_latency_ms": "max"} {
			i, ok := columns[column]
			if !ok {
				continue
			}
			v, err := number(row[i])
			if err != nil {
				return nil, err
			}
			if name == "" {
				p.Rate = &v
			} else {
				r.latency(&p, header, name, v/1e3)
			}
		}
		parts = append(parts, p)
	}
	return parts, nil
}
