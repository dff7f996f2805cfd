package load

import (
	"encoding/json"
	"reflect"
	"testing"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// fill sets every field of a struct, and of the structs and maps in it.
func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		v.SetInt(2)
	case reflect.Float64:
		v.SetFloat(2)
	case reflect.String:
		v.SetString("same")
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem())
	case reflect.Map:
		value := reflect.New(v.Type().Elem()).Elem()
		fill(value)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("key"), value)
	case reflect.Struct:
		for _, field := range v.Fields() {
			fill(field)
		}
	}
}

// TestMerge: two equal results are merged in every field, except those that cannot be merged.
func TestMerge(t *testing.T) {
	var one, want Result
	fill(reflect.ValueOf(&one).Elem())
	one.Own = json.RawMessage(`{}`)
	h := hdrhistogram.New(1, 1000, 3)
	_ = h.RecordValue(7)
	one.Histograms = nil
	if err := one.SetHistogram(Latency, h); err != nil {
		t.Fatal(err)
	}
	fill(reflect.ValueOf(&want).Elem())
	for _, field := range reflect.ValueOf(&want).Elem().Fields() {
		double(field)
	}
	want.Seconds, want.Streams, want.Slices, want.Own = one.Seconds, one.Streams, nil, nil
	r := want.Running
	r.Level, r.LargestWeight, r.LostShare, r.Scale = 2, 2, 2, 2
	_ = h.RecordValue(7)
	want.Histograms = nil
	if err := want.SetHistogram(Latency, h); err != nil {
		t.Fatal(err)
	}
	got := Merge([]Result{one, one})
	if merged, err := got.Histogram(Latency); err != nil || merged == nil || merged.TotalCount() != 2 {
		t.Errorf("the histogram: %v, %v", merged, err)
	}
	got.Histograms = want.Histograms // the encoding depends on the range
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%+v\n%+v, want\n%+v\n%+v", got, got.Running, want, want.Running)
	}
	if alone := Merge([]Result{one}); string(alone.Own) != "{}" || alone.Slices != nil || alone.Streams != 2 {
		t.Errorf("of one: %+v", alone)
	}
}

// double doubles every number.
func double(v reflect.Value) {
	switch v.Kind() {
	case reflect.Int, reflect.Int64:
		v.SetInt(2 * v.Int())
	case reflect.Float64:
		v.SetFloat(2 * v.Float())
	case reflect.Pointer:
		double(v.Elem())
	case reflect.Map:
		for _, key := range v.MapKeys() {
			value := reflect.New(v.Type().Elem()).Elem()
			value.Set(v.MapIndex(key))
			double(value)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for _, field := range v.Fields() {
			double(field)
		}
	}
}
