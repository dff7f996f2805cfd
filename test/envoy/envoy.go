// Package envoy finds the Envoy that tests use.
package envoy

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"

	"tare/test/binary"
)

// Path returns the path of an Envoy: the one that TARE_ENVOY names, the one on the PATH, or the one that test/setup
// fetches. If there is none, the test fails, or is skipped on machines for which test/setup has none.
func Path(t testing.TB) string {
	t.Helper()
	if path := os.Getenv("TARE_ENVOY"); path != "" {
		return path
	}
	if path, err := exec.LookPath("envoy"); err == nil {
		return path
	}
	cache, err := binary.Cache()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(cache, "envoy/envoy")
	if _, err := os.Stat(path); err != nil {
		if runtime.GOARCH != "amd64" {
			t.Skip("needs Envoy, which is fetched for x86_64 alone: name one in TARE_ENVOY")
		}
		t.Fatalf("there is no Envoy: run 'test/setup envoy', or name one in TARE_ENVOY (%v)", err)
	}
	return path
}
