package ads

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestParts: steps between tables with a base equal those between tables without one that have the same resources.
func TestParts(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	resource := func(name int) *Resource {
		r, err := encoder.Resource(messageOf("C", fmt.Sprintf("c%02d", name), fmt.Sprint(random.IntN(3))))
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	bases := []*Table{nil}
	for range 6 {
		var list []*Resource
		for name := range 12 {
			if random.IntN(2) == 0 {
				list = append(list, resource(name))
			}
		}
		base, err := NewTable(list)
		if err != nil {
			t.Fatal(err)
		}
		bases = append(bases, base)
	}
	table := func() (parted, whole *Table) {
		base := bases[random.IntN(len(bases))]
		var own []*Resource
		for name := range 16 {
			if base.Get(fmt.Sprintf("c%02d", name)) == nil && random.IntN(3) == 0 {
				own = append(own, resource(name))
			}
		}
		random.Shuffle(len(own), func(i, j int) { own[i], own[j] = own[j], own[i] })
		parted, err := base.With(own)
		if err != nil {
			t.Fatal(err)
		}
		whole, err = NewTable(parted.all())
		if err != nil {
			t.Fatal(err)
		}
		return parted, whole
	}
	parted, whole := table()
	moved := 0
	for range 3000 {
		nextParted, nextWhole := table()
		a, b := parted.stepTo(nextParted), whole.stepTo(nextWhole)
		if parted.base != nil && nextParted.base != nil && parted != nextParted && parted.partsTo(nextParted) == nil {
			moved++
		}
		if !slices.Equal(a.changed, b.changed) || !slices.Equal(a.removed, b.removed) ||
			a.kept.Version() != b.kept.Version() ||
			!slices.Equal(a.kept.all(), b.kept.all()) {
			t.Fatalf("changed %v, not %v; removed %v, not %v; kept %v, not %v", namesOf(a.changed), namesOf(b.changed),
				namesOf(a.removed), namesOf(b.removed), namesOf(a.kept.all()), namesOf(b.kept.all()))
		}
		if nextParted.Version() != nextWhole.Version() || nextParted.Len() != nextWhole.Len() {
			t.Fatalf("version %s of %d, not %s of %d", nextParted.Version(), nextParted.Len(), nextWhole.Version(),
				nextWhole.Len())
		}
		parted, whole = nextParted, nextWhole
		if random.IntN(3) == 0 { // as while a removal is still to be sent
			parted, whole = a.kept, b.kept
		}
	}
	if moved == 0 {
		t.Error("nothing has gone from one part to another")
	}
	if _, err := bases[1].With([]*Resource{bases[1].list[0]}); err == nil {
		t.Error("a name of the base's is taken")
	}
}

// TestBasesStepOnce: the step from one base to the next is computed once for all tables with that base.
func TestBasesStepOnce(t *testing.T) {
	v := viewOf(t, "C a b c")
	w := viewOf(t, "C a b=2 c")
	from, to := v.Tables[ClusterType], w.Tables[ClusterType]
	var first []*Resource
	for i := range 3 {
		own := []*Resource{viewOf(t, fmt.Sprint("C own", i)).Tables[ClusterType].list[0]}
		a, errA := from.With(own)
		b, errB := to.With(own)
		if errA != nil || errB != nil {
			t.Fatal(errA, errB)
		}
		changed := a.stepTo(b).changed
		if i == 0 {
			first = changed
		}
		if len(changed) != 1 || &changed[0] != &first[0] {
			t.Errorf("%d changed, in a list of its own", len(changed))
		}
	}
}
