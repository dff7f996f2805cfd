// Package injector is the subject that runs the webhook of this project's control plane (package injection) as a
// process, for a load of kind admission.
package injector

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"

	"github.com/go-jose/go-jose/v4"
	"google.golang.org/grpc"

	"tare/internal/experiment/kind"
	"tare/internal/experiment/role"
	"tare/internal/lib/param"
	"tare/internal/mesh/admission"
	"tare/internal/mesh/controlplane"
	"tare/internal/mesh/controlplane/authority"
	"tare/internal/mesh/controlplane/injection"
)

func init() { kind.Register(kind.Subject, guest{}) }

// certificatesKey is the name of the only setting.
const certificatesKey = "certificates"

var settings = []param.Setting{
	{Name: certificatesKey, Type: param.TypeSwitch, Default: "false",
		Phrase: map[string]string{"true": "which issues their certificates"},
		Doc:    "also issue a certificate to each pod, which sends the token of its service account"},
}

// pods is the configuration of the webhook.
//
//go:embed pods.yaml
var pods []byte

// guest implements the subject.
type guest struct{}

// Interfaces that the engine looks for.
var (
	_ kind.Player         = guest{}
	_ admission.Admitting = guest{}
)

// About implements kind.Guest.
func (guest) About() kind.About {
	return kind.About{
		Name:     "injector",
		Summary:  "the webhook of Tare's control plane that adds sidecars to pods, for a load of kind `admission`",
		Settings: settings,
		InPath:   kind.Always, // each review is a request to it
	}
}

// AdmitsPods implements admission.Admitting.
func (guest) AdmitsPods() {}

// Play runs the webhook until the parent closes its end of conn.
func (guest) Play(ctx context.Context, conn *role.Conn, v param.Values) error {
	defer controlplane.BoundGarbage()()
	return role.Play(ctx, conn, func(ctx context.Context) error {
		return serve(ctx, v.On(certificatesKey), func(w admission.Webhook) error { return conn.Send(role.Ready, w) })
	})
}

// serve runs the webhook and, if certificates is set, the service that issues certificates. It calls ready when both
// listen, and serves until ctx ends.
func serve(ctx context.Context, certificates bool, ready func(admission.Webhook) error) error {
	c, err := injection.ParseConfig(pods)
	if err != nil {
		return fmt.Errorf("reading the webhook's configuration: %w", err)
	}
	a, err := authority.New(authority.Options{OwnNames: []string{"localhost"}})
	if err != nil {
		return err
	}
	defer a.Close()
	w, err := injection.New(c, injection.Options{Authority: a})
	if err != nil {
		return err
	}
	hook, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("listening for reviews: %w", err)
	}
	_, port, err := net.SplitHostPort(hook.Addr().String())
	if err != nil {
		return errors.Join(err, hook.Close())
	}
	at := admission.Webhook{URL: (&url.URL{Scheme: "https", Host: net.JoinHostPort("localhost", port),
		Path: "/inject"}).String(),
		Roots: a.RootsPEM()}
	end := func() {}
	run := []func(context.Context) error{
		func(ctx context.Context) error { return w.Serve(ctx, hook, a.WebTLS()) },
	}
	if certificates {
		accounts, err := clusterOf(&at)
		if err != nil {
			return errors.Join(err, hook.Close())
		}
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return errors.Join(fmt.Errorf("listening for pods: %w", err), hook.Close())
		}
		s := grpc.NewServer(grpc.Creds(a.ServerCredentials()))
		authority.NewService(a, authority.ServiceOptions{Accounts: accounts}).Register(s)
		end = s.Stop
		run = append(run, func(context.Context) error { return s.Serve(l) })
		at.Certificates = l.Addr().String()
		at.Identities = strings.TrimSuffix(identityOf(a.TrustDomain(), "x"), "x") // accounts must not be empty
	}
	return role.Together(ctx, end, append(run, role.Says(ready, at))...)
}

// clusterOf makes the key pair that signs the tokens of a cluster's service accounts, and returns their verifier. It
// stores the private key, the issuer and the audience in *at, which the load receives.
func clusterOf(at *admission.Webhook) (*authority.ServiceAccounts, error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making a key: %w", err)
	}
	key := jose.JSONWebKey{Key: private, KeyID: "cluster", Algorithm: string(jose.ES256), Use: "sig"}
	if at.Signer, err = key.MarshalJSON(); err != nil {
		return nil, fmt.Errorf("encoding a key: %w", err)
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{key.Public()}})
	if err != nil {
		return nil, fmt.Errorf("encoding keys: %w", err)
	}
	at.Issuer, at.Audience = "https://kubernetes.default.svc.cluster.local", "tare"
	return authority.NewServiceAccounts(keys, at.Issuer, at.Audience)
}

// identityOf returns the identity of a service account in the pods' namespace.
func identityOf(trustDomain, account string) string {
	id, err := authority.Identity(trustDomain, admission.Namespace+"/"+account)
	if err != nil {
		panic(err) // the names are valid
	}
	return id
}
