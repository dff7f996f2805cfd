package tracer

import (
	"bytes"
	"encoding/json"
	"errors"
	"slices"
	"strconv"
	"strings"
)

// parsePath parses a path into a JSON document: keys separated by dots, where a number is an index in a list. As in jq,
// a leading dot is allowed. The error continues a sentence that begins with the path's name.
func parsePath(text string) ([]string, error) {
	path := strings.Split(strings.TrimPrefix(text, "."), ".")
	for _, key := range path {
		if strings.TrimSpace(key) == "" {
			return nil, errors.New("is not a path: write the keys with a dot between, such as stats.delivered")
		}
	}
	return path, nil
}

// lookUp finds the integer at a path in a line of JSON. A number in a string also counts, because 64-bit integers are
// often written as strings. lookUp returns false if the line has no integer there, or does not begin with JSON. The
// last of duplicate keys counts.
func lookUp(line []byte, path []string) (int64, bool) {
	// Most lines of a storm lack the key, and need not be decoded. A key with escapes contains a backslash.
	lacks := func(key string) bool {
		_, err := strconv.Atoi(key) // the key may be an index in a list
		return err != nil && !bytes.Contains(line, []byte(key))
	}
	if slices.ContainsFunc(path, lacks) && bytes.IndexByte(line, '\\') < 0 {
		return 0, false
	}
	decoder := json.NewDecoder(bytes.NewReader(line))
	decoder.UseNumber()
	var value any
	if decoder.Decode(&value) != nil {
		return 0, false
	}
	for _, key := range path {
		switch of := value.(type) {
		case map[string]any:
			value = of[key]
		case []any:
			at, err := strconv.Atoi(key)
			if err != nil || at < 0 || at >= len(of) {
				return 0, false
			}
			value = of[at]
		default:
			return 0, false
		}
	}
	switch number := value.(type) {
	case json.Number:
		return whole(number.String())
	case string:
		return whole(number)
	}
	return 0, false
}

// whole parses an integer that is not negative, in any notation.
func whole(text string) (int64, bool) {
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		return max(n, 0), n >= 0
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f < 0 || f >= 1<<63 || f != float64(int64(f)) {
		return 0, false
	}
	return int64(f), true
}
