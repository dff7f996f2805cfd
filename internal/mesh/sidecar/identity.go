package sidecar

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
	"time"

	"tare/internal/mesh/controlplane/authority"
)

// The files with a proxy's certificate and the roots that it trusts.
const (
	IdentityFile = authority.IdentityFile // the proxy's certificate, then its key (PKCS #8)
	RootsFile    = authority.RootsFile    // the certificates of all trusted roots
)

// clientPrefix is the prefix of the account names of the proxies beside loads.
const clientPrefix = "client-of-"

// trustDomain is the trust domain of all identities of a trial.
const trustDomain = authority.DefaultTrustDomain

// identityOf returns the SPIFFE ID of the proxy of a component and an application.
func identityOf(component, app string) (string, error) {
	account := app
	if component == Client {
		account = clientPrefix + app
	}
	return authority.Identity(trustDomain, account)
}

// nameOf returns the DNS name in the certificates of a component's proxies. Proxies that cannot verify URIs verify this
// name.
func nameOf(component string) string {
	if component == Client {
		return "client.sidecar." + trustDomain
	}
	return "server.sidecar." + trustDomain
}

// life is the lifetime of certificates: longer than any trial.
const life = 24 * time.Hour

// newAuthority makes an authority for proxies that read their certificates from files. The authority's key is never
// written to a file. The caller must close the authority.
func newAuthority() (*authority.Authority, error) {
	return authority.New(authority.Options{TrustDomain: trustDomain, Life: life, Names: func(id string) []string {
		if strings.Contains(id, "/sa/"+clientPrefix) {
			return []string{nameOf(Client)}
		}
		return []string{nameOf(Server)}
	}})
}

// issue writes the certificate of an identity, its key and the roots into a directory.
func issue(a *authority.Authority, dir, id string) error {
	c, err := a.Credentials(id)
	if err != nil {
		return err
	}
	return c.WriteFiles(dir)
}

// WriteTemplate executes a template (text/template) and writes the result to the named file in a directory, with mode
// 0600.
func WriteTemplate(dir, name, text string, data any, functions template.FuncMap) error {
	t, err := template.New(name).Funcs(functions).Parse(text)
	if err != nil {
		return fmt.Errorf("reading the template of %s: %w", name, err)
	}
	var b bytes.Buffer
	if err = t.Execute(&b, data); err == nil {
		err = os.WriteFile(filepath.Join(dir, name), b.Bytes(), 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing a file of a proxy: %w", err)
	}
	return nil
}
