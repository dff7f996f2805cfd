package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// generated makes all generated files again in a copy of the tree, and compares. It neither touches the tree nor asks
// git, so it works on one with changes; and a file that depends on where the tree lies is found too.
func generated(ctx context.Context) error {
	if _, err := exec.LookPath("clang"); err != nil {
		return fmt.Errorf("%w: needs clang (Debian package clang)", errSkip)
	}
	dir, err := os.MkdirTemp("", "tare-test-generated-")
	if err != nil {
		return fmt.Errorf("making a directory for the copy: %w", err)
	}
	defer os.RemoveAll(dir)
	before, err := copyTree(".", dir)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "go", "generate", "./...")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go generate: %w\n%s", err, bytes.TrimSpace(out))
	}
	differ, err := compareTree(dir, before)
	if err != nil {
		return err
	}
	if len(differ) > 0 {
		version, _ := exec.CommandContext(ctx, "clang", "--version").Output()
		first, _, _ := strings.Cut(string(version), "\n")
		return fmt.Errorf("'make generate' changes these files (with %s; the committed ones are made on Debian 12, clang 14):\n%s",
			first, strings.Join(differ, "\n"))
	}
	return nil
}

// notCopied are the directories that hold no source.
var notCopied = map[string]bool{".git": true, "bin": true, "web/node_modules": true, "web/dist": true}

// walk calls f with every regular file of a tree, but for those that are no source.
func walk(root string, f func(path string) error) error {
	return filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case d.IsDir() && (notCopied[rel] || strings.HasPrefix(rel, "tare-run-")):
			return fs.SkipDir
		case d.Type().IsRegular():
			return f(rel)
		}
		return nil
	})
}

// copyTree copies the tree and returns what is in it.
func copyTree(from, to string) (files map[string][]byte, err error) {
	files = map[string][]byte{}
	err = walk(from, func(path string) error {
		data, err := os.ReadFile(filepath.Join(from, path))
		if err != nil {
			return err
		}
		files[path] = data
		dest := filepath.Join(to, path)
		if err := os.MkdirAll(filepath.Dir(dest), 0o755); err != nil {
			return err
		}
		return os.WriteFile(dest, data, 0o644)
	})
	if err != nil {
		return nil, fmt.Errorf("copying the tree: %w", err)
	}
	return files, nil
}

// compareTree lists what differs between a tree and what was in it, with the change of each file.
func compareTree(root string, before map[string][]byte) (differ []string, err error) {
	err = walk(root, func(path string) error {
		now, err := os.ReadFile(filepath.Join(root, path))
		if err != nil {
			return err
		}
		was, there := before[path]
		switch {
		case !there:
			differ = append(differ, "  "+path+" (not in the tree)")
		case !bytes.Equal(was, now):
			differ = append(differ, fmt.Sprintf("  %s (%d bytes in the tree, %d made again)", path, len(was), len(now)))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("comparing the trees: %w", err)
	}
	for path := range before {
		if _, err := os.Lstat(filepath.Join(root, path)); errors.Is(err, fs.ErrNotExist) {
			differ = append(differ, "  "+path+" (no longer made)")
		}
	}
	return differ, nil
}
