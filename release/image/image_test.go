package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/validate"
)

// TestImage: an archive is a valid OCI layout and a valid Docker archive of the same image, and its bytes are the same
// each time.
func TestImage(t *testing.T) {
	t.Setenv("VERSION", "1.2.3+4.g0123abcd")
	t.Setenv("COMMIT", "0123456789abcdef0123456789abcdef01234567")
	t.Setenv("SOURCE_DATE_EPOCH", "1790000000")
	dir := t.TempDir()
	var programs []string
	for _, name := range []string{"tare-agent", "tare"} {
		programs = append(programs, filepath.Join(dir, name))
		if err := os.WriteFile(programs[len(programs)-1], []byte("a program"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	one, two := filepath.Join(dir, "one.tar"), filepath.Join(dir, "two.tar")
	for _, path := range []string{one, two} {
		if err := write(path, programs); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(read(t, one), read(t, two)) {
		t.Error("two images of the same programs differ")
	}

	at := t.TempDir()
	if out, err := exec.Command("tar", "-x", "-C", at, "-f", one).CombinedOutput(); err != nil {
		t.Fatalf("unpacking: %v\n%s", err, out)
	}
	oci, err := layout.FromPath(at)
	if err != nil {
		t.Fatal(err)
	}
	index, err := oci.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	if err := validate.Index(index); err != nil {
		t.Errorf("as an OCI layout: %v", err)
	}
	m, err := index.IndexManifest()
	if err != nil || len(m.Manifests) != 1 ||
		m.Manifests[0].Annotations["org.opencontainers.image.ref.name"] != "1.2.3-4.g0123abcd" {
		t.Fatalf("%+v, %v", m, err)
	}
	docker, err := tarball.ImageFromPath(one, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := docker.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if len(config.RootFS.DiffIDs) != 3 || config.Config.Entrypoint[0] != "/usr/bin/tare-agent" ||
		config.Config.Labels["org.opencontainers.image.version"] != "1.2.3+4.g0123abcd" {
		t.Errorf("as an archive of Docker's: %+v", config)
	}
}

// TestNeeds: an image without a version, a commit or a time is not made.
func TestNeeds(t *testing.T) {
	all := map[string]string{"VERSION": "1.2.3", "COMMIT": "01234567", "SOURCE_DATE_EPOCH": "1790000000"}
	for missing := range all {
		for name, value := range all {
			if name == missing {
				value = ""
			}
			t.Setenv(name, value)
		}
		if _, err := buildOf(); err == nil {
			t.Errorf("no error without %s", missing)
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
