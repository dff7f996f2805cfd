package http

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
	{Name: "rate", Type: param.TypeNumber, Min: 0.1, Max: 10_000_000, Phrase: map[string]string{"": "at {} requests/s"},
		Doc: "requests per second; required by open loads, which alone have it"},
	{Name: "arrivals", Type: param.TypeWord, Default: string(pace.Poisson),
		Words: []string{string(pace.Poisson), string(pace.Constant)},
		Doc:   "distribution of an open load's starts"},
	{Name: "protocol", Type: param.TypeWord, Default: string(HTTP1), Words: []string{string(HTTP1), string(HTTP2),
		string(GRPC), string(TCP)},
		Phrase: map[string]string{"http1": "over HTTP/1.1", "http2": "over HTTP/2", "grpc": "over gRPC", "tcp": "over TCP"},
		Doc: "HTTP/1.1; HTTP/2 (without TLS by prior knowledge); unary gRPC; or echoed bytes of TCP. An " +
			"application of kind `http` needs the same"},
	{Name: "tls", Type: param.TypeWord, Default: string(TLSOff),
		Words:  []string{string(TLSOff), string(TLSOn), string(TLSUnverified)},
		Phrase: map[string]string{"off": "in the clear", "on": "over TLS", "unverified": "over TLS"},
		Doc: "off: none, except for https URLs; on: the server's certificate must verify against the machine's roots; " +
			"unverified: any certificate"},
	{Name: "connections", Type: param.TypeCount, Default: "64", Min: 1, Max: 100_000,
		Phrase: map[string]string{"": "with {} connections", "1": "with one connection"},
		Doc:    "connections open at once, at most; with keepalive, exactly"},
	{Name: "streams", Type: param.TypeCount, Default: "1", Min: 1, Max: maxStreams,
		Phrase: map[string]string{"": "with {} streams on each connection", "1": "with one stream on each connection"},
		Doc:    "requests at once on a connection, at most, over HTTP/2 and gRPC"},
	{Name: "request-body", Type: param.TypeBytes, Default: "0", Max: maxBody,
		Phrase: map[string]string{"": "with requests of {} bytes", "0": "with requests without a body"},
		Doc:    "size of the request's body, or of the value in a gRPC message; over TCP at least 1"},
	{Name: "keepalive", Type: param.TypeSwitch, Default: "true",
		Phrase: map[string]string{"true": "over kept connections", "false": "over a new connection for each request"},
		Doc:    "whether connections are kept; false: one for each request"},
	{Name: "threads", Type: param.TypeCount, Min: 1, Max: 1024,
		Doc: "threads of the generator"},
	{Name: "timeout", Type: param.TypeDuration, Default: "5s", Min: 0.001, Max: 600,
		Doc: "time after which a request counts as failed"},
	{Name: "drain", Type: param.TypeDuration, Default: "1s", Max: 600,
		Doc: "time after the window for what was due in it"},
}

// The names of settings that an experiment sets itself.
const (
	urlKey    = "url"
	sourceKey = "source"
)

// processSettings are settings of the process that cannot be set in specs.
var processSettings = []param.Setting{
	{Name: urlKey, Type: param.TypeText, Reach: param.ReachAddress, Many: true,
		Doc: "what to request, http[s]://host:port/path; several are used in turn"},
	kind.SeedSetting,
	{Name: "method", Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "request method; GET, or POST with a body, when left out"},
	{Name: "header", Type: param.TypeText, Reach: param.ReachNothing, Many: true,
		Doc: `further request header, "Name: value"`},
	{Name: sourceKey, Type: param.TypeWord, Default: string(SourceAuto),
		Words: []string{string(SourceAuto), string(SourceNone), string(SourceLoopback)},
		Doc: "source addresses: loopback spreads them over 127.0.0.0/8, none leaves the choice to the kernel, auto is " +
			"loopback for servers at loopback addresses"},
	{Name: "recycle", Type: param.TypeSwitch, Default: "false",
		Doc: "without keepalive: connect the same sockets again instead of making new ones; programs that watch sockets " +
			"come and go see less"},
	load.SpinSetting,
}

// OptionsOf converts settings to options: the settings of a process, or only those of a spec. It returns an error if
// settings contradict each other.
func OptionsOf(v param.Values) (Options, error) {
	o := Options{
		Rate: v.Float("rate"), Arrivals: pace.Arrivals(v["arrivals"]), Connections: v.Int("connections"),
		KeepAlive: v.On("keepalive"), Threads: v.Int("threads"),
		Timeout: v.Duration("timeout"), Drain: v.Duration("drain"),
		Protocol: Protocol(v["protocol"]), Streams: v.Int("streams"), Body: v.Int("request-body"),
		TLS: TLS(v["tls"]), Targets: v.Texts(urlKey), Seed: v.Uint(kind.SeedSetting.Name), Method: v["method"],
		Headers: v.Texts("header"), Source: Source(v[sourceKey]), Recycle: v.On("recycle"), Spin: load.SpinOf(v),
	}
	if o.Drain == 0 {
		o.Drain = -1 // in Options, 0 means the default
	}
	if err := load.CheckRate(v, "requests"); err != nil {
		return o, err
	}
	return o, o.streams()
}
