package proxy

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tare/internal/mesh/proxy/dataplane"
	envoytest "tare/test/envoy"
	"tare/test/port"
)

const types = "type.googleapis.com/"

// object is JSON as it is written.
type object = map[string]any

type list = []any

// root is a certificate authority of a test.
type root struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	pem  string
}

func newRoot(t *testing.T) *root {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "root"}, IsCA: true,
		BasicConstraintsValid: true, NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageCRLSign}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return &root{key, cert, block("CERTIFICATE", der)}
}

func block(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

func spiffe(account string) string { return "spiffe://mesh.local/ns/default/sa/" + account }

// issue makes a certificate of an account with its key.
func (r *root) issue(t *testing.T, account string) (chain, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(spiffe(account))
	if err != nil {
		t.Fatal(err)
	}
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: serial, URIs: []*url.URL{u},
		NotBefore: time.Now().
			Add(-time.Minute),
		NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{
			x509.ExtKeyUsageClientAuth,
			x509.ExtKeyUsageServerAuth,
		}}, r.cert, &private.PublicKey, r.key)
	if err != nil {
		t.Fatal(err)
	}
	k, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return block("CERTIFICATE", der), block("PRIVATE KEY", k)
}

// pair is a certificate for Go's TLS.
func (r *root) pair(t *testing.T, account string) tls.Certificate {
	t.Helper()
	chain, key := r.issue(t, account)
	c, err := tls.X509KeyPair([]byte(chain), []byte(key))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// secrets are those of a proxy of an account.
func secrets(t *testing.T, r *root, account string) list {
	chain, key := r.issue(t, account)
	const kind = types + "envoy.extensions.transport_sockets.tls.v3.Secret"
	return list{
		object{"@type": kind, "name": "identity", "tls_certificate": object{
			"certificate_chain": object{"inline_string": chain}, "private_key": object{"inline_string": key}}},
		object{
			"@type":              kind,
			"name":               "roots",
			"validation_context": object{"trusted_ca": object{"inline_string": r.pem}},
		},
	}
}

func sds(name string) object {
	return object{"name": name, "sds_config": object{"ads": object{}, "resource_api_version": "V3"}}
}

// tlsContext is what both sides of mTLS have; the peer must be the account, if one is given.
func tlsContext(peer string, protocols ...string) object {
	names := object{}
	if peer != "" {
		names = object{
			"match_typed_subject_alt_names": list{
				object{"san_type": "URI", "matcher": object{"exact": spiffe(peer)}},
			},
		}
	}
	return object{"alpn_protocols": protocols, "tls_certificate_sds_secret_configs": list{sds("identity")},
		"combined_validation_context": object{
			"default_validation_context":           names,
			"validation_context_sds_secret_config": sds("roots"),
		}}
}

func socket(at string) object {
	a := netip.MustParseAddrPort(at)
	return object{"socket_address": object{"address": a.Addr().String(), "port_value": a.Port()}}
}

// cluster has endpoints. With a peer it speaks mTLS.
func cluster(name, peer string, h2 bool, at ...string) object {
	var endpoints list
	for _, a := range at {
		endpoints = append(endpoints, object{"endpoint": object{"address": socket(a)}})
	}
	c := object{"@type": types + "envoy.config.cluster.v3.Cluster", "name": name, "connect_timeout": "5s",
		"load_assignment": object{"cluster_name": name, "endpoints": list{object{"lb_endpoints": endpoints}}}}
	alpn := "http/1.1"
	if h2 {
		alpn = "h2"
		const kind = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"
		c["typed_extension_protocol_options"] = object{kind: object{"@type": types + kind,
			"explicit_http_config": object{"http2_protocol_options": object{}}}}
	}
	if peer != "" {
		c["transport_socket"] = object{"name": "tls", "typed_config": object{
			"@type":              types + "envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
			"common_tls_context": tlsContext(peer, alpn)}}
	}
	return c
}

// to is a route of everything to a cluster.
func to(cluster string) object {
	return object{"match": object{"prefix": "/"}, "route": object{"cluster": cluster, "timeout": "0s"}}
}

func hcm(filters list, routes ...any) object {
	filters = append(filters, object{"name": "router",
		"typed_config": object{"@type": types + "envoy.extensions.filters.http.router.v3.Router"}})
	return object{"name": "hcm", "typed_config": object{
		"@type":       types + "envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
		"stat_prefix": "x", "normalize_path": true, "merge_slashes": true, "http_filters": filters,
		"route_config": object{
			"name":          "r",
			"virtual_hosts": list{object{"name": "v", "domains": list{"*"}, "routes": routes}},
		}}}
}

func tcpProxy(cluster string) object {
	return object{"name": "tcp", "typed_config": object{
		"@type":       types + "envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy",
		"stat_prefix": "x", "cluster": cluster}}
}

func listener(at string, chains ...any) object {
	return object{
		"@type":         types + "envoy.config.listener.v3.Listener",
		"name":          "at " + at,
		"address":       socket(at),
		"filter_chains": chains,
	}
}

func chain(filters ...any) object { return object{"filters": filters} }

// strict makes a chain take only mTLS; with a peer only that account's.
func strict(chain object, peer string) object {
	chain["transport_socket"] = object{"name": "tls", "typed_config": object{
		"@type":                      types + "envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext",
		"require_client_certificate": true, "common_tls_context": tlsContext(peer, "h2", "http/1.1")}}
	return chain
}

// running is a proxy that does what a file says.
type running struct {
	*source
	t    *testing.T
	file string
}

func start(t *testing.T, resources ...any) *running {
	t.Helper()
	plane := dataplane.New(func(line string) { t.Log(line) })
	r := &running{newSource(plane, true), t, filepath.Join(t.TempDir(), "proxy.json")}
	t.Cleanup(func() {
		r.close()
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := plane.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	r.set(resources...)
	return r
}

// set changes what the proxy does.
func (r *running) set(resources ...any) {
	r.t.Helper()
	if err := r.try(resources...); err != nil {
		r.t.Fatal(err)
	}
}

func (r *running) try(resources ...any) error {
	var flat list
	for _, x := range resources {
		if l, ok := x.(list); ok {
			flat = append(flat, l...)
		} else {
			flat = append(flat, x)
		}
	}
	b, err := json.MarshalIndent(object{"resources": flat}, "", " ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(r.file, b, 0o600); err != nil {
		return err
	}
	return r.readFile(r.t.Context(), r.file)
}

// free is an address that nobody listens at.
func free(t *testing.T) string { return port.Free(t) }

// run runs a program, which must be there, and gives what it printed.
func run(t *testing.T, input, name string, args ...string) (string, error) {
	t.Helper()
	path, err := exec.LookPath(name)
	if err != nil {
		t.Fatalf("%s: run 'test/setup'", err)
	}
	c := exec.CommandContext(t.Context(), path, args...)
	c.Stdin = strings.NewReader(input)
	var out bytes.Buffer
	c.Stdout, c.Stderr = &out, &out
	err = c.Run()
	return out.String(), err
}

func curl(t *testing.T, args ...string) string {
	t.Helper()
	out, err := run(t, "", "curl", append([]string{"-sS", "--max-time", "20"}, args...)...)
	if err != nil {
		t.Fatalf("curl %q: %s\n%s", args, err, out)
	}
	return out
}

// envoy is the real one, with a static configuration of resources.
func envoy(t *testing.T, secrets list, clusters, listeners list) {
	t.Helper()
	path := envoytest.Path(t)
	var plain func(x any) any
	plain = func(x any) any { // what is a file's in the proxy's form is static in Envoy's
		switch x := x.(type) {
		case object:
			out := object{}
			for k, v := range x {
				if k != "sds_config" {
					out[k] = plain(v)
				}
			}
			if _, secret := x["tls_certificate"]; secret || x["validation_context"] != nil ||
				x["load_assignment"] != nil || x["filter_chains"] != nil {
				delete(out, "@type")
			}
			return out
		case list:
			out := list{}
			for _, v := range x {
				out = append(out, plain(v))
			}
			return out
		}
		return x
	}
	config := plain(
		object{"static_resources": object{"secrets": secrets, "clusters": clusters, "listeners": listeners}},
	)
	b, err := json.Marshal(config)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "envoy.json")
	if err := os.WriteFile(file, b, 0o600); err != nil {
		t.Fatal(err)
	}
	args := []string{
		"-c",
		file,
		"--concurrency",
		"1",
		"--use-dynamic-base-id",
		"-l",
		"warning",
		"--disable-hot-restart",
	}
	var out bytes.Buffer
	c := exec.Command(path, args...)
	c.Stdout, c.Stderr = &out, &out
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- c.Wait() }()
	t.Cleanup(func() {
		_ = c.Process.Kill()
		<-ended
		if t.Failed() {
			t.Logf("Envoy said:\n%s", out.String())
		}
	})
	for _, l := range listeners {
		a := l.(object)["address"].(object)["socket_address"].(object)
		await(t, fmt.Sprintf("%v:%v", a["address"], a["port_value"]), ended)
	}
}

// await waits until somebody listens.
func await(t *testing.T, at string, ended chan error) {
	t.Helper()
	for {
		c, err := net.Dial("tcp", at)
		if err == nil {
			c.Close()
			return
		}
		select {
		case err := <-ended:
			ended <- err
			t.Fatalf("it ended before it listened: %v", err)
		case <-t.Context().Done():
			t.Fatal(t.Context().Err())
		case <-time.After(20 * time.Millisecond):
		}
	}
}
