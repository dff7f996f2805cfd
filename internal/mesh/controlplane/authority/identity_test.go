package authority

import (
	"crypto/x509"
	"net/url"
	"strings"
	"testing"
)

func TestIdentity(t *testing.T) {
	for name, want := range map[string]string{
		"web":                            "spiffe://mesh.local/ns/default/sa/web",
		"shop/web":                       "spiffe://mesh.local/ns/shop/sa/web",
		"spiffe://mesh.local/ns/a/sa/b":  "spiffe://mesh.local/ns/a/sa/b",
		"spiffe://mesh.local/ns/a/sa/.b": "spiffe://mesh.local/ns/a/sa/.b",
		"":                               "",
		"a/b/c":                          "",
		"..":                             "",
		"a/..":                           "",
		"we b":                           "",
		"web%2f":                         "",
		"wéb":                            "",
		"spiffe://other.local/ns/a/sa/b": "",
		"spiffe://mesh.local/ns/a/sa/":   "",
		"spiffe://mesh.local/ns/a/sa":    "",
		"spiffe://mesh.local/sa/a/ns/b":  "",
		"spiffe://mesh.local":            "",
		"spiffe://mesh.local/ns/a/sa/b/": "",
		"spiffe://mesh.local/ns/a/sa/b?": "",
		"SPIFFE://mesh.local/ns/a/sa/b":  "",
		"spiffe:/mesh.local/ns/a/sa/b":   "",
		strings.Repeat("a", 254):         "",
	} {
		got, err := Identity(DefaultTrustDomain, name)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("Identity(%.40q) = %q, %v; want %q", name, got, err, want)
		}
	}
}

func TestTrustDomain(t *testing.T) {
	for domain, good := range map[string]bool{
		"mesh.local": true, "a": true, "a-b_c.d1": true,
		"": false, ".": false, "a.": false, ".a": false, "a..b": false, "A": false, "a:1": false, "10.0.0.1": false,
		"::1": false, "a/b": false, "a@b": false, strings.Repeat("a", 256): false,
	} {
		if err := CheckTrustDomain(domain); (err == nil) != good {
			t.Errorf("CheckTrustDomain(%.40q): %v", domain, err)
		}
	}
}

func TestIDOf(t *testing.T) {
	uri := func(s string) *url.URL {
		u, err := url.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	const id = "spiffe://mesh.local/ns/a/sa/b"
	signs := x509.KeyUsageDigitalSignature
	with := func(usage x509.KeyUsage, ids ...string) x509.Certificate {
		c := x509.Certificate{KeyUsage: usage}
		for _, id := range ids {
			c.URIs = append(c.URIs, uri(id))
		}
		return c
	}
	authority := with(signs, id)
	authority.IsCA = true
	for name, c := range map[string]struct {
		certificate x509.Certificate
		want        string
	}{
		"leaf":                    {with(signs, id), id},
		"authority":               {authority, ""},
		"signs certificates":      {with(signs|x509.KeyUsageCertSign, id), ""},
		"signs revocations":       {with(signs|x509.KeyUsageCRLSign, id), ""},
		"no usage":                {with(0, id), ""},
		"no URI":                  {with(signs), ""},
		"two URIs":                {with(signs, id, id), ""},
		"no path":                 {with(signs, "spiffe://mesh.local"), ""},
		"another scheme":          {with(signs, "https://mesh.local/ns/a/sa/b"), ""},
		"a user":                  {with(signs, "spiffe://u@mesh.local/ns/a/sa/b"), ""},
		"a port":                  {with(signs, "spiffe://mesh.local:1/ns/a/sa/b"), ""},
		"a query":                 {with(signs, "spiffe://mesh.local/ns/a/sa/b?c"), ""},
		"an escape":               {with(signs, "spiffe://mesh.local/ns/a/sa/%62"), ""},
		"a trust domain of an IP": {with(signs, "spiffe://10.0.0.1/ns/a/sa/b"), ""},
	} {
		if got, err := idOf(&c.certificate); (err == nil) != (c.want != "") || err == nil && got != c.want {
			t.Errorf("%s: %q, %v; want %q", name, got, err, c.want)
		}
	}
}

// FuzzIdentity: an accepted identity is a URL that parses and prints as itself, so that it has one spelling.
func FuzzIdentity(f *testing.F) {
	f.Add("spiffe://mesh.local/ns/a/sa/b")
	f.Add("a/b")
	f.Fuzz(func(t *testing.T, name string) {
		id, err := Identity(DefaultTrustDomain, name)
		if err != nil {
			return
		}
		u, err := url.Parse(id)
		if err != nil || u.String() != id || u.Host != DefaultTrustDomain || u.User != nil || u.RawQuery != "" {
			t.Errorf("%q became %q, which reads as %v (%v)", name, id, u, err)
		}
	})
}
