package controlplane

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/mesh/controlplane/proxyconfig"
)

// poll is how often files are looked at.
const poll = 100 * time.Millisecond

// mostPolls is for how many polls a directory may go on changing before it is read all the same.
const mostPolls = 10

// Files are a control plane's mesh: a file, or a directory with files (proxyconfig.ReadFile).
type Files struct {
	path   string
	reader *proxyconfig.Reader
	seen   string // what was there before the last Read; only for the goroutine of Read, and of Watch after it
}

// NewFiles are those at a path.
func NewFiles(path string) *Files { return &Files{path, proxyconfig.NewReader(path), stampOf(path)} }

// Read reads the files. Its error says where they are wrong. One call must end before the next.
func (f *Files) Read() (*proxyconfig.Mesh, error) { return f.reader.Read() }

// Watch looks at the files ten times a second until ctx ends, and calls changed whenever Read may give something else
// than it gave before; what has changed between the first Read and Watch counts as well. An error of changed ends it. A
// directory is let come to rest first: who writes several of its files makes one change.
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

// stampOf is by what a change of a path is seen: for a file a word, for a directory a line for each of its files.
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
