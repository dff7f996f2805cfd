package agents

import (
	"context"
	"errors"
	"io"
	"net"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"tare/internal/lib/fault"
	"tare/internal/lib/text"
	"tare/internal/scale/remote"
)

// Hint returns a hint for an error of the API server; empty if there is none.
func Hint(err error) string {
	switch {
	case apierrors.IsUnauthorized(err):
		return "log in to the cluster again, or choose another user or context: kubectl config get-contexts"
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return "wait until the namespace is gone: kubectl get namespaces"
	case apierrors.IsForbidden(err):
		return "docs/kubernetes.md has the rights that it needs; kubectl tare doctor says which are missing"
	}
	if _, is := errors.AsType[net.Error](err); is {
		return "check that kubectl reaches the cluster: kubectl version"
	}
	return ""
}

// maxReason is the maximum length of a reason that is shown, in bytes.
const maxReason = 200

// reason returns a short reason why an agent gave no window.
func reason(err error) string {
	if of, is := errors.AsType[*fault.Error](err); is && of.Err != nil {
		err = of.Err // this leaves out the agent's address, because the node is named anyway
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "its agent did not answer in time"
	case errors.Is(err, errEnded), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return errEnded.Error()
	}
	if refusal, is := errors.AsType[*remote.Refusal](err); is && refusal.Denied() {
		return "its agent wants TLS or a password (--agents-ca, --agents-user, --agents-password-file): " +
			text.ClipLine(err.Error(), maxReason)
	}
	return text.ClipLine(err.Error(), maxReason)
}
