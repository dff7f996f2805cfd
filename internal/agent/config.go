package agent

import (
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/spf13/pflag"

	"tare/internal/lib/document"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/param"
	"tare/internal/lib/text"
	"tare/internal/scale/charge"
	"tare/internal/scale/host/perf"
	"tare/internal/scale/live"
)

// The settings. Each is both a flag and a key of the configuration file.
const (
	settingListen    = "listen"
	settingWebConfig = "web.config.file"
	settingMaxSeries = "max-series"
	settingTick      = "tick"
	settingHz        = "hz"
	settingBPFStats  = "bpf-stats"
	settingHostRoot  = "host-root"
	settingProfile   = "profile"
)

var settings = []param.Setting{
	{Name: settingListen, Type: param.TypeText, Default: ":9633", Reach: param.ReachAddress,
		Doc: "address to listen on"},
	{Name: settingWebConfig, Type: param.TypeText, Reach: param.ReachFile,
		Doc: "file with certificates, passwords and TLS settings, in the format of Prometheus' exporter-toolkit"},
	{Name: settingMaxSeries, Type: param.TypeCount, Default: "1000", Min: 1, Max: 100000,
		Doc: "maximum number of series per metric: the largest items have one each, and all others share one"},
	{Name: settingTick, Type: param.TypeDuration, Default: "1m", Min: 1, Max: 600,
		Doc: "maximum time between readings of the counters when nothing scrapes"},
	{Name: settingHz, Type: param.TypeCount, Default: strconv.Itoa(perf.DefaultHz), Max: perf.MaxHz,
		Doc: "samples per second on each CPU; with 0, eBPF time is not split by who pays for it"},
	{Name: settingBPFStats, Type: param.TypeText, Default: "always", Reach: param.ReachNothing,
		Doc: "when the kernel's run statistics of eBPF programs are on, which add 20 to 50 ns to each run: always, off " +
			"(run time is not known), or part of the time, such as 10s/60s (run time is scaled, and its error is a metric)"},
	{Name: settingHostRoot, Type: param.TypeText, Default: "/", Reach: param.ReachFile,
		Doc: "where the machine's / is mounted: the names of containers are in files there"},
	{Name: settingProfile, Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "rules to apply after those of the configuration: " + strings.Join(charge.Profiles(), ", ") +
			" knows the infrastructure of a node"},
}

// configuration holds the settings of the command line and of the configuration file.
type configuration struct {
	file  string
	flags param.Values // from the command line, or else defaults
	param.Values
	places map[string]string // places in the configuration file of the values that come from it, by setting
	duty   live.Duty
	rules  []charge.Rule
}

func (c *configuration) addFlags(f *pflag.FlagSet) {
	c.flags = param.Flags(f, settings...)
	f.StringVar(&c.file, "config", "", "YAML file with the same settings, and with rules as in tare weigh --rules; flags "+
		"override it")
}

const (
	maxConfigBytes = 1 << 20
	keyRules       = "rules"
)

// read reads the configuration file, if there is one. Flags override it.
func (c *configuration) read(f *pflag.FlagSet) error {
	c.Values = param.Defaults(settings)
	if c.file != "" {
		data, err := files.Read(c.file, maxConfigBytes)
		if err != nil {
			return fault.Wrap(err, fault.Usage, c.file, "name a file that can be read", "the configuration cannot be read")
		}
		if err := c.parse(c.file, data); err != nil {
			return err
		}
	}
	for _, s := range settings {
		if f.Changed(s.Name) {
			c.Values[s.Name] = c.flags[s.Name]
			delete(c.places, s.Name)
		}
	}
	if _, _, err := net.SplitHostPort(c.listen()); err != nil {
		return fault.Wrap(err, fault.Usage, c.where(settingListen), "try :9633 or 127.0.0.1:9633",
			"not an address to listen on")
	}
	var err error
	if c.rules, err = charge.Complete(c.rules, c.Values[settingProfile], c.where(settingProfile)); err != nil {
		return err
	}
	return c.readDuty()
}

// where returns the place of a setting's value, for errors: a line of the configuration file, or a flag.
func (c *configuration) where(setting string) string {
	if place, ok := c.places[setting]; ok {
		return place
	}
	return "--" + setting + " " + text.Clip(c.Values[setting])
}

// readDuty parses the setting bpf-stats, which selects when the kernel collects run statistics of eBPF programs.
func (c *configuration) readDuty() error {
	given := c.Values[settingBPFStats]
	if given == "always" || given == "off" {
		return nil
	}
	on, every, _ := strings.Cut(given, "/")
	var errs [2]error
	c.duty.On, errs[0] = time.ParseDuration(on)
	c.duty.Every, errs[1] = time.ParseDuration(every)
	const least = 100 * time.Millisecond
	if errors.Join(errs[:]...) != nil || c.duty.On < least || c.duty.Every <= c.duty.On || c.duty.Every > time.Hour {
		return fault.New(fault.Usage, c.where(settingBPFStats), "use always, off, or part of the time, "+
			"such as 10s/60s", "statistics must be always on, off, or on for part of the time: at least %v of at most 1h", least)
	}
	return nil
}

func (c *configuration) parse(name string, data []byte) error {
	f := document.File(name)
	documents, err := f.Parse(data, document.Limit{What: "a configuration", Bytes: maxConfigBytes,
		Hint: "a pattern with * can replace many rules"})
	if err != nil || len(documents) == 0 {
		return err
	}
	if len(documents) > 1 {
		return f.Fail(documents[1], "remove the line ---", "the configuration must be one document")
	}
	c.places = map[string]string{}
	const what = "the configuration"
	return f.Each(documents[0], what, func(key string, at, value document.Node) error {
		if key == keyRules {
			list, isList := value.(*ast.SequenceNode)
			if !isList {
				return f.Fail(value, "see docs/charges.md", "%q must be a list", keyRules)
			}
			c.rules, err = charge.ParseList(f, list)
			return err
		}
		s, known := param.Find(settings, key)
		if !known {
			return f.Unknown(at, key, what, append(param.Names(settings), keyRules))
		}
		c.places[s.Name] = f.Place(value)
		return f.Setting(value, s, c.Values)
	})
}

func (c *configuration) listen() string          { return c.Values[settingListen] }
func (c *configuration) webConfig() string       { return c.Values[settingWebConfig] }
func (c *configuration) maxSeries() int          { return c.Int(settingMaxSeries) }
func (c *configuration) tick() time.Duration     { return c.Duration(settingTick) }
func (c *configuration) hostRoot() string        { return c.Values[settingHostRoot] }
func (c *configuration) withoutStatistics() bool { return c.Values[settingBPFStats] == "off" }

// hz returns the sampling rate for the meter: -1 for none.
func (c *configuration) hz() int {
	if hz := c.Int(settingHz); hz > 0 {
		return hz
	}
	return -1
}
