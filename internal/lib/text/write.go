package text

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
)

// WriteJSON writes a struct as one JSON document with two spaces of indent.
func WriteJSON(w io.Writer, document any) error {
	out := bufio.NewWriter(w)
	if err := cmp.Or(encode(out, reflect.Indirect(reflect.ValueOf(document))), out.Flush()); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return nil
}

// encode writes a struct as a json.Encoder with the same indent would, but encodes the elements of its slices one by
// one. Each estimate repeats the levels of the factors, so encoding all at once takes many times the memory of the
// record. Of the options in tags it supports only omitempty. Write errors are left for Flush.
func encode(w *bufio.Writer, v reflect.Value) error {
	const indent = "  "
	put := func(before string, v reflect.Value, depth int) error {
		text, err := json.MarshalIndent(v.Interface(), strings.Repeat(indent, depth), indent)
		_, _ = w.WriteString(before)
		_, _ = w.Write(text)
		return err
	}
	before := "{\n"
	for field, value := range v.Fields() {
		name, options, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !field.IsExported() || name == "-" || options == "omitempty" && isEmpty(value) {
			continue
		}
		before += indent + strconv.Quote(name) + ": "
		if value.Kind() != reflect.Slice || value.Len() == 0 {
			if err := put(before, value, 1); err != nil {
				return err
			}
			before = ",\n"
			continue
		}
		before += "["
		for i := range value.Len() {
			if err := put(before+"\n"+indent+indent, value.Index(i), 2); err != nil {
				return err
			}
			before = ","
		}
		before = "\n" + indent + "],\n"
	}
	_, _ = w.WriteString(strings.TrimSuffix(before, ",\n") + "\n}\n")
	return nil
}

// isEmpty reports whether encoding/json omits a field with the value v and the option omitempty.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Struct:
		return false
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	}
	return v.IsZero()
}
