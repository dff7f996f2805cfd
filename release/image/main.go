// Command image makes a container image from scratch, out of statically linked programs:
//
//	VERSION=0.1.0 COMMIT=26d72f16 SOURCE_DATE_EPOCH=1790000000 go run ./release/image IMAGE.tar PROGRAM...
//
// The image runs the first program. IMAGE.tar is both an OCI image layout and an archive in Docker's older format
// (manifest.json), so that `docker load`, `ctr image import`, `podman load` and `skopeo copy oci-archive:` can read it.
// The same programs, version, commit and time always give the same bytes.
//
// The image runs as root, because Kubernetes gives capabilities to no other user; run it with root's capabilities
// dropped, except those that docs/security.md lists. It has no root certificates, because its programs connect to no
// server on the public web.
package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: image IMAGE.tar PROGRAM...")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "image: %v\n", err)
		os.Exit(1)
	}
}

// build holds the properties of the programs that environment variables give.
type build struct {
	version, commit string
	created         time.Time
}

func buildOf() (build, error) {
	epoch, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return build{}, fmt.Errorf("SOURCE_DATE_EPOCH: %w", err)
	}
	b := build{os.Getenv("VERSION"), os.Getenv("COMMIT"), time.Unix(epoch, 0).UTC()}
	if b.version == "" || b.commit == "" {
		return build{}, errors.New("VERSION and COMMIT must be set")
	}
	return b, nil
}

// write writes an archive with the image of some programs.
func write(archive string, programs []string) error {
	b, err := buildOf()
	if err != nil {
		return err
	}
	img, err := imageOf(programs, b)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tare-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	name := fmt.Sprintf("%s:%s", filepath.Base(programs[0]), tag(b.version))
	if err := writeLayout(dir, img, name, b); err != nil {
		return fmt.Errorf("writing the layout of %s: %w", name, err)
	}
	if err := pack(archive, dir, b.created); err != nil {
		return fmt.Errorf("packing %s: %w", archive, err)
	}
	return nil
}

// tag returns a version as the tag of an image, which must not contain "+".
func tag(version string) string {
	return string(bytes.ReplaceAll([]byte(version), []byte("+"), []byte("-")))
}

// imageOf makes the image: a layer with the directories, and a layer for each program, so that only the layers of
// programs that have changed are pulled again.
func imageOf(programs []string, b build) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	base, err := layer([]tar.Header{
		{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777},
		{Typeflag: tar.TypeDir, Name: "usr/", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "usr/bin/", Mode: 0o755},
	}, nil, b.created)
	if err != nil {
		return nil, err
	}
	layers := []v1.Layer{base}
	for _, program := range programs {
		data, err := os.ReadFile(program)
		if err != nil {
			return nil, err
		}
		l, err := layer([]tar.Header{
			{Typeflag: tar.TypeReg, Name: "usr/bin/" + filepath.Base(program), Mode: 0o755, Size: int64(len(data))},
		}, data, b.created)
		if err != nil {
			return nil, err
		}
		layers = append(layers, l)
	}
	for _, l := range layers {
		img, err = mutate.Append(img, mutate.Addendum{
			Layer: l, History: v1.History{Created: v1.Time{Time: b.created}, CreatedBy: "make image"},
		})
		if err != nil {
			return nil, err
		}
	}
	return mutate.ConfigFile(img, configOf(img, programs[0], b))
}

// layer makes a compressed layer with the given entries. data is the content of the last one.
func layer(entries []tar.Header, data []byte, created time.Time) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		h.ModTime = created
		if err := w.WriteHeader(&h); err != nil {
			return nil, err
		}
	}
	_, err := w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(
		func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil },
		tarball.WithMediaType(types.OCILayer), tarball.WithCompressedCaching,
	)
}

// configOf returns the configuration of an image to which all layers have been added.
func configOf(img v1.Image, program string, b build) *v1.ConfigFile {
	c, err := img.ConfigFile()
	if err != nil {
		panic(err) // it is in memory
	}
	c = c.DeepCopy()
	c.Architecture, c.OS, c.Created = runtime.GOARCH, "linux", v1.Time{Time: b.created}
	c.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/" + filepath.Base(program)},
		Env:        []string{"PATH=/usr/bin"},
		WorkingDir: "/",
		User:       "0:0",
		Labels: map[string]string{
			"org.opencontainers.image.title":       filepath.Base(program),
			"org.opencontainers.image.description": "Weighs a machine for Prometheus",
			"org.opencontainers.image.version":     b.version,
			"org.opencontainers.image.revision":    b.commit,
			"org.opencontainers.image.created":     b.created.Format(time.RFC3339),
			"org.opencontainers.image.licenses":    "Apache-2.0",
		},
	}
	return c
}

// writeLayout writes an OCI image layout with the image's name, and manifest.json, which older versions of Docker read
// instead.
func writeLayout(dir string, img v1.Image, name string, b build) error {
	at, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return err
	}
	err = at.AppendImage(img, layout.WithPlatform(v1.Platform{OS: "linux", Architecture: runtime.GOARCH}),
		layout.WithAnnotations(map[string]string{
			"org.opencontainers.image.ref.name": tag(b.version),
			"io.containerd.image.name":          "docker.io/library/" + name,
		}))
	if err != nil {
		return err
	}
	m, err := img.Manifest()
	if err != nil {
		return err
	}
	blob := func(d v1.Descriptor) string { return path.Join("blobs", d.Digest.Algorithm, d.Digest.Hex) }
	old := tarball.Descriptor{Config: blob(m.Config), RepoTags: []string{name}}
	for _, l := range m.Layers {
		old.Layers = append(old.Layers, blob(l))
	}
	text, err := json.Marshal(tarball.Manifest{old})
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "manifest.json"), text, 0o644)
}

// pack makes a tar archive of a directory. To be reproducible, it sorts the entries by name, gives all of them the same
// time, and leaves out the owners that files have on this machine.
func pack(archive, dir string, created time.Time) error {
	f, err := os.Create(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || name == "." {
			return err
		}
		h := tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: created}
		if d.IsDir() {
			return w.WriteHeader(&h)
		}
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		h = tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, ModTime: created, Size: int64(len(data))}
		if err := w.WriteHeader(&h); err != nil {
			return err
		}
		_, err = w.Write(data)
		return err
	})
	return errors.Join(err, w.Close(), f.Close())
}
