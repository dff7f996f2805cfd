package controlplane

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/mesh/controlplane/proxyconfig"
)

// poll is the interval between two looks at the files.
const poll = 100 * time.Millisecond

// mostPolls is after how many polls a directory is read even though it is still changing.
const mostPolls = 10

// Files is a control plane's mesh: a file, or a directory of files (proxyconfig.ReadFile).
type Files struct {
	path   string
	reader *proxyconfig.Reader
	seen   string // the stamp of NewFiles, then that of the last change; used only by NewFiles and Watch
}

// NewFiles returns the files at a path.
func NewFiles(path string) *Files { return &Files{path, proxyconfig.NewReader(path), stampOf(path)} }

// Read reads the files. Its error says where they are wrong. Calls must not overlap.
func (f *Files) Read() (*proxyconfig.Mesh, error) { return f.reader.Read() }

// Watch looks at the files ten times a second until ctx ends, and calls changed whenever they have changed, for the
// first time if they have since NewFiles. A directory must first have come to rest, so that writing several of its
// files makes one change. An error of changed ends Watch.
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

// stampOf summarizes a path so that changes show: a word for a file, a line for each file of a directory.
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
