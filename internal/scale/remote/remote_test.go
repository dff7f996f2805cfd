package remote

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tare/internal/lib/fault"
)

// recorded returns the ledger of a recorded trial, as JSON.
func recorded(t *testing.T) []byte {
	t.Helper()
	f, err := os.Open("../../../test/runs/quickstart/trials.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var trial struct{ Ledger json.RawMessage }
	z, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(z).Decode(&trial)
	}
	if err != nil || len(trial.Ledger) == 0 {
		t.Fatalf("no ledger is recorded: %v", err)
	}
	return trial.Ledger
}

func write(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestNext reads a ledger by HTTP and HTTPS, with each kind of authorisation.
func TestNext(t *testing.T) {
	text := recorded(t)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		user, password, _ := r.BasicAuth()
		if r.Method != http.MethodGet || r.URL.RequestURI() != "/v1/ledger?for=2s" {
			http.NotFound(w, r)
			return
		}
		known := r.Header.Get("Authorization") == "Bearer xyz" || user == "ops" && password == "secret"
		if r.TLS != nil && !known {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.Write(text) //nolint:errcheck // the test fails
	})
	plain, secure := httptest.NewServer(handler), httptest.NewTLSServer(handler)
	defer plain.Close()
	defer secure.Close()
	address := func(s *httptest.Server) string { return s.Listener.Addr().String() }
	ca := write(t, "ca.pem", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}))
	password, token := write(t, "password", []byte("secret\n")), write(t, "token", []byte("xyz\n"))
	for name, c := range map[string]struct {
		o    Options
		fail string // a part of the error; empty: none
		hint string
	}{
		"plain":          {Options{Address: address(plain)}, "", ""},
		"password":       {Options{Address: address(secure), CAFile: ca, User: "ops", PasswordFile: password}, "", ""},
		"token":          {Options{Address: address(secure), CAFile: ca, TokenFile: token}, "", ""},
		"no secret":      {Options{Address: address(secure), CAFile: ca}, "401 Unauthorized", "--password-file"},
		"unknown issuer": {Options{Address: address(secure), TLS: true}, "certificate", ""},
		"HTTP to HTTPS":  {Options{Address: address(secure)}, "400 Bad Request", "--tls"},
		"nothing there":  {Options{Address: "127.0.0.1:1"}, "connection refused", "tare-agent runs there"},
	} {
		a, err := New(c.o)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		l, err := a.Next(t.Context(), 2*time.Second)
		switch {
		case c.fail == "" && (err != nil || len(l.Programs) == 0):
			t.Errorf("%s: %v", name, err)
		case c.fail != "" && (err == nil || !strings.Contains(err.Error(), c.fail) || fault.CodeOf(err) != fault.Machine ||
			!strings.Contains(fault.HintOf(err), c.hint)):
			t.Errorf("%s: %v (%s)", name, err, fault.HintOf(err))
		}
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a, err := New(Options{Address: address(plain)})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := a.Next(ctx, time.Second); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context has ended: %v", err)
	}
}

// TestOptions: options that cannot work or would expose a secret are rejected before anything is sent.
func TestOptions(t *testing.T) {
	secret, empty := write(t, "secret", []byte("x")), write(t, "empty", []byte("\n"))
	for want, o := range map[string]Options{
		"HOST:PORT":                    {Address: "node"},
		"a: the address":               {Address: "http://a"},
		"both":                         {Address: "node:1", TLS: true, User: "ops"},
		"go together":                  {Address: "node:1", TLS: true, PasswordFile: secret},
		"either a password or a token": {Address: "node:1", TLS: true, User: "ops", PasswordFile: secret, TokenFile: secret},
		"plain text":                   {Address: "node:1", TokenFile: secret},
		"empty file":                   {Address: "node:1", TLS: true, TokenFile: empty},
		"no such file":                 {Address: "node:1", TLS: true, TokenFile: empty + ".not"},
		"no certificate found":         {Address: "node:1", CAFile: secret},
		"--agent node:1?for=x: ":       {Address: "node:1?for=x"},
	} {
		_, err := New(o)
		if fault.CodeOf(err) != fault.Usage || fault.HintOf(err) == "" ||
			!strings.Contains(err.Error()+fault.HintOf(err), want) {
			t.Errorf("%+v: %v (%s), want %q", o, err, fault.HintOf(err), want)
		}
	}
	if _, err := New(Options{Address: "127.0.0.1:9633", TokenFile: secret}); err != nil {
		t.Errorf("a token that stays on this machine: %v", err)
	}
}

// TestHostileAnswers: whatever answers, the error is short, and reading it costs little.
func TestHostileAnswers(t *testing.T) {
	many := func(element string) string {
		return `{"schema":"tare.ledger/v1","window":{"seconds":1},"cgroups":[` + strings.Repeat(element+",", maxValues) +
			element + "]}"
	}
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		t.Error("a redirect was followed")
	}))
	defer elsewhere.Close()
	for name, c := range map[string]struct {
		status int
		body   string
		want   string
	}{
		"another server":   {200, "<html>", "is not a ledger"},
		"another document": {200, `{"schema":"tare.run/v1"}`, `its schema is "tare.run/v1"`},
		"no window":        {200, `{"schema":"tare.ledger/v1"}`, "lasts 0 s"},
		"backwards":        {200, `{"schema":"tare.ledger/v1","window":{"seconds":-1}}`, "lasts -1 s"},
		"many objects":     {200, many("{}"), "parts"},
		"many nulls":       {200, many("null"), "parts"},
		"a long path": {200, `{"schema":"tare.ledger/v1","window":{"seconds":1},"cgroups":[{"path":"` +
			strings.Repeat("/", 5000) + `"}]}`, "4096 bytes"},
		"too large":  {200, strings.Repeat(" ", maxBytes+1), "67108864 bytes"},
		"controls":   {500, "\x1b[2J" + strings.Repeat("x", 10_000), `500 Internal Server Error: \x1b[2Jxxx`},
		"a redirect": {302, "", "302 Found"},
	} {
		s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Location", elsewhere.URL)
			w.WriteHeader(c.status)
			fmt.Fprint(w, c.body)
		}))
		a, err := New(Options{Address: s.Listener.Addr().String()})
		if err != nil {
			t.Fatal(err)
		}
		_, err = a.Next(t.Context(), time.Second)
		if err == nil || !strings.Contains(err.Error(), c.want) || len(err.Error()) > 500 ||
			strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%s: %.600v", name, err)
		}
		s.Close()
	}
}
