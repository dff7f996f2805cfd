package record

import (
	"reflect"
	"testing"
)

// TestMergeEvents: every count is added up.
func TestMergeEvents(t *testing.T) {
	numbered := func(factor int64) *Events {
		e, n := &Events{Scope: "group", KernelCount: &KernelCount{}, Offset: &Offset{}}, int64(0)
		for _, of := range []any{e, e.KernelCount, e.Offset} {
			for _, field := range reflect.ValueOf(of).Elem().Fields() {
				n++
				switch field.Interface().(type) {
				case int64:
					field.SetInt(n * factor)
				case *int64:
					field.Set(reflect.ValueOf(new(n * factor)))
				}
			}
		}
		return e
	}
	one := numbered(1)
	if got, want := MergeEvents([]*Events{one, one, one}), numbered(3); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if !reflect.DeepEqual(one, numbered(1)) {
		t.Errorf("merging changed its argument: %+v", one)
	}
	without := *one
	without.SaidLost = nil
	want := numbered(2)
	want.SaidLost = nil
	for _, all := range [][]*Events{{one, &without}, {&without, one}} {
		if got := MergeEvents(all); !reflect.DeepEqual(got, want) {
			t.Errorf("with a count missing: got %+v, want %+v", got, want)
		}
	}
	pods := &Events{Generated: 3, Delivered: new(int64(2))} // in pods only the load counts events
	sum := &Events{Generated: 6, Delivered: new(int64(4))}
	if got := MergeEvents([]*Events{pods, pods}); !reflect.DeepEqual(got, sum) {
		t.Errorf("in pods: %+v", got)
	}
	if MergeEvents([]*Events{one, nil}) != nil || MergeEvents(nil) != nil {
		t.Error("events of some trials only were given as those of all")
	}
}
