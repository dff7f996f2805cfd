package record

import (
	"reflect"
	"testing"
)

// TestMergeEvents: every count is added up.
func TestMergeEvents(t *testing.T) {
	numbered := func(factor int64) *Events {
		e, n := &Events{Scope: "group"}, int64(0)
		for _, of := range []reflect.Value{reflect.ValueOf(e).Elem(), reflect.ValueOf(&e.Offset).Elem()} {
			for _, field := range of.Fields() {
				n++
				switch field.Kind() {
				case reflect.Int64:
					field.SetInt(n * factor)
				case reflect.Pointer:
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
	if MergeEvents([]*Events{one, nil}) != nil || MergeEvents(nil) != nil {
		t.Error("events of some trials only were given as those of all")
	}
}
