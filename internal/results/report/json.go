package report

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"reflect"
	"strconv"
	"strings"

	"tare/internal/results/analysis"
	"tare/internal/results/comparison"
	"tare/internal/scale/ledger"
)

func init() {
	register(Format{
		Name: "json", Help: "one JSON document, with its schema",
		Run:        func(w io.Writer, r *Run, _ Options) error { return JSON(w, r.Summary) },
		Comparison: func(w io.Writer, c *comparison.Comparison, _ Options) error { return AsJSON(w, c) },
		History:    func(w io.Writer, c *comparison.Course, _ Options) error { return AsJSON(w, c) },
		Power:      func(w io.Writer, p *analysis.Power, _ Options) error { return AsJSON(w, p) },
		Ledger: func(w io.Writer, l *ledger.Ledger, _ Options) error {
			e := json.NewEncoder(w)
			e.SetIndent("", " ")
			return e.Encode(l)
		},
		Series: func(w io.Writer, all iter.Seq[*ledger.Ledger], _ Options) error {
			e := json.NewEncoder(w) // without an indent a document is one line
			return each(all, func(l *ledger.Ledger) error { return e.Encode(l) })
		},
	})
}

// JSON writes summary.json.
func JSON(w io.Writer, s *analysis.Summary) error { return AsJSON(w, s) }

// AsJSON writes a summary, a comparison, a history or another struct as one JSON document with two spaces of indent.
func AsJSON(w io.Writer, document any) error {
	out := bufio.NewWriter(w)
	if err := cmp.Or(encode(out, reflect.Indirect(reflect.ValueOf(document))), out.Flush()); err != nil {
		return fmt.Errorf("writing JSON: %w", err)
	}
	return nil
}

// encode writes a struct as a json.Encoder with that indent does, but encodes what its slices hold one by one: each
// estimate repeats the levels of the factors, so that all at once take many times the memory of the record. Of options
// in tags it knows omitempty. Errors of writing are left for Flush.
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
		if options == "omitempty" && isEmpty(value) {
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

// isEmpty is what encoding/json means by it.
func isEmpty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Struct:
		return false
	case reflect.Slice, reflect.Map:
		return v.Len() == 0
	}
	return v.IsZero()
}
