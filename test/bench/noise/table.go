package main

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
)

var columns = []string{"quiet", "neighbour", "steal"}

// printTable prints the outcomes as Markdown: a row for each promise, and how often it held in each condition. With
// anyOf the outcomes of all binaries count, otherwise only those of the latest.
func printTable(w io.Writer, found []outcome, anyOf bool) error {
	if len(found) == 0 {
		return fmt.Errorf("nothing was found yet")
	}
	latest := slices.MaxFunc(found, func(a, b outcome) int { return a.At.Compare(b.At) }).Tare
	if anyOf {
		latest += " and all before it"
	} else {
		found = slices.DeleteFunc(slices.Clone(found), func(o outcome) bool { return o.Tare != latest })
	}
	fmt.Fprintf(w, "%s\n\n| promise | %s |\n|---|%s\n", latest, strings.Join(columns, " | "),
		strings.Repeat("---|", len(columns)))
	for _, k := range kinds {
		row := []string{k.promise}
		for _, column := range columns {
			row = append(row, cell(k, slices.DeleteFunc(slices.Clone(found),
				func(o outcome) bool { return o.Kind != k.name || o.column() != column })))
		}
		if _, err := fmt.Fprintf(w, "| %s |\n", strings.Join(row, " | ")); err != nil {
			return err
		}
	}
	return nil
}

// cell says in how many repetitions the promise held, and gives the figures of all repetitions: the median, and the
// smallest and largest.
func cell(k kind, found []outcome) string {
	if len(found) == 0 {
		return "-"
	}
	held := 0
	stolen := make([]float64, 0, len(found))
	for _, o := range found {
		if o.Held {
			held++
		}
		stolen = append(stolen, o.Stolen)
	}
	parts := []string{fmt.Sprintf("**%d of %d**", held, len(found))}
	for _, f := range k.figures {
		var values []float64
		for _, o := range found {
			if v, ok := o.Values[f.value]; ok {
				values = append(values, f.scale*v)
			}
		}
		if len(values) > 0 {
			parts = append(parts, f.name+" "+spread(values, f.unit))
		}
	}
	for i := range stolen {
		stolen[i] *= 100
	}
	return strings.Join(append(parts, "stolen "+spread(stolen, "%")), "; ")
}

// spread returns the median with the smallest and largest value as text, or one value if all are the same.
func spread(values []float64, unit string) string {
	values = slices.Sorted(slices.Values(values))
	n := len(values)
	median := (values[(n-1)/2] + values[n/2]) / 2
	text := number(median)
	if values[0] != values[n-1] {
		text = fmt.Sprintf("%s (%s to %s)", text, number(values[0]), number(values[n-1]))
	}
	return strings.TrimSpace(text + " " + unit)
}

// number formats a value with three significant digits, or with all of them if it is whole.
func number(v float64) string {
	if v == math.Trunc(v) {
		return fmt.Sprintf("%.0f", v)
	}
	return fmt.Sprintf("%.3g", v)
}
