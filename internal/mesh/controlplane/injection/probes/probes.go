// Package probes answers the probes of a pod's containers in their place. The kubelet has no certificate of the mesh,
// so a proxy that requires one would refuse its probes. Instead, the kubelet sends the probes to a server next to the
// proxy, which probes the containers from within the pod.
package probes

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
)

// Table holds the probes of containers, by the path that the kubelet requests.
type Table map[string]Ask

// Ask is one probe. Exactly one of HTTP, TCP and GRPC is set.
type Ask struct {
	HTTP    *HTTP `json:"http,omitempty"`
	TCP     *TCP  `json:"tcp,omitempty"`
	GRPC    *GRPC `json:"grpc,omitempty"`
	Timeout int   `json:"timeout"` // seconds
}

// HTTP is a GET request. Any status from 200 to 399 is success, as for the kubelet.
type HTTP struct {
	Path    string   `json:"path"`
	Port    int      `json:"port"`
	TLS     bool     `json:"tls,omitempty"` // the certificate is not verified; the kubelet does not verify it either
	Headers []Header `json:"headers,omitempty"`
}

// Header is a header of a request.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// TCP is a connection. The probe succeeds if it can be opened.
type TCP struct {
	Port int `json:"port"`
}

// GRPC is a call of grpc.health.v1.Health/Check.
type GRPC struct {
	Port    int    `json:"port"`
	Service string `json:"service,omitempty"`
}

// Path returns the path at which the kubelet requests a probe ("liveness", "readiness", "startup") of a container.
func Path(container, kind string) string { return "/probe/" + container + "/" + kind }

// Parse parses a table in JSON and checks it.
func Parse(text []byte) (Table, error) {
	var t Table
	if err := json.Unmarshal(text, &t); err != nil {
		return nil, fmt.Errorf("reading the table of probes: %w", err)
	}
	for path, a := range t {
		port := 0
		switch {
		case a.HTTP != nil:
			port = a.HTTP.Port
		case a.TCP != nil:
			port = a.TCP.Port
		case a.GRPC != nil:
			port = a.GRPC.Port
		}
		if !strings.HasPrefix(path, "/probe/") || port < 1 || port > 65535 || a.Timeout < 1 {
			return nil, fmt.Errorf("the probe at %.100q is invalid", path)
		}
	}
	return t, nil
}

// Server answers the probes of a table. It is an http.Handler. Make it with New.
type Server struct {
	table Table
	host  string
	http  *http.Client
}

// New makes a server that probes the containers at a host: the IP address of the pod, to which the kubelet would send
// its probes, or 127.0.0.1.
func New(t Table, host string) *Server {
	return &Server{t, host, &http.Client{
		Transport: &http.Transport{
			TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // as the kubelet does
			// Each probe must test whether the container accepts a new connection.
			DisableKeepAlives: true, DisableCompression: true, MaxResponseHeaderBytes: 64 << 10,
		},
		// As the kubelet does: a redirect to another host is not followed, and counts as success
		// (k8s.io/kubernetes/pkg/probe/http).
		CheckRedirect: func(r *http.Request, via []*http.Request) error {
			switch {
			case r.URL.Hostname() != via[0].URL.Hostname():
				return http.ErrUseLastResponse
			case len(via) >= 10:
				return errors.New("stopped after 10 redirects")
			}
			return nil
		},
	}}
}

// ServeHTTP probes the container, and answers with the status that an HTTP probe got, or with 200 if a probe of another
// kind succeeded. If the probe fails, it answers with 503 and the error; if there is no probe at the path, with 404.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	a, known := s.table[r.URL.Path]
	if !known {
		http.Error(w, "there is no such probe", http.StatusNotFound)
		return
	}
	ctx, stop := context.WithTimeout(r.Context(), time.Duration(a.Timeout)*time.Second)
	defer stop()
	status, err := http.StatusOK, error(nil)
	switch {
	case a.HTTP != nil:
		status, err = s.get(ctx, a.HTTP)
	case a.TCP != nil:
		err = s.connect(ctx, a.TCP.Port)
	default:
		err = s.check(ctx, a.GRPC)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.WriteHeader(status)
}

func (s *Server) at(port int) string { return net.JoinHostPort(s.host, strconv.Itoa(port)) }

func (s *Server) get(ctx context.Context, h *HTTP) (int, error) {
	scheme := "http"
	if h.TLS {
		scheme = "https"
	}
	u, err := url.Parse(h.Path)
	if err != nil { // like the kubelet, take the text literally as a path
		u = &url.URL{Path: h.Path}
	}
	u.Scheme, u.Host = scheme, s.at(h.Port)
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return 0, fmt.Errorf("the probe's path is invalid: %w", err)
	}
	r.Header.Set("User-Agent", "kube-probe/mesh")
	r.Header.Set("Accept", "*/*")
	replaced := map[string]bool{}
	for _, x := range h.Headers {
		key := http.CanonicalHeaderKey(x.Name)
		switch {
		case key == "Host":
			r.Host = x.Value
		case !replaced[key]:
			replaced[key] = true
			r.Header.Set(key, x.Value)
		default:
			r.Header.Add(key, x.Value)
		}
	}
	answer, err := s.http.Do(r)
	if err != nil {
		return 0, err
	}
	defer answer.Body.Close()
	_, _ = io.CopyN(io.Discard, answer.Body, 10<<10) // as much as the kubelet reads
	return answer.StatusCode, nil
}

func (s *Server) connect(ctx context.Context, port int) error {
	var d net.Dialer
	c, err := d.DialContext(ctx, "tcp", s.at(port))
	if err != nil {
		return err
	}
	return c.Close()
}

func (s *Server) check(ctx context.Context, g *GRPC) (err error) {
	c, err := grpc.NewClient("passthrough:///"+s.at(g.Port), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.Close()) }()
	r, err := healthv1.NewHealthClient(c).Check(ctx, &healthv1.HealthCheckRequest{Service: g.Service})
	if err == nil && r.GetStatus() != healthv1.HealthCheckResponse_SERVING {
		err = fmt.Errorf("the service is %s", r.GetStatus())
	}
	return err
}
