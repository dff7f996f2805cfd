package controlplane

import (
	"context"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"tare/internal/mesh/controlplane/proxyconfig"
)

// Source is where a control plane's mesh comes from: files, or objects of an API that says the same.
type Source interface {
	// String is what the log calls it, such as a path.
	String() string
	// Read gives the mesh of the moment. Its error says where the source is wrong; the control plane then stays with what
	// it had.
	Read(context.Context) (*proxyconfig.Mesh, error)
	// Watch calls changed whenever Read may give something else than it gave before, until ctx ends, and returns nil then.
	// What has changed between the first Read and Watch counts as well. An error ends the control plane.
	Watch(ctx context.Context, changed func()) error
}

// poll is how often files are looked at.
const poll = 100 * time.Millisecond

// mostPolls is for how many polls a directory may go on changing before it is read all the same.
const mostPolls = 10

// Files is a file as a source, or a directory with files (proxyconfig.ReadFile).
type Files struct {
	path   string
	reader *proxyconfig.Reader
	seen   string // what was there before the last Read; only for the goroutine of Read, and of Watch after it
}

// NewFiles is the source at a path.
func NewFiles(path string) *Files { return &Files{path, proxyconfig.NewReader(path), stampOf(path)} }

func (f *Files) String() string { return f.path }

// Read reads the files. One call must end before the next.
func (f *Files) Read(context.Context) (*proxyconfig.Mesh, error) { return f.reader.Read() }

// Watch looks at the files ten times a second. A directory is let come to rest first: who writes several of its files
// makes one change.
func (f *Files) Watch(ctx context.Context, changed func()) error {
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
		changed()
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
