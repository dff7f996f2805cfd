// Package injection is the webhook that makes pods part of the mesh. The API server of a Kubernetes cluster asks it
// what to add to each new pod (AdmissionReview, admission.k8s.io/v1). The webhook answers with a JSON patch, which adds
// the proxy, the redirection of connections to the proxy, and volumes. The patch also makes the sidecar answer the
// probes that the kubelet could not send through the proxy.
package injection

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"mime"
	"net"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/semaphore"

	"tare/internal/lib/limit"
	"tare/internal/mesh/controlplane/authority"
)

// Limits of a webhook.
const (
	// MaxReview is the maximum size of a review, in bytes. The API server accepts objects of up to 3 MiB
	// (k8s.io/apiserver, MaxRequestBodyBytes), and a review of a creation contains the object once.
	MaxReview = 4 << 20
	// maxMemory is the memory, in bytes, that all reviews in progress may take; further reviews wait. A review is read in
	// pieces (of piece bytes), and takes several times its size (growth), because it is also held decoded, as a patch, and
	// as the patch in base64.
	maxMemory = 256 << 20
	piece     = 32 << 10
	growth    = 16
	// maxObjects is the maximum number of JSON objects in a review. A pod with a hundred containers has about 5,000.
	maxObjects = 50_000
	// bodyPatience is the time in which a review must arrive.
	bodyPatience = 3 * time.Second
	// patience is the time in which a review must be answered. API servers give up after 10 s by default
	// (k8s.io/api/admissionregistration/v1, timeoutSeconds).
	patience = 10 * time.Second
)

// Options configures a Webhook.
type Options struct {
	Authority *authority.Authority // has the trust domain of the pods' identities, and the roots that proxies trust
	Metrics   *Metrics             // nil: nothing is counted
}

// Webhook answers reviews. It is an http.Handler.
type Webhook struct {
	o      Options
	c      *compiled
	memory *semaphore.Weighted
}

// New makes the webhook of a configuration.
func New(c *Config, o Options) (*Webhook, error) {
	d, err := c.compile()
	if err != nil {
		return nil, err
	}
	return &Webhook{o: o, c: d, memory: semaphore.NewWeighted(maxMemory)}, nil
}

// The results of reviews.
const (
	resultInjected  = "injected"
	resultSkipped   = "skipped"
	resultRefused   = "refused" // the pod is invalid, or asks for something that is not allowed
	resultMalformed = "malformed"
	resultFailed    = "failed"
)

// ServeHTTP answers a review, which must be a POST of JSON. An invalid review gets an HTTP error, after which the API
// server applies the webhook's failurePolicy. A review of a pod that cannot be injected gets an answer that refuses
// the pod.
func (w *Webhook) ServeHTTP(to http.ResponseWriter, r *http.Request) {
	began := time.Now()
	result, why := w.serve(to, r)
	w.o.Metrics.reviewed(result, why, time.Since(began))
}

func (w *Webhook) serve(to http.ResponseWriter, r *http.Request) (result, why string) {
	malformed := func(code int, format string, args ...any) (string, string) {
		http.Error(to, fmt.Sprintf(format, args...), code)
		return resultMalformed, fmt.Sprint(code)
	}
	if r.Method != http.MethodPost {
		to.Header().Set("Allow", http.MethodPost)
		return malformed(http.StatusMethodNotAllowed, "reviews come by POST")
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return malformed(http.StatusUnsupportedMediaType, "reviews are application/json")
	}
	if r.ContentLength > MaxReview {
		return malformed(http.StatusRequestEntityTooLarge, "a review has at most %d bytes", MaxReview)
	}
	ctx, stop := context.WithTimeout(r.Context(), patience)
	defer stop()
	body, held, err := w.read(ctx, to, r)
	defer func() { w.memory.Release(held) }()
	_, large := errors.AsType[*http.MaxBytesError](err)
	switch {
	case large:
		return malformed(http.StatusRequestEntityTooLarge, "a review has at most %d bytes", MaxReview)
	case errors.Is(err, errBusy):
		return malformed(http.StatusServiceUnavailable, "there are too many reviews")
	case err != nil:
		return malformed(http.StatusBadRequest, "the review could not be read")
	case bytes.Count(body, []byte("{")) > maxObjects:
		return malformed(http.StatusRequestEntityTooLarge, "a review has at most %d objects", maxObjects)
	}
	var in review
	if err := json.Unmarshal(body, &in); err != nil {
		return malformed(http.StatusBadRequest, "the review cannot be decoded: %.200s", err)
	}
	if in.APIVersion != reviewVersion || in.Kind != reviewKind {
		return malformed(http.StatusBadRequest, "the review is of %.60q, %.60q, and not of %s, %s", in.APIVersion, in.Kind,
			reviewVersion, reviewKind)
	}
	if in.Request == nil || in.Request.UID == "" {
		return malformed(http.StatusBadRequest, "the review has no request with a uid")
	}
	out, result, why := w.answer(in.Request)
	if out == nil { // an HTTP error, so that the webhook's failurePolicy decides
		http.Error(to, "the review could not be answered", http.StatusInternalServerError)
		return result, why
	}
	answer, err := json.Marshal(review{APIVersion: reviewVersion, Kind: reviewKind, Response: out})
	if err != nil {
		http.Error(to, "the answer could not be encoded", http.StatusInternalServerError)
		return resultFailed, ""
	}
	to.Header().Set("Content-Type", "application/json")
	_, _ = to.Write(answer) // an error means that the client has gone
	return result, why
}

// errBusy means that there is no memory for another review.
var errBusy = errors.New("there are too many reviews")

// read reads a body. It acquires memory for one piece after the other, as bytes arrive, and not for the length that the
// peer has announced. A peer that announces a long body and sends nothing thus holds the memory for one piece only. The
// caller must release held, even after an error.
func (w *Webhook) read(ctx context.Context, to http.ResponseWriter,
	r *http.Request) (body []byte, held int64, err error) {
	// A server that does not support deadlines has its own timeouts.
	_ = http.NewResponseController(to).SetReadDeadline(time.Now().Add(bodyPatience))
	from := http.MaxBytesReader(to, r.Body, MaxReview)
	for {
		if err := w.memory.Acquire(ctx, piece*growth); err != nil {
			return nil, held, errBusy
		}
		held += piece * growth
		at := len(body)
		body = slices.Grow(body, piece)[:at+piece]
		n, err := io.ReadFull(from, body[at:])
		body = body[:at+n]
		switch {
		case errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF):
			return body, held, nil
		case err != nil:
			return nil, held, err
		}
	}
}

// answer decides whether and how a pod is injected. If it cannot decide because of an internal error, a is nil. why is
// the reason for a result other than resultInjected.
func (w *Webhook) answer(r *request) (a *response, result, why string) {
	a = &response{UID: r.UID}
	refused := func(code int, reason, message string) (*response, string, string) {
		a.Status = &status{Code: code, Reason: reason, Message: "mesh: " + message}
		return a, resultRefused, reason
	}
	left := func(why string) (*response, string, string) {
		a.Allowed, a.Audit = true, map[string]string{"skipped": why}
		return a, resultSkipped, why
	}
	if r.Kind != (groupKind{Version: "v1", Kind: "Pod"}) || r.Operation != "CREATE" || r.SubResource != "" {
		return left("no-new-pod")
	}
	p := &pod{}
	if err := json.Unmarshal(r.Object, p); err != nil {
		return refused(http.StatusBadRequest, "BadRequest", fmt.Sprintf("the pod cannot be read: %.200s", err))
	}
	if p.Metadata == nil || p.Spec == nil || len(p.Spec.Containers) == 0 {
		return refused(http.StatusBadRequest, "BadRequest", "the pod has no metadata or no containers")
	}
	if why := w.c.skips(r.Namespace, p); why != "" {
		return left(why)
	}
	already, err := w.c.injected(p)
	if already {
		return left("injected")
	}
	var v *verdict
	if err == nil {
		v, err = w.c.inject(r.Namespace, w.o.Authority, p)
	}
	if refusal, is := errors.AsType[*refusal](err); is {
		return refused(http.StatusUnprocessableEntity, "Invalid", refusal.message)
	} else if err != nil {
		return nil, resultFailed, "internal"
	}
	a.Allowed, a.PatchType, a.Patch = true, "JSONPatch", v.patch
	// At most 4096 characters of all warnings are shown (k8s.io/apiserver/pkg/admission/plugin/webhook/generic).
	a.Warnings = v.warnings[:min(len(v.warnings), 10)]
	return a, resultInjected, ""
}

// Serve answers at l until ctx ends, and closes l. secure must have a certificate that API servers can verify with the
// caBundle of the webhook's configuration.
func (w *Webhook) Serve(ctx context.Context, l net.Listener, secure *tls.Config) error {
	return limit.Serve(ctx, l, &http.Server{
		Handler: w, TLSConfig: secure, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 2 * patience,
		WriteTimeout: 3 * patience, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
		ErrorLog: log.New(io.Discard, "", 0), // errors of peers that do not speak TLS are of no interest
	})
}
