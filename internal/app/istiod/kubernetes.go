package istiod

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// kubernetes is the API of a cluster in which there is nothing: every list is empty, every watch silent, every object
// missing. What is written is accepted and forgotten. istiod asks for the objects of a cluster even where its services
// come from files.
type kubernetes struct {
	server *http.Server
	at     string // host:port
	ended  chan error
	close  sync.Once
}

// The groups and resources that a client may ask the API for before it asks for objects. A list of a resource that is
// not there is answered like any other.
var groups = []string{
	"admissionregistration.k8s.io/v1", "apiextensions.k8s.io/v1", "apps/v1", "authentication.k8s.io/v1",
	"authorization.k8s.io/v1", "certificates.k8s.io/v1", "coordination.k8s.io/v1", "discovery.k8s.io/v1",
	"networking.k8s.io/v1", "policy/v1",
}

// newKubernetes serves at a free port of the loopback interface.
func newKubernetes() (*kubernetes, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("listening for istiod's questions: %w", err)
	}
	k := &kubernetes{at: l.Addr().String(), ended: make(chan error, 1)}
	k.server = &http.Server{Handler: http.HandlerFunc(k.answer), ReadHeaderTimeout: 10 * time.Second}
	go func() { k.ended <- k.server.Serve(l) }()
	return k, nil
}

// Close ends every watch, and waits for the server.
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

// answer is the whole API.
func (k *kubernetes) answer(w http.ResponseWriter, r *http.Request) {
	defer r.Body.Close()
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	query := r.URL.Query()
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
		reply(w, http.StatusUnprocessableEntity, status("Invalid", 422, "list first")) // the client then does
	case query.Get("watch") == "true":
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case isList(parts):
		list := object{"metadata": object{"resourceVersion": "1"}, "items": []object{}}
		if strings.Contains(r.Header.Get("Accept"), "as=PartialObjectMetadataList") {
			list["kind"], list["apiVersion"] = "PartialObjectMetadataList", "meta.k8s.io/v1"
		}
		reply(w, http.StatusOK, list)
	default:
		missing(w, r)
	}
}

// isList says whether a path names a kind of objects and not one of them: /api/v1/pods, /api/v1/namespaces/x/pods,
// /apis/GROUP/VERSION/KIND and the same below namespaces.
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
	_ = json.NewEncoder(w).Encode(o) // the client may have gone
}
