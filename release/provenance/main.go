// Command provenance prints where a tare binary comes from, as an in-toto statement with a SLSA provenance predicate
// (https://in-toto.io/Statement/v1, https://slsa.dev/provenance/v1):
//
//	go run ./release/provenance BINARY VERSION
//
// It reads the commit, the build settings and the checksum of every module from the binary, where Go has recorded them.
// The version of the release must be in the binary as well. The statement is not signed: whoever publishes the binary
// signs it.
package main

import (
	"bytes"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: provenance BINARY VERSION")
		os.Exit(2)
	}
	s, err := stateOf(os.Args[1], os.Args[2])
	if err == nil {
		out := json.NewEncoder(os.Stdout)
		out.SetIndent("", "  ")
		err = out.Encode(s)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "provenance: %s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}

// statement is an in-toto Statement, v1.
type statement struct {
	Type          string     `json:"_type"`
	Subject       []resource `json:"subject"`
	PredicateType string     `json:"predicateType"`
	Predicate     predicate  `json:"predicate"`
}

// resource is a ResourceDescriptor: an artifact or an input, by its digest.
type resource struct {
	Name   string            `json:"name,omitempty"`
	URI    string            `json:"uri,omitempty"`
	Digest map[string]string `json:"digest"`
}

// predicate is a SLSA Provenance, v1.
type predicate struct {
	BuildDefinition struct {
		BuildType            string            `json:"buildType"`
		ExternalParameters   map[string]string `json:"externalParameters"`
		InternalParameters   map[string]string `json:"internalParameters"`
		ResolvedDependencies []resource        `json:"resolvedDependencies"`
	} `json:"buildDefinition"`
	RunDetails struct {
		Builder struct {
			ID string `json:"id"`
		} `json:"builder"`
	} `json:"runDetails"`
}

// stateOf makes the statement about a binary. It returns an error if the binary was not built from an unmodified
// commit, or does not contain the version.
func stateOf(path, version string) (*statement, error) {
	info, err := buildinfo.ReadFile(path)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	settings := map[string]string{}
	for _, s := range info.Settings {
		settings[s.Key] = s.Value
	}
	commit := settings["vcs.revision"]
	switch {
	case commit == "":
		return nil, errors.New("it does not say which commit it was built from: run 'make release' in a git clone (in " +
			"a linked worktree, Go does not find the commit)")
	case settings["vcs.modified"] != "false":
		return nil, fmt.Errorf("it was built from commit %s with changes: commit them first", commit)
	case version == "" || !bytes.Contains(data, []byte(version)):
		return nil, fmt.Errorf("version %q is not in it: run 'make release'", version)
	}
	sum := sha256.Sum256(data)
	s := &statement{
		Type: "https://in-toto.io/Statement/v1", PredicateType: "https://slsa.dev/provenance/v1",
		Subject: []resource{{Name: filepath.Base(path), Digest: map[string]string{"sha256": hex.EncodeToString(sum[:])}}},
	}
	d := &s.Predicate.BuildDefinition
	d.BuildType = "make release"
	d.ExternalParameters = map[string]string{"target": "release", "commit": commit, "VERSION": version}
	d.InternalParameters = map[string]string{"go": info.GoVersion}
	for key, value := range settings {
		if !strings.HasPrefix(key, "vcs") {
			d.InternalParameters[key] = value
		}
	}
	d.ResolvedDependencies = []resource{{Name: info.Main.Path, Digest: map[string]string{"gitCommit": commit}}}
	for _, m := range info.Deps {
		r, err := dependency(m)
		if err != nil {
			return nil, err
		}
		d.ResolvedDependencies = append(d.ResolvedDependencies, r)
	}
	s.Predicate.RunDetails.Builder.ID = "make release, by hand"
	return s, nil
}

// dependency describes a module by its package URL and by Go's checksum of its files: "h1:", then SHA-256 in base64
// (golang.org/x/mod/sumdb/dirhash, Hash1).
func dependency(m *debug.Module) (resource, error) {
	if m.Replace != nil {
		m = m.Replace
	}
	sum, ok := strings.CutPrefix(m.Sum, "h1:")
	digest, err := base64.StdEncoding.DecodeString(sum)
	if !ok || err != nil {
		return resource{}, fmt.Errorf("module %s has no checksum of its files, but %q", m.Path, m.Sum)
	}
	return resource{
		URI: "pkg:golang/" + m.Path + "@" + m.Version, Digest: map[string]string{"dirHash1": hex.EncodeToString(digest)},
	}, nil
}
