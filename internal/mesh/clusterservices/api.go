package clusterservices

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"tare/internal/experiment/part"
	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
	"tare/internal/lib/text"
)

// serviceAccount is the directory in which a pod with a service account finds its token
// (kubernetes.io/docs/tasks/run-application/access-api-from-pod).
const serviceAccount = "/var/run/secrets/kubernetes.io/serviceaccount"

const (
	needsAccount = "give the application a service account: cluster: {accounts: {NAME: tare-services}}, with the rights " +
		"of deploy/kubernetes/services.yaml"
	maxAnswer     = 8 << 20               // bytes of an answer of the API server
	maxWhy        = 300                   // bytes of its reason for a refusal
	answersWithin = 15 * time.Second      // limit of a call with its retries; shorter than the load waits for a change
	leastWait     = 50 * time.Millisecond // before a retry, even if the API server allows it at once
)

// api is a client of the cluster's API server, with the rights of the pod's service account. Kubernetes' own client,
// which kubectl-tare uses, would enlarge the binary that runs in every pod and on every machine by half.
type api struct {
	http      http.Client
	server    string // host:port
	token     string
	namespace string
	pod       string // the name of this pod
}

// inPod returns the client of this pod. dir is the directory with the files of the pod's service account.
func inPod(dir string) (*api, error) {
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.Usage, "cluster-services", needsAccount, "this process has no service account of a pod")
	}
	a := &api{token: strings.TrimSpace(string(token)),
		server: net.JoinHostPort(os.Getenv("KUBERNETES_SERVICE_HOST"), os.Getenv("KUBERNETES_SERVICE_PORT"))}
	namespace, err2 := os.ReadFile(filepath.Join(dir, "namespace"))
	authority, err3 := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err := errors.Join(err, err2, err3); err != nil {
		return nil, fmt.Errorf("reading the pod's service account: %w", err)
	}
	a.namespace, a.pod = strings.TrimSpace(string(namespace)), os.Getenv(part.PodVariable)
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(authority) {
		return nil, fault.New(fault.Machine, dir, "", "the pod's service account has no certificate of the API server")
	}
	a.http = http.Client{Transport: &http.Transport{ForceAttemptHTTP2: true,
		TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}}}
	return a, nil
}

// object is an object of the API, as JSON.
type object = map[string]any

// Paths of the API, as formats with the namespace as their argument.
const (
	pods           = "/api/v1/namespaces/%s/pods"
	servicesPath   = "/api/v1/namespaces/%s/services"
	endpointSlices = "/apis/discovery.k8s.io/v1/namespaces/%s/endpointslices"
)

// call sends a request to a path (one of the formats above, followed by more) with an object as its body, and decodes
// the answer into out. The object and out may be nil. If the API server is busy and answers 429 (Too Many Requests),
// call sends the request again after the time in Retry-After, until answersWithin has passed. This is safe, because API
// Priority and Fairness rejects a request before it has any effect
// (kubernetes.io/docs/concepts/cluster-administration/flow-control).
func (a *api) call(ctx context.Context, method, path, more string, in object, out any) error {
	var body []byte
	if in != nil {
		var err error
		if body, err = json.Marshal(in); err != nil {
			return err
		}
	}
	path = fmt.Sprintf(path, a.namespace)
	ctx, cancel := context.WithTimeout(ctx, answersWithin)
	defer cancel()
	for {
		status, after, err := a.once(ctx, method, path, more, body, out)
		seconds, bad := strconv.Atoi(after)
		if status != http.StatusTooManyRequests || bad != nil {
			return err
		}
		if pace.Sleep(ctx, max(time.Duration(seconds)*time.Second, leastWait)) != nil {
			return err // the API server's last answer says more than "deadline exceeded"
		}
	}
}

// once sends the request of a call once. It returns the answer's HTTP status, or 0 without an answer, and the value of
// its Retry-After header.
func (a *api) once(ctx context.Context, method, path, more string, body []byte, out any) (
	status int, after string, err error,
) {
	r, err := http.NewRequestWithContext(ctx, method, "https://"+a.server+path+more, bytes.NewReader(body))
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Authorization", "Bearer "+a.token)
	r.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		r.Header.Set("Content-Type", "application/merge-patch+json")
	}
	answer, err := a.http.Do(r)
	if err != nil {
		return status, after, fault.Wrap(err, fault.Machine, a.server, "", "the API server does not answer")
	}
	defer answer.Body.Close()
	status, after = answer.StatusCode, answer.Header.Get("Retry-After")
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return status, after, fault.Wrap(err, fault.Machine, a.server, "", "the API server's answer ends early")
	}
	if status/100 != 2 {
		var said struct{ Message string }
		_ = json.Unmarshal(data, &said) // something else may have answered, in another format
		hint := ""
		if status == http.StatusForbidden || status == http.StatusUnauthorized {
			hint = needsAccount
		}
		return status, after, fault.New(fault.Machine, "namespace "+a.namespace, hint, "%s %s: %s: %s", method, path,
			answer.Status, text.ClipLine(cmp.Or(said.Message, string(data)), maxWhy))
	}
	if out == nil {
		return status, after, nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return status, after, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return status, after, nil
}
