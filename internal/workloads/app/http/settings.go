package http

import (
	"tare/internal/lib/delay"
	"tare/internal/lib/param"
)

// Settings are what specs and the command line set of the server.
var Settings = []param.Setting{
	{Name: "protocol", Type: param.TypeWord, Default: string(HTTP1),
		Words: []string{string(HTTP1), string(HTTP2), string(GRPC), string(TCP)},
		Doc: "what it serves: HTTP/1.1; HTTP/2, with prior knowledge where there is no TLS, and HTTP/1.1 on the same port; gRPC, " +
			"the method `/tare.Echo/Echo`; or TCP, where it sends back what comes"},
	{Name: "tls", Type: param.TypeSwitch, Default: "false",
		Doc: "whether connections are encrypted, with a self-signed certificate (a load needs `tls: unverified`)"},
	{Name: "body", Type: param.TypeBytes, Default: "128", Max: maxEcho,
		Doc: "size of the answer's body; over gRPC, of the value in the message"},
	{Name: "echo", Type: param.TypeSwitch, Default: "true",
		Doc: "whether a request with a body is answered with that body, and not with one of `body` bytes"},
	{Name: "delay", Type: param.TypeDuration, Default: "0s", Max: 60, Doc: "time the server waits before it answers"},
}

// OptionsOf are the options by their settings.
func OptionsOf(v param.Values) (Options, error) {
	o := Options{
		Protocol: Protocol(v["protocol"]), Body: v.Int("body"), Deaf: !v.On("echo"), TLS: v.On("tls"),
		Options: delay.Options{Delay: v.Duration("delay")},
	}
	return o, o.check()
}
