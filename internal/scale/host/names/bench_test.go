package names

import (
	"fmt"
	"testing"
)

// BenchmarkOf measures one tick with 3,000 containers whose names are known, 3,000 new ones, and 3,000 without files.
func BenchmarkOf(b *testing.B) {
	root := b.TempDir()
	groups := make([]string, 3000)
	for i := range groups {
		id := fmt.Sprintf("%064x", i)
		groups[i] = fmt.Sprintf("/kubepods/burstable/pod%08x-92a0-4c63-8d0e-0d5b7f3a9e11/%s", i/3, id)
		writeFile(b, root, bundles+id+"/config.json", bundle(fmt.Sprint("c", i)))
	}
	tick := func(r *Resolver) {
		for _, g := range groups {
			r.Of(g)
		}
	}
	b.Run("known", func(b *testing.B) {
		r := Open(Options{Root: root})
		tick(r)
		b.ReportAllocs()
		for b.Loop() {
			tick(r)
		}
	})
	b.Run("first", func(b *testing.B) {
		for b.Loop() {
			tick(Open(Options{Root: root}))
		}
	})
	b.Run("absent", func(b *testing.B) {
		empty := b.TempDir()
		for b.Loop() {
			tick(Open(Options{Root: empty}))
		}
	})
}
