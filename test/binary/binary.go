// Package binary builds the tare binary for the tests that run it from the outside, in the way that `make build` does.
package binary

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
)

// Root is the top of the source tree: the nearest directory above the working directory that holds go.mod.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the source tree: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return "", fmt.Errorf("finding the source tree: no go.mod at or above the working directory")
		}
		dir = up
	}
}

// Build puts a static tare binary into dir and returns its path. Flags are further ones of go build.
func Build(dir string, flags ...string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	out := filepath.Join(dir, "tare")
	args := slices.Concat([]string{"build", "-trimpath", "-ldflags=-w", "-o", out}, flags, []string{"./cmd/tare"})
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if msg, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building tare: %w\n%s", err, bytes.TrimSpace(msg))
	}
	return out, nil
}
