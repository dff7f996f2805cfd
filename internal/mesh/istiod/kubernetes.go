package istiod

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// kubernetes serves the API of a cluster that contains only Objects and the definitions of their kinds: every other
// list is empty, every other watch silent, every other object missing. It accepts writes and discards them. istiod
// needs such an API even if its services come from files.
type kubernetes struct {
	server *http.Server
	at     string // host:port
	ended  chan error
	close  sync.Once

	mu      sync.Mutex
	version int64 // the resource version of the latest change
	objects map[objectKey]stored
	changed chan struct{} // closed at the next change
}

// Object is an object of one of the supported kinds.
type Object struct {
	Kind            string // ServiceEntry or Sidecar
	Namespace, Name string
	Spec            []byte // JSON
}

// objectKey identifies an object. It contains the plural of the object's kind, as paths of the API do.
type objectKey struct{ plural, namespace, name string }

// plurals maps the supported kinds of objects to their plurals. All kinds are in Istio's API group for networking.
var plurals = map[string]string{"ServiceEntry": "serviceentries", "Sidecar": "sidecars"}

// kindOf returns the kind with the given plural, or "" if it is not a supported kind.
func kindOf(plural string) string {
	for kind, p := range plurals {
		if p == plural {
			return kind
		}
	}
	return ""
}

// stored is an object as JSON, with the version of its latest change.
type stored struct {
	version int64
	json    []byte
}

// The paths of the objects, and of the CustomResourceDefinitions from which istiod learns that their kinds exist.
const (
	group       = "networking.istio.io"
	groupPath   = "/apis/" + group + "/v1/"
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
)

// put adds objects, or replaces those of the same names, and wakes all watches.
func (k *kubernetes) put(objects ...Object) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, o := range objects {
		k.version++
		k.objects[objectKey{plurals[o.Kind], o.Namespace, o.Name}] = stored{k.version, fmt.Appendf(nil,
			`{"apiVersion":"`+group+`/v1","kind":%q,"metadata":{"name":%q,"namespace":%q,`+
				`"resourceVersion":"%d","generation":%d,"uid":%q,"creationTimestamp":"2020-01-01T00:00:00Z"},"spec":%s}`,
			o.Kind, o.Name, o.Namespace, k.version, k.version, o.Kind+"-"+o.Namespace+"-"+o.Name, o.Spec)}
	}
	close(k.changed)
	k.changed = make(chan struct{})
}

// since returns the objects of a kind that have changed after a version, by the time of their change, the current
// version, and a channel that is closed at the next change.
func (k *kubernetes) since(plural string, version int64) (list []stored, now int64, changed <-chan struct{}) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for key, s := range k.objects {
		if key.plural == plural && s.version > version {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b stored) int { return cmp.Compare(a.version, b.version) })
	return list, k.version, k.changed
}

// list answers with all objects of a kind.
func (k *kubernetes) list(w http.ResponseWriter, plural string) {
	list, version, _ := k.since(plural, 0)
	items := make([]json.RawMessage, len(list))
	for i, s := range list {
		items[i] = s.json
	}
	reply(w, http.StatusOK, object{"kind": kindOf(plural) + "List", "apiVersion": group + "/v1",
		"metadata": object{"resourceVersion": strconv.FormatInt(version, 10)}, "items": items})
}

// watch sends the objects of a kind that have changed after a version, and then each further change, until the client
// has gone.
func (k *kubernetes) watch(w http.ResponseWriter, r *http.Request, plural string, version int64) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusOK)
	for {
		list, now, changed := k.since(plural, version)
		for _, s := range list {
			if _, err := fmt.Fprintf(w, "{\"type\":\"MODIFIED\",\"object\":%s}\n", s.json); err != nil {
				return
			}
		}
		version = now
		w.(http.Flusher).Flush()
		select {
		case <-changed:
		case <-r.Context().Done():
			return
		}
	}
}

// groups are the API groups that a client may look up before it asks for objects. A request to list an unknown resource
// is answered like any other.
var groups = []string{
	"admissionregistration.k8s.io/v1", "apiextensions.k8s.io/v1", "apps/v1", "authentication.k8s.io/v1",
	"authorization.k8s.io/v1", "certificates.k8s.io/v1", "coordination.k8s.io/v1", "discovery.k8s.io/v1",
	"networking.k8s.io/v1", "policy/v1",
}

// newKubernetes starts to serve, without TLS, at a free port of 127.0.0.1. The caller must close the result.
func newKubernetes() (*kubernetes, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for istiod's requests: %w", err)
	}
	k := &kubernetes{at: l.Addr().String(), ended: make(chan error, 1), version: 1, objects: map[objectKey]stored{},
		changed: make(chan struct{})}
	k.server = &http.Server{Handler: http.HandlerFunc(k.answer), ReadHeaderTimeout: 10 * time.Second}
	go func() { k.ended <- k.server.Serve(l) }()
	return k, nil
}

// Close stops listening, and closes all connections, which ends every watch. A second Close does nothing.
func (k *kubernetes) Close() error {
	err := error(nil)
	k.close.Do(func() {
		err = k.server.Close()
		if ended := <-k.ended; !errors.Is(ended, http.ErrServerClosed) {
			err = errors.Join(err, ended)
		}
	})
	return err
}

type object = map[string]any

// answer serves all requests.
func (k *kubernetes) answer(w http.ResponseWriter, r *http.Request) {
	defer r.Body.Close()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	query := r.URL.Query()
	ours, _ := strings.CutPrefix(r.URL.Path, groupPath)
	switch {
	case r.URL.Path == "/version":
		reply(w, http.StatusOK, object{"major": "1", "minor": "34", "gitVersion": "v1.34.0"})
	case r.URL.Path == "/api":
		reply(w, http.StatusOK, object{"kind": "APIVersions", "apiVersion": "v1", "versions": []string{"v1"}})
	case r.URL.Path == "/apis":
		reply(w, http.StatusOK, object{"kind": "APIGroupList", "apiVersion": "v1", "groups": apiGroups()})
	case len(parts) == 2 && parts[0] == "api", len(parts) == 3 && parts[0] == "apis":
		reply(w, http.StatusOK, object{"kind": "APIResourceList", "apiVersion": "v1",
			"groupVersion": strings.Join(parts[1:], "/"), "resources": []object{}})
	case r.Method == http.MethodPost, r.Method == http.MethodPut, r.Method == http.MethodPatch:
		var o object
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&o); err != nil {
			missing(w, r)
			return
		}
		reply(w, http.StatusOK, o)
	case query.Get("sendInitialEvents") == "true":
		reply(w, http.StatusUnprocessableEntity, status("Invalid", 422, "list first")) // the client then lists first
	case kindOf(ours) != "" && query.Get("watch") == "true":
		version, _ := strconv.ParseInt(query.Get("resourceVersion"), 10, 64) // 0 if it is invalid: all objects are newer
		k.watch(w, r, ours, version)
	case kindOf(ours) != "":
		k.list(w, ours)
	case query.Get("watch") == "true":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case isList(parts):
		items := []object{}
		if r.URL.Path == definitions {
			for _, plural := range plurals {
				items = append(items, object{"metadata": object{"name": plural + "." + group, "resourceVersion": "1"}})
			}
		}
		list := object{"metadata": object{"resourceVersion": "1"}, "items": items}
		if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
			list["kind"], list["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
		}
		reply(w, http.StatusOK, list)
	default:
		missing(w, r)
	}
}

// isList reports whether a path names a kind of objects rather than one object: /api/v1/pods,
// /api/v1/namespaces/x/pods, /apis/GROUP/VERSION/KIND or /apis/GROUP/VERSION/namespaces/x/KIND.
func isList(parts []string) bool {
	rest := []string(nil)
	switch {
	case len(parts) > 2 && parts[0] == "api":
		rest = parts[2:]
	case len(parts) > 3 && parts[0] == "apis":
		rest = parts[3:]
	}
	return len(rest) == 1 || len(rest) == 3 && rest[0] == "namespaces"
}

func apiGroups() (all []object) {
	for _, g := range groups {
		name, v, _ := strings.Cut(g, "/")
		version := object{"groupVersion": g, "version": v}
		all = append(all, object{"name": name, "versions": []object{version}, "preferredVersion": version})
	}
	return all
}

// missing answers that there is no object at the requested path.
func missing(w http.ResponseWriter, r *http.Request) {
	reply(w, http.StatusNotFound, status("NotFound", 404, r.URL.Path+" not found"))
}

func status(reason string, code int, message string) object {
	return object{"kind": "Status", "apiVersion": "v1", "metadata": object{}, "status": "Failure",
		"reason": reason, "code": code, "message": message}
}

func reply(w http.ResponseWriter, code int, o object) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(o) // an error means that the client has gone
}
