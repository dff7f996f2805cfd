package cgroup

import (
	"os"
	"path/filepath"
	"testing"
)

// A reader of some groups reads only those, and releases them.
func TestReaderOfSome(t *testing.T) {
	for layout, path := range map[string]string{"v1": "/docker/aa", "v2": "/user.slice", "hybrid": "/both"} {
		t.Run(layout, func(t *testing.T) {
			l := fixture(t, layout)
			all, err := NewReader(l)
			if err != nil {
				t.Fatal(err)
			}
			defer all.Close()
			if err := errorsOf(all); err != nil {
				t.Fatal(err)
			}
			want := all.find(t, path)
			r, err := NewReaderOfSome(l)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			if len(r.Groups()) != 0 {
				t.Errorf("%d groups are read without being named", len(r.Groups()))
			}
			budget := r.budget
			g := r.Add(path)
			if g == nil || r.Add(path) != g || len(r.Groups()) != 1 {
				t.Fatalf("added %+v; there are %d", g, len(r.Groups()))
			}
			if err := r.ReadCPUOf(g); err != nil {
				t.Error(err)
			}
			if err := r.ReadMemoryOf(g); err != nil {
				t.Error(err)
			}
			if g.CPU != want.CPU || g.Memory != want.Memory {
				t.Errorf("read %+v %+v, want %+v %+v", g.CPU, g.Memory, want.CPU, want.Memory)
			}
			if g := r.Add("/no/such/group"); g != nil {
				t.Errorf("added %+v", g)
			}
			if g := r.Add("/../etc"); g != nil {
				t.Errorf("added %+v", g)
			}
			r.Remove(g)
			if len(r.Groups()) != 0 || r.budget != budget {
				t.Errorf("%d groups are left, %d descriptors", len(r.Groups()), budget-r.budget)
			}
			if again := r.Add(path); again == nil || again == g {
				t.Errorf("added again: %p, was %p", again, g)
			}
		})
	}
}

// TestCharged checks to which groups a thread is charged, by hierarchy.
func TestCharged(t *testing.T) {
	const v1 = "9:memory:/m\n4:cpu,cpuacct:/c\n1:name=systemd:/s\n"
	for _, c := range []struct {
		layout, content string
		want            Charged
	}{
		{"v1", v1, Charged{"/c", "/m"}},
		{"v1", "4:cpu,cpuacct:/c\n", Charged{"/c", ""}},
		{"v2", "0::/x (deleted)\n", Charged{"/x", "/x"}},
		{"v2", "0::/a:b:c\n", Charged{"/a:b:c", "/a:b:c"}},
		{"hybrid", v1 + "0::/u\n", Charged{"/c", "/m"}},
		{"v2", "0:/x\n::\n0::x", Charged{}},
	} {
		if got := fixture(t, c.layout).NewResolver().Charged([]byte(c.content)); got != c.want {
			t.Errorf("%s, %q: %+v, want %+v", c.layout, c.content, got, c.want)
		}
	}
}

func TestMemoryLimit(t *testing.T) {
	for name, c := range map[string]struct {
		file, text string
		want       Value
	}{
		"v2":             {"memory.max", "8192\n", Value{8192, true}},
		"v2, any":        {"memory.max", "max\n", Value{}},
		"v1":             {"memory.limit_in_bytes", "4096\n", Value{4096, true}},
		"v1, any":        {"memory.limit_in_bytes", "9223372036854771712\n", Value{}},
		"something else": {"memory.high", "1\n", Value{}},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := MemoryLimit(dir); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
