package meter

import "testing"

// TestAtTop: where only a part of the hierarchy is mounted, its topmost group takes the place of the root.
func TestAtTop(t *testing.T) {
	for _, c := range []struct {
		path, root string
		want       bool
	}{
		{"/", "/", true}, {"/a", "/", true}, {"/a/b", "/", false},
		{"/docker/x", "/docker/x", true}, {"/docker/x/a", "/docker/x", true}, {"/docker/x/a/b", "/docker/x", false},
		{"/docker", "/docker/x", false}, {"/docker/xy", "/docker/x", false}, {"/docker/xy/a", "/docker/x", false},
	} {
		if got := atTop(c.path, c.root); got != c.want {
			t.Errorf("%s below %s: %v", c.path, c.root, got)
		}
	}
}
