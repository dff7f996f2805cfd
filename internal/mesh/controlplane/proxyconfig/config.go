// Package proxyconfig compiles a mesh file into what each proxy of the mesh receives, as Envoy's resources.
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

// Config is what a mesh file says: services in plain words, who serves and calls them, and resources as Envoy has them.
// A mesh without proxies is the same for every node.
type Config struct {
	TrustDomain string           `json:"trust_domain" yaml:"trust_domain"` // of identities; default mesh.local
	MTLS        string           `json:"mtls" yaml:"mtls"`                 // off (default), permissive or strict
	Discovery   string           `json:"discovery" yaml:"discovery"`       // permissive (default) or policy
	Services    []Service        `json:"services" yaml:"services"`
	Proxies     []Proxy          `json:"proxies" yaml:"proxies"`
	Ingress     []Ingress        `json:"ingress" yaml:"ingress"`
	Resources   []map[string]any `json:"resources" yaml:"resources"` // each with its "@type"
}

// Service is an address and what serves it: its endpoints, or other services by weight. Without an address it is
// only there to be named by others, or reached at addresses of the proxies.
type Service struct {
	Name           string            `json:"name" yaml:"name"`
	Address        string            `json:"address" yaml:"address"`
	Protocol       string            `json:"protocol" yaml:"protocol"` // tcp (default), udp, http, http2 or grpc
	Identity       string            `json:"identity" yaml:"identity"` // ACCOUNT or NAMESPACE/ACCOUNT: as whom it answers
	Policy         string            `json:"policy" yaml:"policy"`     // round-robin (default) or random
	MaxConnections uint32            `json:"max_connections" yaml:"max_connections"`
	ConnectTimeout string            `json:"connect_timeout" yaml:"connect_timeout"` // such as 250ms; default 5s
	Endpoints      []Endpoint        `json:"endpoints" yaml:"endpoints"`
	Zones          map[string]uint32 `json:"zones" yaml:"zones"`   // weights of zones against each other
	Split          map[string]uint32 `json:"split" yaml:"split"`   // other services and their weights
	Routes         []Route           `json:"routes" yaml:"routes"` // HTTP: the first that matches
	Access         []Access          `json:"access" yaml:"access"` // which identities may call it
	Allow          []Rule            `json:"allow" yaml:"allow"`   // only these connections
	Deny           []Rule            `json:"deny" yaml:"deny"`     // all but these
}

// Endpoint is one place that serves.
type Endpoint struct {
	Address  string `json:"address" yaml:"address"` // IP:port, or host:port, all of whose addresses serve
	Weight   uint32 `json:"weight" yaml:"weight"`   // default 1
	Health   string `json:"health" yaml:"health"`   // healthy (default), unhealthy or draining
	Priority uint32 `json:"priority" yaml:"priority"`
	Zone     string `json:"zone" yaml:"zone"`
}

// Route is the requests that match, and where they go.
type Route struct {
	Name    string            `json:"name" yaml:"name"` // for access lists
	Match   Match             `json:"match" yaml:"match"`
	To      map[string]uint32 `json:"to" yaml:"to"`           // services and their weights; default: the service itself
	Timeout string            `json:"timeout" yaml:"timeout"` // of the whole request, such as 2s; default: none
	Retries Retries           `json:"retries" yaml:"retries"`
}

// Match is requests of a path, a method and headers; what is empty holds for all.
type Match struct {
	Path    string            `json:"path" yaml:"path"`     // exactly, without the query
	Prefix  string            `json:"prefix" yaml:"prefix"` // of the path, letter by letter
	Regex   string            `json:"regex" yaml:"regex"`   // RE2, of the whole path without the query
	Method  string            `json:"method" yaml:"method"`
	Headers map[string]string `json:"headers" yaml:"headers"` // exactly; "*": any value
}

// Retries is how often a request is tried again, and after which failures.
type Retries struct {
	Attempts uint32 `json:"attempts" yaml:"attempts"` // after the first one
	// On are Envoy's words for failures, or status codes; default connect-failure and refused-stream.
	On []string `json:"on" yaml:"on"`
}

// Access is who may call what.
type Access struct {
	From   []string `json:"from" yaml:"from"`     // identities; "*": all of the trust domain
	Routes []string `json:"routes" yaml:"routes"` // by name; default: all requests
}

// Rule is connections by where they come from and go to; what is empty holds for all.
type Rule struct {
	From  []string `json:"from" yaml:"from"`   // addresses or prefixes
	To    []string `json:"to" yaml:"to"`       // the same
	Ports []string `json:"ports" yaml:"ports"` // of the destination: 80, or 8000-8999
}

// Proxy is one proxy: whose it is, what it serves and where its application calls services.
type Proxy struct {
	ID       string             `json:"id" yaml:"id"` // of its node
	Identity string             `json:"identity" yaml:"identity"`
	Inbound  map[string]Inbound `json:"inbound" yaml:"inbound"` // by service
	// Outbound is where services are reached, as IP:port by service. Given, no others are reached through the proxy;
	// nil: each is at its own address.
	Outbound map[string]string `json:"outbound" yaml:"outbound"`
	// Redirected are, by service, connections that were made to another address than the listener's, and redirected to
	// it. All others are closed.
	Redirected map[string]Redirected `json:"redirected" yaml:"redirected"`
}

// Redirected is where clients connect to whose connections come to a proxy.
type Redirected struct {
	From string `json:"from" yaml:"from"` // IP:port
	// Transparent lets the listener take packets to addresses that its host does not have (IP_TRANSPARENT), as TPROXY
	// gives them to it.
	Transparent bool `json:"transparent" yaml:"transparent"`
}

// Inbound is where a proxy takes connections of a service, and where its application does.
type Inbound struct {
	Listen string `json:"listen" yaml:"listen"` // IP:port
	To     string `json:"to" yaml:"to"`         // IP:port or host:port
}

// Ingress is a listener for callers from outside the mesh, who have no identity.
type Ingress struct {
	Service string `json:"service" yaml:"service"`
	Listen  string `json:"listen" yaml:"listen"` // IP:port
	Proxy   string `json:"proxy" yaml:"proxy"`   // where it is: one that serves it, or one that calls it
	TLS     bool   `json:"tls" yaml:"tls"`       // by the proxy's certificate; callers need none
}

// maxFile bounds a configuration file: some 200,000 endpoints.
const maxFile = 64 << 20

// Example is a small configuration, for the hint of an error.
const Example = "services: [{name: web, address: 10.96.0.1:80, endpoints: [{address: 127.0.0.1:8080, weight: 3}]}]"

// ReadFile reads and compiles a mesh file, or all mesh files of a directory (Files).
func ReadFile(path string) (*Mesh, error) { return NewReader(path).Read() }

// Reader reads a mesh file, or all mesh files of a directory, again and again. Files that say what they said are not
// decoded again, and what has not changed of the mesh is not compiled again (Config.CompileAfter). It is for one
// goroutine.
type Reader struct {
	path  string
	files map[string]file // the last ones that were right, by name
	last  *Mesh
}

// NewReader makes a reader. It reads nothing yet.
func NewReader(path string) *Reader { return &Reader{path: path} }

// Read reads and compiles what is there now. An error leaves the reader as it was.
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

// Parse compiles a configuration in YAML; name is the file's, for errors. Whatever is wrong with it is a *fault.Error
// of code Usage that has the line.
func Parse(name string, data []byte) (*Mesh, error) {
	f := file{name: name, data: data}
	if err := f.decode(); err != nil {
		return nil, err
	}
	return compile(name, []file{f}, nil)
}

// compile compiles what files say together, after another mesh or nil. Whatever is wrong is a *fault.Error of code
// Usage with file and line, or with the name of them all where it is of no file.
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

// decode reads one file.
func (f *file) decode() error {
	f.data = document.Plain(f.data)
	if line, err := document.Guard(f.data); err != nil {
		return fault.New(fault.Usage, at(f.name, line), Example, "%s", err)
	}
	if !utf8.Valid(f.data) {
		return fault.New(fault.Usage, f.name, Example, "this is no text in UTF-8")
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

// at is a place in a file; line 0 is the whole of it.
func at(name string, line int) string {
	if line <= 0 {
		return name
	}
	return fmt.Sprintf("%s:%d", name, line)
}
