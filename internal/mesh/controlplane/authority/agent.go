package authority

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	mathrand "math/rand/v2"
	"net/url"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/dynamicpb"

	"tare/internal/lib/fault"
	"tare/internal/lib/pace"
)

// Agent gets the certificate of one identity from a control plane, and renews it. It authenticates with a token the
// first time, and then with the current certificate. It makes a new key each time, and never sends it.
type Agent struct {
	Address  string // host:port of the control plane
	Identity string // the SPIFFE ID to request
	Roots    []byte // PEM: the roots to trust before the first answer
	// ReadToken reads the token, for the first request and again whenever the certificate has expired: the kubelet
	// replaces it from time to time.
	ReadToken func() (Token, error)

	// RenewAfter is as in Options. If the control plane does not answer, Run retries after a second, then after twice as
	// long each time, up to maxRetry.
	RenewAfter float64
	// OnChange is called by Run with each new certificate, for example to write files. An error ends Run.
	OnChange func(Credentials) error
	// Log gets a line for each failed request that Run retries; nil: nothing is logged.
	Log func(line string)
}

// Limits of an agent.
const (
	requestTimeout = 10 * time.Second
	firstRetry     = time.Second
	maxRetry       = 30 * time.Second
	maxAnswer      = 256 << 10 // bytes
)

// Request requests a certificate once: with the token, or with the current credentials if they have a certificate.
func (a *Agent) Request(ctx context.Context, current Credentials) (Credentials, error) {
	domain, err := domainOf(a.Identity)
	if err != nil {
		return Credentials{}, err
	}
	key, err := newKey()
	if err != nil {
		return Credentials{}, err
	}
	csr, err := newRequestFor(a.Identity, key)
	if err != nil {
		return Credentials{}, err
	}
	if len(current.Roots) == 0 {
		current.Roots = a.Roots
	}
	own := func() (Credentials, error) { return current, nil }
	conn, err := grpc.NewClient("passthrough:///"+a.Address,
		grpc.WithTransportCredentials(credentials.NewTLS(ClientTLS(own, ControlPlane(domain)))),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)))
	if err != nil {
		return Credentials{}, a.failed(err)
	}
	defer func() { _ = conn.Close() }() // the answer has been read, or the call has returned its own error
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	if len(current.Chain) == 0 {
		token, err := a.ReadToken()
		if err != nil {
			return Credentials{}, err
		}
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", bearerPrefix+string(token))
	}
	answer := newResponse()
	if err := conn.Invoke(ctx, methodName, requestMessage(string(csr)), answer); err != nil {
		return Credentials{}, a.failed(err)
	}
	c, err := a.accept(answer, key)
	return c, a.failed(err)
}

// failed adds to an error what the agent tried to do, without the token.
func (a *Agent) failed(err error) error {
	return fault.Wrap(err, fault.Machine, a.Address, "", "getting a certificate of %s from the control plane", a.Identity)
}

// accept checks an answer: the certificate must be for this key and identity, and signed by one of the roots in the
// answer, which must be of the same trust domain.
func (a *Agent) accept(answer *dynamicpb.Message, key crypto.Signer) (Credentials, error) {
	chain, roots, err := readResponse(answer)
	if err != nil {
		return Credentials{}, err
	}
	text, err := keyPEM(key)
	if err != nil {
		return Credentials{}, err
	}
	c := Credentials{Chain: chain, Key: text, Roots: roots}
	if err := c.check(); err != nil {
		return Credentials{}, err
	}
	if c.ID != a.Identity {
		return Credentials{}, fmt.Errorf("the certificate is for %s", shown(c.ID))
	}
	pool, err := c.Pool()
	if err != nil {
		return Credentials{}, err
	}
	domain, err := domainOf(a.Identity)
	if err != nil {
		return Credentials{}, err
	}
	if err := checkRoots(roots, domain); err != nil {
		return Credentials{}, err
	}
	shown, err := parseChain(chain)
	if err != nil {
		return Credentials{}, err
	}
	_, err = Verify(shown, pool, x509.ExtKeyUsageClientAuth, time.Now())
	return c, err
}

// Run gets a certificate and renews it until ctx ends, and then returns nil. It returns an error if the control plane
// refuses the request, or if OnChange fails; other errors are logged, and Run tries again.
func (a *Agent) Run(ctx context.Context) error {
	var c Credentials
	wait := firstRetry
	for {
		now := time.Now()
		if !c.NotAfter.IsZero() && !now.Before(c.NotAfter) {
			c = Credentials{Roots: c.Roots} // the certificate has expired, so the next request uses the token
		}
		next, err := a.Request(ctx, c)
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			c, wait = next, firstRetry
			if err := a.OnChange(c); err != nil {
				return err
			}
			if pace.Sleep(ctx, a.renewIn(c, now)) != nil {
				return nil
			}
			continue
		case final(err):
			return err
		}
		if a.Log != nil {
			a.Log(err.Error())
		}
		if pace.Sleep(ctx, wait) != nil {
			return nil
		}
		wait = min(2*wait, maxRetry)
	}
}

func (a *Agent) renewIn(c Credentials, now time.Time) time.Duration {
	part := a.RenewAfter
	if part <= 0 || part >= 1 {
		part = DefaultRenewAfter
	}
	return time.Duration(float64(c.NotAfter.Sub(now)) * part * (1 - jitter*mathrand.Float64()))
}

// final reports whether a retry is pointless.
func final(err error) bool {
	return slices.Contains([]codes.Code{
		codes.Unauthenticated, codes.PermissionDenied, codes.InvalidArgument, codes.Unimplemented,
	}, status.Code(err))
}

// newRequestFor makes a certificate request in PEM with a key, an identity, and nothing else.
func newRequestFor(id string, key crypto.Signer) ([]byte, error) {
	u, err := url.Parse(id)
	if err != nil {
		return nil, fmt.Errorf("the identity %s: %w", shown(id), err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{URIs: []*url.URL{u}}, key)
	if err != nil {
		return nil, fmt.Errorf("making a certificate request of %s: %w", id, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: requestBlock, Bytes: der}), nil
}
