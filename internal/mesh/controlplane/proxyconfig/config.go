// Package proxyconfig compiles a mesh file into the resources, in Envoy's format, that each proxy of the mesh
// receives.
package proxyconfig

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"unicode/utf8"

	"github.com/goccy/go-yaml"

	"tare/internal/lib/document"
	"tare/internal/lib/fault"
	"tare/internal/lib/files"
	"tare/internal/lib/lists"
)

// Config is the content of a mesh file: services, the proxies that serve and call them, and resources in Envoy's
// format. In a mesh without proxies every node gets the same resources.
type Config struct {
	TrustDomain string           `json:"trust_domain" yaml:"trust_domain"` // of identities; default mesh.local
	MTLS        string           `json:"mtls" yaml:"mtls"`                 // off (default), permissive or strict
	Discovery   string           `json:"discovery" yaml:"discovery"`       // permissive (default) or policy
	Services    []Service        `json:"services" yaml:"services"`
	Proxies     []Proxy          `json:"proxies" yaml:"proxies"`
	Ingress     []Ingress        `json:"ingress" yaml:"ingress"`
	Resources   []map[string]any `json:"resources" yaml:"resources"` // each with its "@type"
}

// Service is an address and what serves it: its endpoints, or other services by weight. A service without an address
// can only be referred to by other services, or reached at addresses of the proxies.
type Service struct {
	Name           string            `json:"name" yaml:"name"`
	Address        string            `json:"address" yaml:"address"`
	Protocol       string            `json:"protocol" yaml:"protocol"` // tcp (default), udp, http, http2 or grpc
	Identity       string            `json:"identity" yaml:"identity"` // of its servers: ACCOUNT or NAMESPACE/ACCOUNT
	Policy         string            `json:"policy" yaml:"policy"`     // round-robin (default) or random
	MaxConnections uint32            `json:"max_connections" yaml:"max_connections"`
	ConnectTimeout string            `json:"connect_timeout" yaml:"connect_timeout"` // such as 250ms; default 5s
	Endpoints      []Endpoint        `json:"endpoints" yaml:"endpoints"`
	Zones          map[string]uint32 `json:"zones" yaml:"zones"`   // weights of zones relative to each other
	Split          map[string]uint32 `json:"split" yaml:"split"`   // other services and their weights
	Routes         []Route           `json:"routes" yaml:"routes"` // HTTP: the first that matches is used
	Access         []Access          `json:"access" yaml:"access"` // which identities may call it
	Allow          []Rule            `json:"allow" yaml:"allow"`   // accept only these connections
	Deny           []Rule            `json:"deny" yaml:"deny"`     // refuse these connections
}

// Endpoint is an address at which a service is served.
type Endpoint struct {
	Address  string `json:"address" yaml:"address"` // IP:port, or host:port for all of the host's addresses
	Weight   uint32 `json:"weight" yaml:"weight"`   // default 1
	Health   string `json:"health" yaml:"health"`   // healthy (default), unhealthy or draining
	Priority uint32 `json:"priority" yaml:"priority"`
	Zone     string `json:"zone" yaml:"zone"`
}

// Route directs the requests that Match selects to services.
type Route struct {
	Name    string            `json:"name" yaml:"name"` // by which access lists refer to the route
	Match   Match             `json:"match" yaml:"match"`
	To      map[string]uint32 `json:"to" yaml:"to"`           // services and their weights; default: the service itself
	Timeout string            `json:"timeout" yaml:"timeout"` // limit for the whole request, such as 2s; default: none
	Retries Retries           `json:"retries" yaml:"retries"`
}

// Match matches requests by path, method and headers; an empty field matches all.
type Match struct {
	Path    string            `json:"path" yaml:"path"`     // the exact path, without the query
	Prefix  string            `json:"prefix" yaml:"prefix"` // the start of the path, compared literally
	Regex   string            `json:"regex" yaml:"regex"`   // RE2, of the whole path without the query
	Method  string            `json:"method" yaml:"method"`
	Headers map[string]string `json:"headers" yaml:"headers"` // exact values; "*": any value
}

// Retries holds how often a request is retried, and after which failures.
type Retries struct {
	Attempts uint32 `json:"attempts" yaml:"attempts"` // number of retries, after the first attempt
	// On lists the failures, by Envoy's names or as status codes; default connect-failure and refused-stream.
	On []string `json:"on" yaml:"on"`
}

// Access is a permission: identities, and the routes that they may use.
type Access struct {
	From   []string `json:"from" yaml:"from"`     // identities; "*": all of the trust domain
	Routes []string `json:"routes" yaml:"routes"` // names of routes; default: all requests
}

// Rule matches connections by source and destination; an empty field matches all.
type Rule struct {
	From  []string `json:"from" yaml:"from"`   // addresses or prefixes
	To    []string `json:"to" yaml:"to"`       // addresses or prefixes
	Ports []string `json:"ports" yaml:"ports"` // of the destination: 80, or 8000-8999
}

// Proxy is one proxy: its identity, the services that it serves, and the addresses at which its application calls
// services.
type Proxy struct {
	ID       string             `json:"id" yaml:"id"` // the ID of its xDS node
	Identity string             `json:"identity" yaml:"identity"`
	Inbound  map[string]Inbound `json:"inbound" yaml:"inbound"` // by service
	// Outbound holds the address, IP:port, at which each service is reached. Services that are not in it cannot be reached
	// through the proxy; nil: each service is reached at its own address.
	Outbound map[string]string `json:"outbound" yaml:"outbound"`
	// Redirected describes, by service, connections that were made to an address other than the listener's and redirected
	// to the listener. The listener closes all other connections.
	Redirected map[string]Redirected `json:"redirected" yaml:"redirected"`
}

// Redirected is the address that clients connect to before their connections are redirected to the proxy.
type Redirected struct {
	From string `json:"from" yaml:"from"` // IP:port
	// Transparent lets the listener accept packets to addresses that its host does not have (IP_TRANSPARENT), as
	// TPROXY delivers them.
	Transparent bool `json:"transparent" yaml:"transparent"`
}

// Inbound holds the addresses at which a proxy accepts a service's connections, and at which its application listens.
type Inbound struct {
	Listen string `json:"listen" yaml:"listen"` // IP:port
	To     string `json:"to" yaml:"to"`         // IP:port or host:port
}

// Ingress is a listener for callers from outside the mesh, who have no identity.
type Ingress struct {
	Service string `json:"service" yaml:"service"`
	Listen  string `json:"listen" yaml:"listen"` // IP:port
	Proxy   string `json:"proxy" yaml:"proxy"`   // the proxy that listens; it serves or calls the service
	TLS     bool   `json:"tls" yaml:"tls"`       // callers use TLS; the proxy shows its certificate, and they need none
}

// maxFile bounds the size of a configuration in bytes. It is enough for about 200,000 endpoints.
const maxFile = 64 << 20

// Example is a small configuration, for the hint of an error.
const Example = "services: [{name: web, address: 10.96.0.1:80, endpoints: [{address: 127.0.0.1:8080, weight: 3}]}]"

// ReadFile reads and compiles a mesh file, or all mesh files of a directory (Files).
func ReadFile(path string) (*Mesh, error) { return NewReader(path).Read() }

// Reader reads a mesh file, or all mesh files of a directory, repeatedly. It does not decode unchanged files again,
// nor compile unchanged parts of the mesh again (Config.CompileAfter). It must not be used concurrently.
type Reader struct {
	path  string
	files map[string]file // the files as last read without an error, by name
	last  *Mesh
}

// NewReader makes a reader. It does not read anything yet.
func NewReader(path string) *Reader { return &Reader{path: path} }

// Read reads and compiles the current files. If it returns an error, the reader is unchanged.
func (r *Reader) Read() (*Mesh, error) {
	names, err := Files(r.path)
	if err != nil {
		return nil, err
	}
	var files []file
	left := int64(maxFile)
	for _, name := range names {
		data, err := readAtMost(name, left)
		if err != nil {
			return nil, fault.Wrap(err, fault.Usage, name, "name a file with --config", "the configuration cannot be read")
		}
		left -= int64(len(data))
		files = append(files, file{name: name, data: data})
	}
	for i := range files {
		f := &files[i]
		if before, was := r.files[f.name]; was && bytes.Equal(before.data, f.data) {
			*f = before
		} else if err := f.decode(); err != nil {
			return nil, err
		}
	}
	m, err := compile(r.path, files, r.last)
	if err != nil {
		return nil, err
	}
	r.files, r.last = lists.Keyed(files, func(f file) (string, file) { return f.name, f }), m
	return m, nil
}

func readAtMost(name string, most int64) ([]byte, error) {
	f, err := files.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("there are more than %d MiB", maxFile>>20)
	}
	return data, err
}

// Parse compiles a configuration in YAML. name is the name of the file, for errors, which are of type *fault.Error and
// code Usage, and contain the line.
func Parse(name string, data []byte) (*Mesh, error) {
	f := file{name: name, data: data}
	if err := f.decode(); err != nil {
		return nil, err
	}
	return compile(name, []file{f}, nil)
}

// compile compiles several files as one configuration. It reuses what has not changed since the earlier mesh, which may
// be nil. Errors are of type *fault.Error and code Usage. They contain the file and the line, or only the given name if
// they are not about a particular file.
func compile(name string, files []file, before *Mesh) (*Mesh, error) {
	all, err := merge(files)
	if err != nil {
		return nil, err
	}
	m, err := all.config.CompileAfter(before)
	if err != nil {
		where, err := all.place(name, err)
		return nil, fault.Wrap(err, fault.Usage, where, Example, "the configuration is wrong")
	}
	return m, nil
}

// decode decodes the file's data into its config. Errors are of type *fault.Error and code Usage.
func (f *file) decode() error {
	f.data = document.Plain(f.data)
	if line, err := document.Guard(f.data); err != nil {
		return fault.New(fault.Usage, at(f.name, line), Example, "%s", err)
	}
	if !utf8.Valid(f.data) {
		return fault.New(fault.Usage, f.name, Example, "the file is not valid UTF-8")
	}
	err := yaml.UnmarshalWithOptions(f.data, &f.config, yaml.Strict())
	if err == nil || errors.Is(err, io.EOF) {
		return nil
	}
	var where yaml.Error
	if errors.As(err, &where) && where.GetToken() != nil && where.GetToken().Position != nil {
		return fault.New(fault.Usage, at(f.name, where.GetToken().Position.Line), Example, "%s", where.GetMessage())
	}
	return fault.New(fault.Usage, f.name, Example, "%s", err)
}

// at formats a place in a file; line 0 means the whole file.
func at(name string, line int) string {
	if line <= 0 {
		return name
	}
	return fmt.Sprintf("%s:%d", name, line)
}
