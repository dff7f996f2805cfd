package lists_test

import (
	"fmt"
	"maps"
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

func TestKeyed(t *testing.T) {
	got := lists.Keyed([]string{"one", "two", "three"}, func(s string) (int, string) { return len(s), s })
	if want := map[int]string{3: "two", 5: "three"}; !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	if got := lists.Keyed(nil, func(s string) (string, bool) { return s, true }); got == nil || len(got) > 0 {
		t.Errorf("of none: %#v, want a map that can be added to", got)
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

func TestGroups(t *testing.T) {
	var g lists.Groups[string, int]
	for range g.All() {
		t.Error("there is a group of none")
	}
	g.Add("b", 3)
	g.Add("a", 1)
	g.Add("b", 2)
	var got []string
	for key, values := range g.All() {
		got = append(got, fmt.Sprint(key, values))
	}
	if want := []string{"b[3 2]", "a[1]"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	for key := range g.All() {
		if key != "b" {
			t.Error("a loop that ended goes on")
		}
		break
	}
}

func TestByKey(t *testing.T) {
	var got []string
	for key, value := range lists.ByKey(map[int]string{2: "b", 3: "c", 1: "a"}) {
		if got = append(got, fmt.Sprint(key, value)); key == 2 {
			break
		}
	}
	if want := []string{"1a", "2b"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
