package record

import (
	"encoding/json"
	"fmt"
	"reflect"
)

// Records are untrusted, so the cost of reading one is bounded. A document is refused before it is decoded if decoding
// would take too much memory, and a record is refused if the decoded trials would take too much. Writer observes the
// same bounds. docs/formats.md states them.
const (
	// MaxTrials limits the trials of a plan, and MaxAttempts the lines of the trials file, which include repetitions.
	MaxTrials   = 20_000
	MaxAttempts = 30_000

	// MaxPlaces limits the places of a plan. A place is an arm at a level.
	MaxPlaces = 1000

	// MaxMetrics limits the metrics that a run defines.
	MaxMetrics = 2000

	// MaxFactors limits the factors of a trial, and maxPlaceBytes the length of its arm and of the names and levels of its
	// factors together, in bytes. A report uses these texts as a key many times for each metric, and some formats repeat
	// them for each metric.
	MaxFactors    = 64
	maxPlaceBytes = 4 << 10

	maxRunBytes    = 16 << 20
	maxTrialBytes  = 16 << 20
	maxTrialsBytes = 1 << 30  // bytes of all lines together
	maxKept        = 96 << 20 // bytes of memory for all trials, as decoded for a report

	// Limits of one document: objects, arrays and elements of arrays; members of objects; depth of nesting. An element of
	// the largest struct takes about 300 bytes of memory, from a few bytes of text.
	maxElements = 100_000
	maxMembers  = 500_000
	maxDepth    = 64
)

// unmarshal is json.Unmarshal, except that it returns a *tooLarge for a document that would take too much memory.
func unmarshal(doc []byte, to any) error {
	if err := checkShape(doc); err != nil {
		return &tooLarge{err}
	}
	return json.Unmarshal(doc, to)
}

// checkShape refuses a document that would take too much memory to decode. Decoding finds all other errors.
func checkShape(doc []byte) error {
	elements, members := 0, 0
	var inArray [maxDepth]bool
	depth, quoted := 0, false
	for i := 0; i < len(doc); i++ {
		c := doc[i]
		if quoted {
			switch c {
			case '\\':
				i++
			case '"':
				quoted = false
			}
			continue
		}
		switch c {
		case '"':
			quoted = true
		case '{', '[':
			if depth == maxDepth {
				return fmt.Errorf("it is nested more than %d deep", maxDepth)
			}
			inArray[depth] = c == '['
			depth++
			elements++
		case '}', ']':
			depth = max(depth-1, 0)
		case ':':
			members++
		case ',':
			if depth > 0 && inArray[depth-1] {
				elements++
			}
		}
	}
	switch {
	case elements > maxElements:
		return fmt.Errorf("it has %d objects and elements of arrays, and %d are allowed", elements, maxElements)
	case members > maxMembers:
		return fmt.Errorf("it has %d members of objects, and %d are allowed", members, maxMembers)
	}
	return nil
}

// SizeOf estimates how many bytes of memory a value takes with all that it points to. The value must not have cycles.
func SizeOf(v any) int64 {
	of := reflect.ValueOf(v)
	return int64(of.Type().Size()) + behind(of)
}

// behind returns the bytes that a value points to.
func behind(v reflect.Value) (n int64) {
	switch v.Kind() {
	case reflect.String:
		return int64(v.Len())
	case reflect.Pointer:
		if !v.IsNil() {
			return int64(v.Elem().Type().Size()) + behind(v.Elem())
		}
	case reflect.Interface:
		if !v.IsNil() {
			return int64(v.Elem().Type().Size()) + behind(v.Elem())
		}
	case reflect.Slice:
		n = int64(v.Cap()) * int64(v.Type().Elem().Size())
		if v.Type().Elem().Kind() != reflect.Uint8 {
			for i := range v.Len() {
				n += behind(v.Index(i))
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			n += behind(v.Index(i))
		}
	case reflect.Map:
		if v.IsNil() {
			return 0
		}
		each := int64(v.Type().Key().Size()+v.Type().Elem().Size()) * 3 / 2 // the table of a map is never full
		n = 48
		for it := v.MapRange(); it.Next(); {
			n += each + behind(it.Key()) + behind(it.Value())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			n += behind(v.Field(i))
		}
	}
	return n
}
