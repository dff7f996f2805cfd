// Package binary builds the tare binary for the tests that run it from the outside, in the way that `make build` does.
package binary

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
)

// Root returns the top of the source tree: the nearest directory with a go.mod, from the working directory upwards.
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

// Cache returns the directory in which test/setup keeps what it fetches for the tests: tare in the user's cache
// directory.
func Cache() (string, error) {
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("finding what test/setup has fetched: %w", err)
	}
	return filepath.Join(dir, "tare"), nil
}

// Helm returns the path of the Helm binary that "test/setup helm" has built, in the version that test/versions names.
func Helm() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	cache, err := Cache()
	if err != nil {
		return "", err
	}
	versions, err := os.ReadFile(filepath.Join(root, "test/versions"))
	if err != nil {
		return "", fmt.Errorf("finding the version of Helm: %w", err)
	}
	version := regexp.MustCompile(`(?m)^HELM=(.+)$`).FindSubmatch(versions)
	if version == nil {
		return "", fmt.Errorf("finding the version of Helm: test/versions has no HELM")
	}
	path := filepath.Join(cache, "bin", "helm-"+string(version[1]))
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("needs Helm (test/setup helm): %w", err)
	}
	return path, nil
}

// Prometheus returns the path of a program of Prometheus, prometheus or promtool: the one that test/setup has fetched,
// or else the one on the PATH.
func Prometheus(name string) (string, error) {
	cache, err := Cache()
	if err != nil {
		return "", err
	}
	path := filepath.Join(cache, "prometheus", name)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if path, err = exec.LookPath(name); err != nil {
		return "", fmt.Errorf("needs %s (test/setup): %w", name, err)
	}
	return path, nil
}

// Go returns a command that runs go at the top of the source tree with the flags of the Makefile, so that all builds
// share Go's cache.
func Go(args ...string) (*exec.Cmd, error) {
	root, err := Root()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("go", args...)
	cmd.Dir = root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-trimpath -ldflags=-w")
	return cmd, nil
}

// Build puts a static tare binary into dir and returns its path. It passes flags to go build.
func Build(dir string, flags ...string) (string, error) {
	out := filepath.Join(dir, "tare")
	return out, Program(out, "./cmd/tare", flags...)
}

// Program builds the program of package pkg at path. It passes flags to go build.
func Program(path, pkg string, flags ...string) error {
	cmd, err := Go(slices.Concat([]string{"build", "-o", path}, flags, []string{pkg})...)
	if err != nil {
		return err
	}
	if msg, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("building %s: %w\n%s", pkg, err, bytes.TrimSpace(msg))
	}
	return nil
}
