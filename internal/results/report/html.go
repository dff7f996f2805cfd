package report

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page and its style
	"encoding/base64"
	"encoding/json"
	"fmt"
	"html/template"
	"io"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"tare/internal/experiment/record"
	"tare/internal/lib/lists"
	"tare/internal/lib/quantity"
	"tare/internal/lib/text"
	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
	"tare/web"
)

func init() {
	register(Format{
		Name: "html", Help: "one page with charts, which needs no network and no other file",
		Run: func(w io.Writer, r *Run, o Options) error {
			return HTML(w, r.Summary, r.Record, r.Trials, HTMLOptions{Dir: o.Dir})
		},
		Comparison: func(w io.Writer, c *comparison.Comparison, _ Options) error { return ComparisonHTML(w, c) },
		History:    func(w io.Writer, c *comparison.Course, _ Options) error { return HistoryHTML(w, c) },
	})
}

//go:embed html.css
var pageStyle string

//go:embed html.tmpl
var pageSource string

var page = template.Must(template.New("report").Funcs(template.FuncMap{
	"lower": func(title string) string {
		_, n := utf8.DecodeRuneInString(title)
		return strings.ToLower(title[:n]) + title[n:]
	},
	"clean": clean, "level": record.LevelName, "label": quantity.Label,
	"value": func(s string) string { v, _, _ := strings.Cut(s, " ["); return v },
	"interval": func(s string) string {
		if _, interval, ok := strings.Cut(s, " ["); ok {
			return "[" + interval
		}
		return ""
	},
}).Parse(pageSource))

// HTMLOptions holds what the page cannot get from the record.
type HTMLOptions struct {
	Dir      string // the run directory, shown so that readers find the files; empty: not shown
	NoCharts bool   // leave the charts out, as a binary built without them does
}

// HTML writes the report as one page that needs no network and no other file. Everything that the charts show is also
// in tables, which are written here, so the page can be read without its script.
//
// Names in a record can come from anywhere: the template escapes them, the data of the charts is JSON without <, > and
// &, and the page's content security policy allows only the script whose hash it names and forbids fetching anything.
func HTML(w io.Writer, s *analysis.Summary, run record.Run, trials []record.Trial, o HTMLOptions) error {
	return execute(w, page, newPage(s, run, trials, o), "the report as HTML")
}

// execute writes a page, or nothing if the template fails. Errors refer to the page by the given text,
// such as "the report as HTML".
func execute(w io.Writer, page *template.Template, data any, what string) error {
	var b bytes.Buffer
	if err := page.Execute(&b, data); err != nil {
		return fmt.Errorf("making %s: %w", what, err)
	}
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("writing %s: %w", what, err)
	}
	return nil
}

// htmlPage is the data of the template. Strings are as in the record; the template escapes them.
type htmlPage struct {
	Experiment, Question string
	Baseline             string // the arm that the others are compared with
	Lead                 *leadTable
	Short                string // a paragraph that replaces many answers; empty: the answers are shown
	Answers              []htmlAnswer
	Banner               string // a warning at the top that the run is invalid or partial; empty: it is neither
	State                string // valid, invalid, partial
	Validity             string
	InvalidReasons       []string
	Verdicts             []checked
	Started              string

	Functions  []htmlTable
	Stacks     string // path of the page with flame graphs, relative to this one
	Ladders    []htmlTable
	Places     []string
	Placements []placementTable
	Courses    []htmlTable
	Limits     []tableRow
	Stairs     []tableRow
	Waits      []tableRow
	Events     htmlTable
	Nodes      htmlTable
	Ran        bool // whether it is known where the eBPF programs ran
	Sections   []htmlSection
	Folded     bool // whether there are tables for several levels
	Arms       []string
	Curves     []htmlTable
	Sweep      bool // whether a factor is a number at several levels
	Models     []string
	CPU        []htmlTable
	Unplaced   []string
	Memory     []tableRow
	Gross      []tableRow
	Trials     []trialRow
	TrialHead  []string

	Notes, Warnings, Excluded []string
	Gates                     []fact
	Intervals, SelfCost       string
	Environment               []fact
	Spec                      string
	Again, Dir, Version       string

	Charts bool
	Policy string
	Style  template.CSS
	Data   template.JS
	Script template.JS
}

// htmlAnswer is one answer: its first sentence, and the details.
type htmlAnswer struct{ Lead, Rest string }

// split splits an answer after its first sentence.
func split(answer string) htmlAnswer {
	lead, rest, more := strings.Cut(answer, ". ")
	if more {
		lead += "."
	}
	return htmlAnswer{lead, rest}
}

type fact struct{ Name, Value string }

// htmlSection is a section whose further rows are folded away.
type htmlSection struct {
	Title, Baseline string

	Rows []row
	More []row // rows for details; empty if Rows has all
}

// Rest returns the section with only the further rows.
func (s htmlSection) Rest() htmlSection {
	s.Rows, s.More = s.More, nil
	return s
}

func htmlSections(s *analysis.Summary) []htmlSection {
	var all []htmlSection
	for _, sec := range sections(s) {
		h := htmlSection{Title: sec.title, Baseline: baseline(s)}
		for _, r := range sec.rows {
			if r.first {
				h.Rows = append(h.Rows, r)
			} else {
				h.More = append(h.More, r)
			}
		}
		if len(h.Rows) == 0 {
			h = h.Rest()
		}
		all = append(all, h)
	}
	return all
}

func newPage(s *analysis.Summary, run record.Run, trials []record.Trial, o HTMLOptions) *htmlPage {
	d := newDataMaker(s, run, trials)
	p := &htmlPage{
		Experiment: s.Experiment, Question: s.Question, Baseline: baseline(s),
		InvalidReasons: lists.Map(s.InvalidReasons, d.plain),
		Verdicts:       verdicts(s), Started: started(run), Lead: newLead(s, run),
		Sections: htmlSections(s), Curves: d.curveTables(), Sweep: d.Factor != "",
		Limits: d.limitTables(), Stairs: d.stairTables(), Waits: d.waitTables(),
		Events: d.eventTable(), Nodes: d.nodeTable(),
		Ran: len(d.Ran) > 0, Models: lists.Map(models(s), d.plain), CPU: d.cpuTables(),
		Unplaced: lists.Map(d.unplaced, d.plain), Memory: d.memory,
		Gross:     d.grossTable(),
		Functions: functionTables(s), Stacks: record.ProfileDir + "/" + record.StacksFile,
		Ladders: ladderTables(s, run), Courses: d.courseTables(),
		Notes: lists.Map(notes(s, run), d.plain), Warnings: lists.Map(s.Warnings, d.plain),
		Excluded: lists.Map(excluded(s), d.plain), Gates: gates(run.Spec),
		Intervals: intervals(s), SelfCost: selfCost(s),
		Environment: environmentFacts(run), Spec: indented(run.Spec), Again: clean(again(run)), Dir: o.Dir,
		Version: run.Version,
		Style:   template.CSS(pageStyle), // trusted: embedded at build time
	}
	p.Places, p.Placements = placementTables(s)
	p.Arms = lists.Map(d.Arms, func(a chartArm) string { return a.Name })
	_, p.Validity, _ = strings.Cut(validity(s), ": ") // without the state, which is shown elsewhere
	p.State = "valid"
	switch {
	case !s.Valid:
		p.State = "invalid"
	case s.Partial:
		p.State = "partial"
	}
	p.Short = d.plain(p.Lead.short(s, run))
	p.Answers = lists.Map(s.Answers, func(a analysis.Answer) htmlAnswer { return split(d.plain(a.Answer)) })
	switch {
	case !s.Valid:
		p.Answers = []htmlAnswer{{Lead: "No answer: the run is invalid."}} // the reasons are listed below it
		p.Banner = "This run is invalid. Its numbers are shown to find out why, not to be quoted."
	case s.Partial:
		p.Banner = fmt.Sprintf("This run is partial: %d of %d planned trials were done.", s.Trials.Done, s.Trials.Planned)
	}
	p.Folded = len(p.Sections) > 1
	p.TrialHead, p.Trials = d.trialRows()
	script, style, ok := web.Bundle()
	script = strings.TrimSpace(script) // the hash must be that of exactly the text between the tags
	p.Policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
	if p.Charts = ok && !o.NoCharts; p.Charts {
		data, err := json.Marshal(d.chartData) // Marshal escapes <, >, &, U+2028 and U+2029
		if err != nil {                        // a number that JSON cannot hold: show the tables without charts
			p.Charts = false
			return p
		}
		hash := sha256.Sum256([]byte(script))
		p.Policy += "; script-src 'sha256-" + base64.StdEncoding.EncodeToString(hash[:]) + "'"
		p.Style += template.CSS(style)
		p.Data, p.Script = template.JS(data), template.JS(script)
	}
	return p
}

// gates returns the limits of the gates that every trial had to pass, as in the spec.
func gates(spec json.RawMessage) []fact {
	var s struct {
		Gates map[string]any `json:"gates"`
	}
	if json.Unmarshal(spec, &s) != nil {
		return nil
	}
	var all []fact
	for name, limit := range lists.ByKey(s.Gates) {
		all = append(all, fact{name, fmt.Sprint(limit)})
	}
	return all
}

// indented formats a spec for the page. A spec that is not valid JSON is kept as it is.
func indented(spec json.RawMessage) string {
	raw := string(spec)
	if b := new(bytes.Buffer); json.Indent(b, spec, "", "  ") == nil {
		raw = b.String()
	}
	return text.Lines(raw)
}

// environmentFacts describes the machine, one line for each property that could change the answer.
func environmentFacts(run record.Run) []fact {
	e := run.Environment
	var cpu, memory, swap string
	if e.CPUs > 0 {
		cpu = strings.TrimPrefix(fmt.Sprintf("%s, %d CPUs", e.CPUModel, e.CPUs), ", ")
	}
	if e.MemoryBytes > 0 {
		memory, swap = inBytes(e.MemoryBytes), "none"
	}
	if e.SwapBytes > 0 {
		swap = inBytes(e.SwapBytes)
	}
	all := []fact{
		{"machine", e.Hostname}, {"CPU", cpu}, {"memory", memory}, {"swap", swap}, {"virtualization", e.Virtual},
		{"governor", e.Governor},
		{"distribution", e.Distro}, {"kernel", e.Kernel}, {"control groups", e.CgroupMode}, {"lockdown", e.Lockdown},
		{"clock source", e.Clocksource},
		{"tare", strings.TrimSuffix(run.Version+" ("+run.Build+")", " ()")},
	}
	for name, version := range lists.ByKey(e.Subjects) {
		all = append(all, fact{"subject " + name, version})
	}
	all = append(all, fact{"started", started(run)}, fact{"seed", strconv.FormatUint(run.Seed, 10)}, fact{"run", run.ID})
	return slices.DeleteFunc(all, func(f fact) bool { return f.Value == "" })
}
