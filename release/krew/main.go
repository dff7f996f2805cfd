// Command krew makes the files with which Krew, the package manager for kubectl plugins, installs kubectl-tare: an
// archive, and a manifest with the address and the checksum of the archive.
//
//	VERSION=0.1.0 SOURCE_DATE_EPOCH=1790000000 go run ./release/krew DIRECTORY bin/kubectl-tare https://HOST/PATH
//
// It must be run at the top of the source tree. The archive must be published below the given address. The same
// program, version and time always give the same bytes.
package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: krew DIRECTORY PROGRAM URL")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], os.Args[3]); err != nil {
		fmt.Fprintf(os.Stderr, "krew: %v\n", err)
		os.Exit(1)
	}
}

// write writes the archive and tare.yaml into a directory.
func write(dir, program, url string) error {
	version := os.Getenv("VERSION")
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil || version == "" {
		return errors.Join(errors.New("VERSION and SOURCE_DATE_EPOCH must be set"), err)
	}
	data, err := archive(time.Unix(epoch, 0).UTC(), program, "LICENSE")
	if err != nil {
		return err
	}
	name := fmt.Sprintf("kubectl-tare_%s_linux_%s.tar.gz", strings.ReplaceAll(version, "+", "-"), runtime.GOARCH)
	uri := strings.TrimSuffix(url, "/") + "/" + name
	manifest := fmt.Sprintf(manifestForm, version, uri, sha256.Sum256(data), runtime.GOARCH)
	return errors.Join(
		os.WriteFile(filepath.Join(dir, name), data, 0o644),
		os.WriteFile(filepath.Join(dir, "tare.yaml"), []byte(manifest), 0o644),
	)
}

// archive returns a compressed tar archive of some files, without their directories.
func archive(modified time.Time, files ...string) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		h := tar.Header{Typeflag: tar.TypeReg, Name: filepath.Base(file), Mode: 0o755, Size: int64(len(data)),
			ModTime: modified}
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
		if _, err := w.Write(data); err != nil {
			return nil, err
		}
	}
	err := errors.Join(w.Close(), z.Close())
	return b.Bytes(), err
}

// manifestForm is the format of a Krew manifest (apiVersion krew.googlecontainertools.github.com/v1alpha2) for one
// platform. Its arguments are the version, the address and the SHA-256 checksum of the archive, and the architecture.
const manifestForm = `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: tare
spec:
  version: v%s
  shortDescription: Weighs workloads and infrastructure of a cluster
  description: |
    What workloads use, and what infrastructure uses on their behalf: sidecars, the CNI, the kubelet and the rest, as
    sums that add up. By agents that are installed, or that disappear with the command.
  platforms:
  - uri: %s
    sha256: %x
    bin: kubectl-tare
    files:
    - {from: kubectl-tare, to: .}
    - {from: LICENSE, to: .}
    selector:
      matchLabels: {os: linux, arch: %s}
`
