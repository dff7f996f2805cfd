package link

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
)

// TestNamespaces: two joined namespaces reach each other, and no others reach them. The threads of this process, above
// all the first, stay in their namespace, and the new namespaces disappear when nothing has them open.
func TestNamespaces(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: it makes network namespaces")
	}
	own := place(t, "/proc/self/ns/net")
	var both [2]*Namespace
	for i := range both {
		n, err := NewNamespace()
		if err != nil {
			t.Fatal(err)
		}
		defer func() {
			for range 2 {
				if err := n.Close(); err != nil {
					t.Error(err)
				}
			}
		}()
		both[i] = n
	}
	here, there := netip.MustParsePrefix("198.18.0.1/30"), netip.MustParsePrefix("198.18.0.2/30")
	if err := Connect(both[0], both[1], here, there); err != nil {
		t.Fatal(err)
	}
	var l net.Listener
	err := both[1].Do(func() (err error) {
		l, err = net.Listen("tcp", net.JoinHostPort(there.Addr().String(), "0"))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	// From many goroutines at once, so that the first thread is checked too.
	var all sync.WaitGroup
	for range 4 * runtime.GOMAXPROCS(0) {
		all.Go(func() {
			c, err := both[0].DialContext(t.Context(), "tcp", l.Addr().String())
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			if from, _, _ := strings.Cut(c.LocalAddr().String(), ":"); from != here.Addr().String() {
				t.Errorf("it connects from %s", from)
			}
		})
	}
	all.Wait()
	if _, err := both[0].DialContext(t.Context(), "tcp", "localhost:1"); err == nil {
		t.Error("a name is looked up, wherever")
	}
	again, err := OpenNamespace(both[0].Path())
	if err != nil {
		t.Fatal(err)
	}
	if a, b := place(t, both[0].Path()), place(t, again.Path()); a != b || a == own {
		t.Errorf("%s opened again is %s; this process is in %s", a, b, own)
	}
	if err := again.Close(); err != nil {
		t.Error(err)
	}
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if now := place(t, "/proc/self/ns/net"); now != own {
		t.Errorf("the first of %d threads is in %s, and was in %s", len(threads), now, own)
	}
}

func place(t *testing.T, path string) string {
	t.Helper()
	to, err := os.Readlink(path)
	if err != nil {
		t.Fatal(err)
	}
	return to
}
