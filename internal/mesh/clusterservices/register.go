// Package clusterservices is an application that creates Services of a Kubernetes cluster, and changes their endpoints
// when a load of kind "push" asks for it. It runs in a pod whose service account may do so. The load times the
// cluster's implementation of Services (kube-proxy, or a mesh): from the change at the API server until connections go
// to the new endpoints.
//
// Every endpoint is a port of the application's own pod, and a change moves a Service to another port. An endpoint
// answers each connection with the number of its Service and of the change that added it (services.Answer).
package clusterservices

import (
	"context"
	"net"
	"slices"
	"strconv"
	"time"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/mesh/services"
)

func init() { kind.Register(kind.Application, guest{}) }

// guest implements the application for the engine.
type guest struct{}

// maxServices limits the number of Services: each has one listener or, after a change, two.
const maxServices = 2000

const (
	servicesKey = "services"
	listenKey   = "listen"
)

var settings = []param.Setting{
	{Name: servicesKey, Type: param.TypeCount, Default: "100", Min: 1, Max: maxServices,
		Phrase: map[string]string{"": "with {} Services", "1": "with one Service"},
		Doc:    "Services that it creates in its namespace, each with one endpoint in the application's pod"},
}

// listenSetting is a setting of the process, not of specs.
var listenSetting = param.Setting{Name: listenKey, Type: param.TypeText, Reach: param.ReachAddress,
	Doc: "address at which it accepts changes"}

// About implements kind.Guest.
func (guest) About() kind.About {
	return kind.About{
		Name: "cluster-services",
		Summary: "Services of a cluster, whose endpoints change when a load of kind `push` asks for it; for " +
			"kubectl tare run, with a service account",
		Settings:    settings,
		Protocol:    services.Protocol,
		InPods:      true,
		AppProtocol: func(param.Values) string { return "tcp" },
		Process:     slices.Concat(settings, []param.Setting{listenSetting}),
		// The Services of earlier trials are removed first.
		ReadyWithin: func(v param.Values) time.Duration {
			return time.Minute + time.Duration(v.Int(servicesKey))*50*time.Millisecond
		},
	}
}

// At implements kind.Sited.
func (guest) At(at kind.Site) param.Values {
	return param.Values{listenKey: net.JoinHostPort(at.Host, strconv.Itoa(at.Port))}
}

// Play runs the application's process.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	return role.Play(ctx, conn, func(ctx context.Context) error {
		a, err := inPod(serviceAccount)
		if err != nil {
			return err
		}
		return serve(ctx, a, v.Int(servicesKey), v[listenKey],
			func(r services.Ready) error { return conn.Send(role.Ready, r) })
	})
}
