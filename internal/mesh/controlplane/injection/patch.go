package injection

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tare/internal/lib/lists"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/injection/probes"
)

// verdict holds the changes to an injected pod, and warnings for its author.
type verdict struct {
	patch    []byte // JSON patch (RFC 6902)
	warnings []string
}

// refusal means that a pod asks for something that is not allowed. The pod's author gets the message.
type refusal struct{ message string }

func (r *refusal) Error() string { return r.message }

func refuse(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

// skips returns why a pod must not be injected, or "" if it must be injected.
func (c *compiled) skips(namespace string, p *pod) string {
	wants := cmp.Or(p.Metadata.Labels[InjectKey], p.Metadata.Annotations[InjectKey])
	switch {
	case slices.Contains(c.ExcludeNamespaces, namespace):
		return "namespace"
	case p.Spec.HostNetwork:
		return "host-network" // the redirection would affect the whole machine
	case strings.EqualFold(wants, "false"):
		return "opted-out"
	case c.Opt == OptIn && !strings.EqualFold(wants, "true"):
		return "not-opted-in"
	}
	return ""
}

// inject makes the patch of a pod for which skips returned "" and injected returned false. An error that is a *refusal
// is the pod's fault.
func (c *compiled) inject(namespace string, by *authority.Authority, p *pod) (*verdict, error) {
	if err := c.collides(p); err != nil {
		return nil, err
	}
	inbound, err := portsOf(p.Metadata.Annotations, ExcludeInboundKey, c.ExcludeInbound)
	if err != nil {
		return nil, err
	}
	outbound, err := portsOf(p.Metadata.Annotations, ExcludeOutboundKey, c.ExcludeOutbound)
	if err != nil {
		return nil, err
	}
	account := cmp.Or(p.Spec.ServiceAccount, "default")
	id, err := authority.Identity(by.TrustDomain(), namespace+"/"+account)
	if err != nil {
		return nil, refuse("the service account %q of the namespace %q cannot be an identity: %s", account, namespace, err)
	}
	v := &verdict{}
	var b patch
	table := c.moveProbes(&b, p, v)
	encoded, err := json.Marshal(table)
	if err != nil {
		return nil, fmt.Errorf("encoding probes: %w", err)
	}
	values := map[string]string{
		"namespace": namespace,
		"pod":       cmp.Or(p.Metadata.Name, p.Metadata.GenerateName),
		"account":   account,
		"identity":  id,
		"roots":     string(by.RootsPEM()),
		// Dollar signs are escaped, because the kubelet expands $(NAME) and $$ in the environment and the arguments of the
		// sidecar, where the table is put, but not in probes.
		"probes":          strings.ReplaceAll(string(encoded), "$", `\u0024`),
		"probePort":       strconv.Itoa(c.ProbePort),
		"excludeInbound":  inbound,
		"excludeOutbound": outbound,
	}
	if c.native {
		// These go first, because c.before includes the sidecar, which must run before the pod's own init containers:
		// their connections are already redirected.
		b.list("/spec/initContainers", len(p.Spec.InitContainers) > 0, true, c.before, values)
	} else {
		// These go last, so that the connections of the pod's own init containers are not redirected: no proxy runs yet.
		b.list("/spec/initContainers", len(p.Spec.InitContainers) > 0, false, c.before, values)
		b.list("/spec/containers", true, false, []object{c.sidecar}, values)
	}
	b.list("/spec/volumes", len(p.Spec.Volumes) > 0, false, c.volumes, values)
	b.annotate(p.Metadata.Annotations, StatusKey, c.status)
	if v.patch, err = json.Marshal(b); err != nil {
		return nil, fmt.Errorf("encoding a patch: %w", err)
	}
	return v, nil
}

// injected reports whether a pod has already been injected, as when the API server asks again because another webhook
// has changed the pod. A pod that has the annotation but no sidecar is refused, because it would bypass the mesh.
func (c *compiled) injected(p *pod) (bool, error) {
	if p.Metadata.Annotations[StatusKey] == "" {
		return false, nil
	}
	in := p.Spec.Containers
	if c.native {
		in = p.Spec.InitContainers
	}
	if !slices.ContainsFunc(in, func(x container) bool { return x.Name == c.sidecar.name }) {
		return false, refuse("the annotation %s says that the pod is injected, but the pod has no container %q: "+
			"remove the annotation", StatusKey, c.sidecar.name)
	}
	return true, nil
}

// collides refuses a pod that already has a container or volume with a name of the mesh, or that mounts a volume of the
// mesh. The name would be ambiguous, and a pod could bring its own sidecar under the mesh's name.
func (c *compiled) collides(p *pod) error {
	const hint = "rename it, or label the pod " + InjectKey + ": \"false\""
	for _, list := range [][]container{p.Spec.Containers, p.Spec.InitContainers} {
		for _, x := range list {
			if x.Name == c.sidecar.name || named(c.before, x.Name) {
				return refuse("the pod has its own container named %q, a name that the mesh uses: %s", x.Name, hint)
			}
			for _, v := range slices.Concat(x.Mounts, x.Devices) {
				if named(c.volumes, v.Name) {
					return refuse("the container %.63q mounts the volume %q, which is the mesh's", x.Name, v.Name)
				}
			}
		}
	}
	for _, x := range p.Spec.Volumes {
		if named(c.volumes, x.Name) {
			return refuse("the pod has its own volume named %q, a name that the mesh uses: %s", x.Name, hint)
		}
	}
	return nil
}

// maxPorts is the maximum number of ports in an annotation.
const maxPorts = 1000

// portsOf returns the ports in an annotation, and those that are configured for all pods, without duplicates, separated
// by commas.
func portsOf(annotations map[string]string, key string, all []int) (string, error) {
	ports := slices.Clone(all)
	if text := annotations[key]; strings.TrimSpace(text) != "" {
		if strings.Count(text, ",") >= maxPorts {
			return "", refuse("annotation %s: more than %d ports", key, maxPorts)
		}
		for word := range strings.SplitSeq(text, ",") {
			p, err := strconv.ParseUint(strings.TrimSpace(word), 10, 16)
			if err != nil || p == 0 {
				return "", refuse("annotation %s: %.40q is not a port: give numbers from 1 to 65535, separated by commas",
					key, word)
			}
			ports = append(ports, int(p))
		}
	}
	slices.Sort(ports)
	var b []byte
	for i, p := range slices.Compact(ports) {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(p), 10)
	}
	return string(b), nil
}

// moveProbes makes the sidecar answer the probes that the kubelet cannot send to the containers itself, because it has
// no certificate of the mesh. The returned table holds the probes that the sidecar then sends to the containers.
func (c *compiled) moveProbes(b *patch, p *pod, v *verdict) probes.Table {
	table := probes.Table{}
	if c.ProbePort == 0 {
		return table
	}
	for i := range p.Spec.Containers {
		c.moveProbesOf(b, &p.Spec.Containers[i], fmt.Sprintf("/spec/containers/%d/", i), table, v)
	}
	for i := range p.Spec.InitContainers { // must precede b.list, which changes their indexes
		if x := &p.Spec.InitContainers[i]; x.Restart == restartAlways {
			c.moveProbesOf(b, x, fmt.Sprintf("/spec/initContainers/%d/", i), table, v)
		}
	}
	return table
}

// moveProbesOf moves the probes of one container. path is the container's JSON pointer in the pod, with a final slash.
func (c *compiled) moveProbesOf(b *patch, x *container, path string, table probes.Table, v *verdict) {
	for _, of := range []struct {
		key  string
		kind string
		p    *probe
	}{{"livenessProbe", "liveness", x.Liveness}, {"readinessProbe", "readiness", x.Readiness},
		{"startupProbe", "startup", x.Startup}} {
		if of.p == nil {
			continue
		}
		ask, from, why := of.p.ask(x)
		if why != "" {
			v.warnings = append(v.warnings, fmt.Sprintf("the %s probe of %.40q stays as it is: %s", of.kind, x.Name, why))
		}
		if ask == nil {
			continue
		}
		to := probes.Path(x.Name, of.kind)
		table[to] = *ask
		at := path + of.key + "/"
		if from != "httpGet" {
			b.remove(at + from)
		}
		b.add(at+"httpGet", map[string]any{"path": to, "port": c.ProbePort})
	}
}

// ask returns the request that the sidecar must make in place of the kubelet, and the key of the probe that holds this
// request, such as "httpGet". If the probe is not moved, ask is nil, and why is the reason, which is empty for a probe
// that runs a process in the container.
func (p *probe) ask(in *container) (ask *probes.Ask, key, why string) {
	timeout := max(p.Timeout, 1)
	switch {
	case p.HTTP != nil:
		n, why := p.HTTP.portOf(in)
		if why != "" {
			return nil, "", why
		}
		h := &probes.HTTP{Path: p.HTTP.Path, Port: n, TLS: strings.EqualFold(p.HTTP.Scheme, "HTTPS")}
		for _, x := range p.HTTP.Headers {
			h.Headers = append(h.Headers, probes.Header{Name: x.Name, Value: x.Value})
		}
		return &probes.Ask{HTTP: h, Timeout: timeout}, "httpGet", ""
	case p.TCP != nil:
		n, why := p.TCP.portOf(in)
		if why != "" {
			return nil, "", why
		}
		return &probes.Ask{TCP: &probes.TCP{Port: n}, Timeout: timeout}, "tcpSocket", ""
	case p.GRPC != nil:
		if p.GRPC.Port < 1 || p.GRPC.Port > 65535 {
			return nil, "", "its port is not known"
		}
		return &probes.Ask{GRPC: &probes.GRPC{Port: p.GRPC.Port, Service: p.GRPC.Service}, Timeout: timeout}, "grpc", ""
	}
	return nil, "", "" // exec, which needs no network
}

// portOf returns the port of the container that a probe connects to, or why the probe cannot be moved.
func (p *tcpProbe) portOf(in *container) (port int, why string) {
	if p.Host != "" {
		return 0, "it connects to another host"
	}
	port, ok := in.number(p.Port)
	if !ok {
		return 0, "its port is not known"
	}
	return port, ""
}

// number resolves a port that is given by number or by name, and reports whether it is valid.
func (c *container) number(raw json.RawMessage) (int, bool) {
	var n int
	if json.Unmarshal(raw, &n) == nil {
		return n, n >= 1 && n <= 65535
	}
	var name string
	if json.Unmarshal(raw, &name) != nil {
		return 0, false
	}
	for _, p := range c.Ports {
		if p.Name == name && name != "" {
			return p.ContainerPort, p.ContainerPort >= 1 && p.ContainerPort <= 65535
		}
	}
	return 0, false
}

// patch is a JSON patch (RFC 6902).
type patch []operation

type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

func (p *patch) add(path string, value any) { *p = append(*p, operation{"add", path, value}) }

func (p *patch) remove(path string) { *p = append(*p, operation{Op: "remove", Path: path}) }

// list adds objects to a list, at its beginning or its end, and makes the list if there is none.
func (p *patch) list(path string, exists, first bool, objects []object, values map[string]string) {
	all := lists.Map(objects, func(o object) json.RawMessage { return o.json.with(values) })
	if len(all) > 0 && !exists {
		p.add(path, all)
		return
	}
	for i, v := range all {
		if first {
			p.add(path+"/"+strconv.Itoa(i), v)
		} else {
			p.add(path+"/-", v)
		}
	}
}

// annotate adds an annotation to a pod that has the given ones.
func (p *patch) annotate(has map[string]string, key, value string) {
	if len(has) == 0 {
		p.add("/metadata/annotations", map[string]string{key: value})
		return
	}
	// RFC 6901, section 3, requires these escapes in a JSON pointer.
	p.add("/metadata/annotations/"+strings.NewReplacer("~", "~0", "/", "~1").Replace(key), value)
}
