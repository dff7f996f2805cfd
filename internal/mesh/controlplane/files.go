package controlplane

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/mesh/controlplane/proxyconfig"
)

// poll is the interval at which the files are checked.
const poll = 100 * time.Millisecond

// mostPolls is the number of polls after which a directory is read even if it is still changing.
const mostPolls = 10

// Files reads a control plane's mesh from a file or a directory of files (proxyconfig.ReadFile).
type Files struct {
	path   string
	reader *proxyconfig.Reader
	seen   string // the stamp when NewFiles was called, then at the last change; used only by NewFiles and Watch
}

// NewFiles returns the files at a path.
func NewFiles(path string) *Files { return &Files{path, proxyconfig.NewReader(path), stampOf(path)} }

// Read reads the files. If one is invalid, the error says where. Calls must not overlap.
func (f *Files) Read() (*proxyconfig.Mesh, error) { return f.reader.Read() }

// Watch checks the files ten times a second until ctx ends. It calls changed() whenever they differ from what they were
// at the last call or, at first, at NewFiles. It waits a while for a directory to stop changing, so that several files
// written at once make one change. An error from changed ends Watch.
func (f *Files) Watch(ctx context.Context, changed func() error) error {
	clock := time.NewTicker(poll)
	defer clock.Stop()
	waited, last := 0, f.seen
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-clock.C:
		}
		now := stampOf(f.path)
		if now == f.seen {
			waited, last = 0, now
			continue
		}
		if several := strings.Contains(now, "\n"); several && now != last && waited < mostPolls {
			waited, last = waited+1, now
			continue
		}
		f.seen, waited, last = now, 0, now
		if err := changed(); err != nil {
			return err
		}
	}
}

// stampOf returns a summary of the files at a path, which differs after every change. The summary of a directory has a
// line for each file; the summary of a single file contains no newline.
func stampOf(path string) string {
	stamp := func(name string) string {
		var s unix.Stat_t
		if unix.Stat(name, &s) != nil {
			return name + " missing"
		}
		return fmt.Sprint(name, s.Size, s.Mtim.Nano(), s.Ino)
	}
	names, err := proxyconfig.Files(path)
	if err != nil {
		return stamp(path)
	}
	if len(names) == 1 && names[0] == path {
		return stamp(path)
	}
	var b strings.Builder
	for _, name := range names {
		b.WriteString(stamp(name) + "\n")
	}
	return b.String()
}
