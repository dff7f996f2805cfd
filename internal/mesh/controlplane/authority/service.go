package authority

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Service signs certificates for agents that keep their private keys to themselves, as
// istio.v1.auth.IstioCertificateService/CreateCertificate. The first time, an agent authenticates with the token of a
// service account ("authorization: Bearer TOKEN"), and later with its current certificate, by TLS. It gets a
// certificate of the same identity; a request for another identity is refused and logged.
//
// The peer is authenticated before its request is read. Requests are limited in size, kind of key and rate.
type Service struct {
	a        *Authority
	accounts *ServiceAccounts // nil: none
	signing  *limits          // for certificates, by identity and pod
	refused  *limits          // for tokens that are not valid, by host
}

// requester is the peer that requests a certificate.
type requester struct {
	id  string
	pod string // the pod, if a service account's token names it; otherwise empty
}

// ServiceOptions configures a Service. The zero value is valid.
type ServiceOptions struct {
	Rate  float64 // signatures per second for each identity; default DefaultRate
	Burst float64 // signatures at once for each identity; default DefaultBurst
	// Accounts verifies tokens, each of which can be used any number of times: they expire soon, and the kubelet
	// replaces them. With tokens, the limits are for each pod, because the pods of a deployment share an identity.
	// nil: certificates are only renewed.
	Accounts *ServiceAccounts
}

// The defaults of ServiceOptions.
const (
	DefaultRate  = 1
	DefaultBurst = 20
)

// Limits on the invalid tokens of one host: a burst, and a rate per second. Above them, the host's tokens are refused
// without being verified.
const (
	refusedBurst = 100
	refusedRate  = 10
)

// NewService makes the service of an authority.
func NewService(a *Authority, o ServiceOptions) *Service {
	signing := newLimits(cmp.Or(o.Rate, DefaultRate), cmp.Or(o.Burst, DefaultBurst))
	return &Service{a, o.Accounts, signing, newLimits(refusedRate, refusedBurst)}
}

// Register registers the service with a gRPC server, which must use Authority.ServerCredentials: tokens are accepted
// over TLS only, and the service must know the peer's identity.
func (s *Service) Register(r grpc.ServiceRegistrar) {
	// On the wire a stream of one message each way is a unary call. Declared as a stream, it lets the peer be
	// authenticated before gRPC reads its message.
	r.RegisterService(&grpc.ServiceDesc{
		ServiceName: serviceName, HandlerType: (*any)(nil), Metadata: "security/v1alpha1/ca.proto",
		Streams: []grpc.StreamDesc{{
			StreamName: callName, ClientStreams: true, ServerStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return s.serve(stream) },
		}},
	}, s)
}

func (s *Service) serve(stream grpc.ServerStream) error {
	ctx := stream.Context()
	who, err := s.authenticate(ctx)
	if err != nil {
		return err
	}
	if !s.signing.take(who.id + " " + who.pod) {
		return status.Errorf(codes.ResourceExhausted, "too many certificates for %s: wait a while", who.id)
	}
	var m emptypb.Empty // all fields are unknown to this type, so it keeps the message as bytes
	if err := stream.RecvMsg(&m); err != nil {
		return err
	}
	var l leaf
	var t *trust
	r, err := readMessage(m.ProtoReflect().GetUnknown())
	if err == nil {
		l, t, err = s.sign(who.id, r)
	}
	if err != nil {
		s.a.refuse(ctx, "%s a certificate: %s", who.id, shown(err.Error()))
		return refusal(err)
	}
	return stream.SendMsg(responseMessage(l.pem, t.pem))
}

// refusal returns the gRPC status with which a certificate request is refused because of err.
func refusal(err error) error {
	code := codes.InvalidArgument
	if errors.Is(err, errOther) {
		code = codes.PermissionDenied
	}
	return status.Error(code, err.Error())
}

// authenticate identifies the peer.
func (s *Service) authenticate(ctx context.Context) (requester, error) {
	id, err := s.a.Identity(ctx)
	if err == nil {
		err = s.a.check(id)
	}
	if err == nil {
		return requester{id: id}, nil
	}
	p, ok := peer.FromContext(ctx)
	if !ok || p.AuthInfo == nil || p.AuthInfo.AuthType() != "tls" {
		return requester{}, status.Error(codes.Unauthenticated, "certificates are signed over TLS only")
	}
	host := hostOf(p.Addr)
	if !s.refused.open(host) {
		return requester{}, status.Error(codes.ResourceExhausted, "too many tokens that are not valid: wait a while")
	}
	if token, shown := bearer(ctx); shown {
		var who requester
		if who.id, who.pod, err = s.accounts.identity(s.a.TrustDomain(), token); err == nil {
			err = s.a.check(who.id)
		}
		if err == nil {
			return who, nil
		}
	}
	s.refused.take(host)
	s.a.refuse(ctx, "a certificate: %s", err)
	return requester{}, status.Error(codes.Unauthenticated, err.Error())
}

// bearer returns the token in a call's metadata, and reports whether there is one.
func bearer(ctx context.Context) (Token, bool) {
	for _, v := range metadata.ValueFromIncomingContext(ctx, "authorization") {
		if token, ok := strings.CutPrefix(v, bearerPrefix); ok {
			return Token(token), true
		}
	}
	return "", false
}

const bearerPrefix = "Bearer "

// sign checks a request and signs it with the current trust.
func (s *Service) sign(who string, r request) (leaf, *trust, error) {
	for _, wanted := range []string{r.subject, r.impersonated} {
		if wanted != "" && wanted != who {
			return leaf{}, nil, fmt.Errorf("%w, %s", errOther, shown(wanted))
		}
	}
	key, err := parseRequest(r.csr, who)
	if err != nil {
		return leaf{}, nil, err
	}
	life := s.a.o.Life
	if r.seconds > 0 && r.seconds < int64(life/time.Second) {
		life = time.Duration(r.seconds) * time.Second
	}
	for {
		t := s.a.trust.Load()
		l, err := s.a.sign(t, who, key, life)
		if err != nil {
			return leaf{}, nil, err
		}
		if s.a.note(t, l) {
			return l, t, nil
		}
	}
}

// note records when an agent's certificate expires. It returns false if the trust has changed since the certificate
// was signed.
func (a *Authority) note(t *trust, l leaf) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.trust.Load() != t {
		return false
	}
	a.signed.now = latest(a.signed.now, l.notAfter)
	return true
}
