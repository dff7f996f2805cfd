package kube

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// image writes an archive of an OCI image. Its only layer holds static programs and /tmp. The keys of programs are
// paths in the image, the values are the files on this machine.
func image(archive, name, entrypoint string, programs map[string]string) error {
	var layer bytes.Buffer
	w := tar.NewWriter(&layer)
	put := func(w *tar.Writer, name string, data []byte, mode int64) error {
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: mode, Size: int64(len(data))}); err != nil {
			return err
		}
		_, err := w.Write(data)
		return err
	}
	for _, dir := range []string{"tmp/", "bin/"} {
		if err := w.WriteHeader(&tar.Header{Name: dir, Typeflag: tar.TypeDir, Mode: 0o1777}); err != nil {
			return err
		}
	}
	for _, to := range slices.Sorted(maps.Keys(programs)) {
		data, err := os.ReadFile(programs[to])
		if err != nil {
			return fmt.Errorf("making the image %s: %w", name, err)
		}
		if err := put(w, strings.TrimPrefix(to, "/"), data, 0o755); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}

	var files bytes.Buffer
	o := tar.NewWriter(&files)
	type object = map[string]any
	document := func(v any) []byte { b, _ := json.Marshal(v); return b } // maps and strings always succeed
	var failed error
	blob := func(kind string, data []byte) object {
		sum := sha256.Sum256(data)
		hash := hex.EncodeToString(sum[:])
		if err := put(o, "blobs/sha256/"+hash, data, 0o644); err != nil {
			failed = err
		}
		return object{"mediaType": kind, "digest": "sha256:" + hash, "size": len(data)}
	}
	l := blob("application/vnd.oci.image.layer.v1.tar", layer.Bytes())
	config := blob("application/vnd.oci.image.config.v1+json", document(object{
		"architecture": "amd64", "os": "linux",
		"config": object{"Env": []string{"PATH=/bin"}, "WorkingDir": "/", "Entrypoint": []string{entrypoint}},
		"rootfs": object{"type": "layers", "diff_ids": []any{l["digest"]}},
	}))
	manifest := blob("application/vnd.oci.image.manifest.v1+json", document(object{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []any{l},
	}))
	manifest["annotations"] = object{"io.containerd.image.name": name}
	manifest["platform"] = object{"architecture": "amd64", "os": "linux"}
	index := document(object{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json",
		"manifests": []any{manifest}})
	if failed != nil {
		return failed
	}
	if err := put(o, "index.json", index, 0o644); err != nil {
		return err
	}
	if err := put(o, "oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`), 0o644); err != nil {
		return err
	}
	if err := o.Close(); err != nil {
		return err
	}
	return os.WriteFile(filepath.Clean(archive), files.Bytes(), 0o600)
}
