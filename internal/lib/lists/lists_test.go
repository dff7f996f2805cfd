package lists_test

import (
	"slices"
	"strconv"
	"testing"

	"tare/internal/lib/lists"
)

func TestMap(t *testing.T) {
	if got := lists.Map([]int{3, 1, 2}, strconv.Itoa); !slices.Equal(got, []string{"3", "1", "2"}) {
		t.Errorf("%q", got)
	}
	if got := lists.Map([]int{}, strconv.Itoa); got != nil {
		t.Errorf("of none: %#v, want nil, which JSON has as null like any list that nothing was added to", got)
	}
}

func TestInclude(t *testing.T) {
	if got := lists.Include([]int{2, 1}, 3, 1, 3, 0); !slices.Equal(got, []int{2, 1, 3, 0}) {
		t.Error(got)
	}
	if got := lists.Include[int](nil); got != nil {
		t.Errorf("nothing and nothing: %#v", got)
	}
}

func TestFind(t *testing.T) {
	list := []int{1, 2, 3}
	if got := lists.Find(list, func(n *int) bool { return *n > 1 }); got != &list[1] {
		t.Errorf("%v, want what is in the list itself", got)
	}
	if got := lists.Find(list, func(n *int) bool { return *n > 3 }); got != nil {
		t.Errorf("%d, want none", *got)
	}
}
