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

// The files of a proxy's certificate.
const (
	IdentityFile = authority.IdentityFile // its certificate, then its key (PKCS #8)
	RootsFile    = authority.RootsFile    // the certificates of all trusted roots
)

// clientPrefix begins the accounts of the proxies beside loads.
const clientPrefix = "client-of-"

// trustDomain is that of all identities of a trial.
const trustDomain = authority.DefaultTrustDomain

// identityOf is the SPIFFE ID of the proxy of a component that serves an application.
func identityOf(component, app string) (string, error) {
	account := app
	if component == Client {
		account = clientPrefix + app
	}
	return authority.Identity(trustDomain, account)
}

// nameOf is the DNS name in the certificate of that proxy. It is for proxies that can check names of hosts and no URIs.
func nameOf(component string) string {
	if component == Client {
		return "client.sidecar." + trustDomain
	}
	return "server.sidecar." + trustDomain
}

// life is that of certificates: no trial takes longer.
const life = 24 * time.Hour

// newAuthority makes an authority of its own for proxies that have certificates as files. Its key is never written
// anywhere.
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

// WriteTemplate makes a file of a proxy that only its owner can read, by a template (text/template).
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
