package injection

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"tare/internal/lib/document"
	"tare/internal/lib/lists"
	"tare/internal/mesh/controlplane/authority"
)

// Labels and annotations of pods.
const (
	// InjectKey, a label or an annotation, is "false" on pods that must not be injected. With Config.Opt "in", only
	// pods where it is "true" are injected. If a pod has both, the label counts.
	InjectKey = "mesh.tare/inject"
	// ExcludeInboundKey and ExcludeOutboundKey are annotations with ports, separated by commas, whose connections are
	// not redirected.
	ExcludeInboundKey  = "mesh.tare/exclude-inbound-ports"
	ExcludeOutboundKey = "mesh.tare/exclude-outbound-ports"
	// StatusKey is the annotation that an injected pod gets: the names of what was added, as JSON (injectedNames). A
	// pod that has it is not injected again, and is refused if it lacks the sidecar.
	StatusKey = "mesh.tare/status"
)

// Values of Config.Redirect: what redirects a pod's connections.
const (
	RedirectInit = "init" // an init container
	RedirectCNI  = "cni"  // a plugin of the container network: no init container is injected
)

// restartAlways is the restartPolicy of init containers that keep running.
const restartAlways = "Always"

// Values of Config.Opt: which pods are injected.
const (
	OptOut = "out" // all pods except those that opt out by a label or an annotation
	OptIn  = "in"  // only pods that opt in
)

// Config describes what is injected into pods. Containers and volumes have the same fields as in Kubernetes; their
// strings may contain variables (see Variables).
type Config struct {
	// Opt is OptOut, the default, or OptIn.
	Opt string `yaml:"opt"`
	// ExcludeNamespaces are the namespaces whose pods are never injected. If it is nil, they are those of Kubernetes
	// itself and of the control plane; an empty list excludes none.
	ExcludeNamespaces []string `yaml:"excludeNamespaces"`
	// Redirect is RedirectInit, the default, or RedirectCNI.
	Redirect string `yaml:"redirect"`
	// Sidecar is the container of the proxy. If it has restartPolicy: Always, it becomes an init container, which
	// Kubernetes calls a sidecar container (from 1.29 on).
	Sidecar map[string]any `yaml:"sidecar"`
	// Init is the init container that sets up the redirection, for RedirectInit.
	Init map[string]any `yaml:"init"`
	// Volumes are the volumes of the Sidecar and Init containers.
	Volumes []map[string]any `yaml:"volumes"`
	// ProbePort is the port at which the sidecar answers the probes of the other containers (package probes); 0:
	// probes are not changed.
	ProbePort int `yaml:"probePort"`
	// ExcludeInbound and ExcludeOutbound are ports whose connections are not redirected in any pod. ProbePort is
	// excluded automatically.
	ExcludeInbound  []int `yaml:"excludeInbound"`
	ExcludeOutbound []int `yaml:"excludeOutbound"`
}

// Variables describes the variables that strings of containers and volumes may contain, as ${NAME}. $${ stands for ${.
var Variables = map[string]string{
	"namespace":       "the namespace",
	"pod":             "the name, or its prefix if the name is generated",
	"account":         "the service account",
	"identity":        "the SPIFFE ID of the service account",
	"roots":           "the certificates of the roots as PEM",
	"probes":          "the probes that the sidecar is to answer, as JSON (package probes)",
	"probePort":       "the port at which the sidecar answers them",
	"excludeInbound":  "ports at which incoming connections are not redirected, separated by commas",
	"excludeOutbound": "ports to which the pod's own connections are not redirected, separated by commas",
}

// ParseConfig parses a Config in YAML and checks it.
func ParseConfig(text []byte) (*Config, error) {
	c := &Config{}
	text = document.Plain(text)
	if line, err := document.Guard(text); err != nil {
		return nil, fmt.Errorf("reading YAML: line %d: %w", line, err)
	}
	if err := yaml.UnmarshalWithOptions(text, c, yaml.Strict()); err != nil {
		return nil, fmt.Errorf("reading YAML: %s", yaml.FormatError(err, false, true))
	}
	_, err := c.compile()
	return c, err
}

// compiled is a Config prepared for making patches.
type compiled struct {
	Config
	native  bool // the sidecar is an init container that keeps running
	sidecar object
	before  []object // the init containers, in order: the one that redirects, and a native sidecar
	volumes []object
	status  string // the value of StatusKey
}

// injectedNames lists the names of what was added to a pod, in the form of Istio's annotation sidecar.istio.io/status,
// so that readers of a pod can distinguish its own containers from those of the mesh.
type injectedNames struct {
	Containers     []string `json:"containers,omitempty"`
	InitContainers []string `json:"initContainers,omitempty"`
	Volumes        []string `json:"volumes,omitempty"`
}

// object is a container or a volume that is added to pods.
type object struct {
	name string
	json template
}

func parseObject(key string, of map[string]any) (o object, err error) {
	o.name, _ = of["name"].(string)
	if o.name == "" || strings.Contains(o.name, "${") {
		return o, fmt.Errorf("%s: it needs a name, without variables", key)
	}
	if o.json, err = parseTemplate(of); err != nil {
		return o, fmt.Errorf("%s: %w", key, err)
	}
	return o, nil
}

// named reports whether one of the objects has the given name.
func named(list []object, name string) bool {
	return slices.ContainsFunc(list, func(o object) bool { return o.name == name })
}

func (c Config) compile() (*compiled, error) {
	c.Opt, c.Redirect = cmp.Or(c.Opt, OptOut), cmp.Or(c.Redirect, RedirectInit)
	if c.ExcludeNamespaces == nil {
		c.ExcludeNamespaces = []string{"kube-system", "kube-public", "kube-node-lease", authority.SystemNamespace}
	}
	d := &compiled{Config: c}
	switch {
	case c.Opt != OptOut && c.Opt != OptIn:
		return nil, fmt.Errorf("opt: %q is neither %s nor %s", c.Opt, OptOut, OptIn)
	case c.Redirect != RedirectInit && c.Redirect != RedirectCNI:
		return nil, fmt.Errorf("redirect: %q is neither %s nor %s", c.Redirect, RedirectInit, RedirectCNI)
	case c.Redirect == RedirectInit && c.Init == nil:
		return nil, fmt.Errorf("init: give the container that redirects, or redirect: %s", RedirectCNI)
	case c.Redirect == RedirectCNI && c.Init != nil:
		return nil, fmt.Errorf("init: leave it out with redirect: %s", RedirectCNI)
	case c.Sidecar == nil:
		return nil, fmt.Errorf("sidecar: give the container of the proxy")
	case c.ProbePort < 0 || c.ProbePort > 65535:
		return nil, fmt.Errorf("probePort: %d is not a port", c.ProbePort)
	}
	for _, list := range []struct {
		key   string
		ports []int
	}{{"excludeInbound", c.ExcludeInbound}, {"excludeOutbound", c.ExcludeOutbound}} {
		for _, p := range list.ports {
			if p < 1 || p > 65535 {
				return nil, fmt.Errorf("%s: %d is not a port", list.key, p)
			}
		}
	}
	if c.ProbePort > 0 && !slices.Contains(c.ExcludeInbound, c.ProbePort) {
		d.ExcludeInbound = append(slices.Clone(c.ExcludeInbound), c.ProbePort)
	}
	return d, d.parse()
}

// parse sets d from the containers and volumes of its Config, and checks names and the use of ${probes}.
func (d *compiled) parse() (err error) {
	if d.sidecar, err = parseObject("sidecar", d.Sidecar); err != nil {
		return err
	}
	if d.Init != nil {
		init, err := parseObject("init", d.Init)
		if err != nil {
			return err
		}
		if init.name == d.sidecar.name {
			return fmt.Errorf("init: the sidecar is also named %q", init.name)
		}
		d.before = append(d.before, init)
	}
	if d.native = d.Sidecar["restartPolicy"] == restartAlways; d.native {
		d.before = append(d.before, d.sidecar)
	}
	for i, v := range d.Volumes {
		key := fmt.Sprintf("volumes[%d]", i)
		o, err := parseObject(key, v)
		if err != nil {
			return err
		}
		if named(d.volumes, o.name) {
			return fmt.Errorf("%s: another volume is also named %q", key, o.name)
		}
		d.volumes = append(d.volumes, o)
	}
	name := func(o object) string { return o.name }
	added := injectedNames{InitContainers: lists.Map(d.before, name), Volumes: lists.Map(d.volumes, name)}
	if !d.native {
		added.Containers = []string{d.sidecar.name}
	}
	status, err := json.Marshal(added)
	if err != nil {
		return fmt.Errorf("encoding names: %w", err)
	}
	d.status = string(status)
	all := slices.Concat([]object{d.sidecar}, d.before, d.volumes)
	if d.ProbePort > 0 && !slices.ContainsFunc(all, func(o object) bool { return o.json.holds("probes") }) {
		return errors.New("probePort: nothing contains ${probes}, so the sidecar would not know which probes to answer")
	}
	return nil
}

// template is JSON with variables in its strings. Its elements alternate between literal text and the name of a
// variable; the first and the last are literal text.
type template []string

func parseTemplate(object map[string]any) (template, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(object); err != nil {
		return nil, fmt.Errorf("it cannot be encoded as JSON: %w", err)
	}
	var t template
	literal := ""
	for rest := strings.TrimSuffix(b.String(), "\n"); ; {
		at := strings.Index(rest, "${")
		if at < 0 {
			return append(t, literal+rest), nil
		}
		if at > 0 && rest[at-1] == '$' {
			literal += rest[:at-1] + "${"
			rest = rest[at+2:]
			continue
		}
		name, after, closed := strings.Cut(rest[at+2:], "}")
		if _, known := Variables[name]; !closed || !known {
			return nil, fmt.Errorf("there is no variable ${%.40s}; write $${ for ${", name)
		}
		t = append(t, literal+rest[:at], name)
		literal, rest = "", after
	}
}

// holds reports whether t contains the variable called name.
func (t template) holds(name string) bool {
	for i := 1; i < len(t); i += 2 {
		if t[i] == name {
			return true
		}
	}
	return false
}

// with returns the JSON with the variables replaced by their values in a pod.
func (t template) with(values map[string]string) json.RawMessage {
	var b []byte
	for i, s := range t {
		if i%2 == 1 {
			quoted, err := json.Marshal(values[s])
			if err != nil {
				panic(err) // encoding a string cannot fail
			}
			s = string(quoted[1 : len(quoted)-1])
		}
		b = append(b, s...)
	}
	return b
}
