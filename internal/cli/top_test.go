package cli

import (
	"compress/gzip"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"tare/test/schematest"
)

// TestTopOfAgent prints ledgers that an agent gives: one as text or JSON, or one after another, until the agent fails.
func TestTopOfAgent(t *testing.T) {
	f, err := os.Open("../../test/runs/quickstart/trials.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var trial struct{ Ledger json.RawMessage }
	z, err := gzip.NewReader(f)
	if err == nil {
		err = json.NewDecoder(z).Decode(&trial)
	}
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	agent := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if asked++; asked == 5 || !strings.HasSuffix(r.FormValue("for"), "ms") {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		_, _ = w.Write(trial.Ledger) // if this fails, the checks of the output below fail
	}))
	defer agent.Close()
	args := []string{"top", "--every", "100ms", "--agent", agent.Listener.Addr().String()}
	if out, err := ran(t, append(args, "--once")...); err != nil || !strings.HasPrefix(out, "Weighed for 1.00 s: ") {
		t.Errorf("as text: %v: %s", err, out)
	}
	out, err := ran(t, append(args, "--once", "--json")...)
	if err == nil {
		err = schematest.Check([]byte(out))
	}
	if err != nil {
		t.Errorf("as JSON: %v", err)
	}
	out, err = ran(t, append(args, "--json")...)
	if err == nil || !strings.Contains(err.Error(), "429 Too Many Requests") {
		t.Errorf("the agent failed, and the error is %v", err)
	}
	if n := strings.Count(out, "\n"); n != 2 {
		t.Errorf("%d lines were printed before", n)
	}
	if err := schematest.Lines([]byte(out)); err != nil {
		t.Error(err)
	}
}
