package http

import (
	"math"

	"tare/internal/lib/delay"
	"tare/internal/lib/param"
)

// Settings are the settings of the server, in specs and on the command line.
var Settings = []param.Setting{
	{Name: "protocol", Type: param.TypeWord, Default: string(HTTP1),
		Words: []string{string(HTTP1), string(HTTP2), string(GRPC), string(TCP)},
		Doc:   "HTTP/1.1; HTTP/2 and HTTP/1.1 on one port; gRPC, `/tare.Echo/Echo`; or echoed bytes of TCP"},
	{Name: "tls", Type: param.TypeSwitch, Default: "false",
		Doc: "TLS with a self-signed certificate; loads need `tls: unverified`"},
	{Name: "body", Type: param.TypeBytes, Default: "128", Max: maxEcho,
		Doc: "size of the answer's body, or of the value in a gRPC message"},
	{Name: "echo", Type: param.TypeSwitch, Default: "true",
		Doc: "whether requests with a body get it back instead of `body` bytes"},
	{Name: "delay", Type: param.TypeDuration, Default: "0s", Max: 60, Doc: "time before each answer"},
}

// listenKey is the name of the setting that an experiment sets itself.
const listenKey = "listen"

// processSettings are the settings of the process that specs do not have.
var processSettings = []param.Setting{
	{Name: listenKey, Type: param.TypeText, Reach: param.ReachAddress, Default: "127.0.0.1:0",
		Doc: "address to listen on; port 0 takes a free one"},
	{Name: "delay-dist", Type: param.TypeText, Reach: param.ReachNothing,
		Doc: "distribution of the delay, instead of delay: constant:5ms, uniform:2ms:10ms, two-point:2ms:20ms:0.05"},
	{Name: "seed", Type: param.TypeCount, Default: "1", Max: math.MaxUint64, Doc: "seed of delay-dist"},
	{Name: "stall", Type: param.TypeDuration, Default: "0s",
		Doc: "length of stalls, in which nothing is answered; 0s for none"},
	{Name: "stall-every", Type: param.TypeDuration, Default: "0s",
		Doc: "time from the beginning of one stall to that of the next"},
	{Name: "skip", Type: param.TypeCount, Default: "0",
		Doc: "requests at the beginning whose waits are left out of what a server with a delay-dist or with stalls " +
			"reports at its end"},
}

// OptionsOf converts settings to options: the settings of a process, or only those of a spec.
func OptionsOf(v param.Values) (o Options, err error) {
	o = Options{
		Protocol: Protocol(v["protocol"]), Body: v.Int("body"), Deaf: !v.On("echo"), TLS: v.On("tls"), Listen: v[listenKey],
		Options: delay.Options{
			Delay: v.Duration("delay"), Seed: v.Uint("seed"), Skip: int64(v.Int("skip")),
			Stall: delay.Stall{For: v.Duration("stall"), Every: v.Duration("stall-every")},
		},
	}
	if text := v["delay-dist"]; text != "" {
		if o.Distribution, err = delay.Parse(text); err != nil {
			return o, err
		}
	}
	return o, o.check()
}
