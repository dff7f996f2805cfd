package tool

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
)

// The units of times and sizes.
var (
	timeUnits = []unit{
		{"ns", 1e-9}, {"us", 1e-6}, {"µs", 1e-6}, {"μs", 1e-6}, {"ms", 1e-3}, {"sec", 1}, {"secs", 1}, {"min", 60},
		{"hr", 3600}, {"s", 1}, {"m", 60}, {"h", 3600},
	}
	// wrk and oha use powers of 1024 (format_binary in wrk's units.c, byte_unit in oha's printer.rs), and k6 uses powers
	// of 1000.
	binaryUnits = []unit{
		{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
		{"KB", 1 << 10}, {"MB", 1 << 20}, {"GB", 1 << 30}, {"TB", 1 << 40}, {"PB", 1 << 50}, {"B", 1},
	}
	decimalUnits = []unit{{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}}
)

type unit struct {
	name string
	size float64
}

// measure parses a number with its unit, such as 1.12s or "109.28 KiB".
func measure(text string, units []unit) (float64, error) {
	text = strings.TrimSpace(text)
	end := strings.IndexFunc(text, func(r rune) bool { return !strings.ContainsRune("0123456789.+-eE", r) })
	if end <= 0 {
		return 0, fmt.Errorf("%q is not a number with a unit", clip(text))
	}
	f, err := number(text[:end])
	if err != nil {
		return 0, err
	}
	name := strings.TrimSpace(text[end:])
	for _, u := range units {
		if u.name == name {
			return f * u.size, nil
		}
	}
	return 0, fmt.Errorf("%q has the unknown unit %q", clip(text), clip(name))
}

// duration parses a time such as "1.23ms" or "1m2.5s" to seconds.
func duration(text string) (float64, error) {
	d, err := time.ParseDuration(strings.TrimSpace(text))
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%q is not a time", clip(text))
	}
	return d.Seconds(), nil
}

// number parses a finite decimal number that is not negative.
func number(text string) (float64, error) {
	f, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
	if err != nil || math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
		return 0, fmt.Errorf("%q is not a number that can have been measured", clip(text))
	}
	return f, nil
}

// count parses an integer that is not negative.
func count(text string) (int64, error) {
	n, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil || n < 0 {
		return 0, fmt.Errorf("%q is not a count", clip(text))
	}
	return n, nil
}

// bytes rounds a size to an integer. It returns nil if the size is negative or too large.
func bytes(size float64) *int64 {
	if size < 0 || size >= 1<<62 {
		return nil
	}
	n := int64(math.Round(size))
	return &n
}

// maxObjects is the maximum number of JSON objects that are examined in one output. Lines of a log may be objects too.
const maxObjects = 1000

// object finds and decodes the JSON object in an output for which result returns true. Other lines and objects, such as
// a log's, may precede and follow it. Each object begins a line. More than one result is an error. If there are objects
// but no result, the last argument is the error.
func object[T any](output string, result func(*T) bool, lacks string) (*T, error) {
	var found *T
	err := errors.New("there is no JSON object in it")
	for tries := 0; tries < maxObjects; tries++ {
		begin := 0
		if !strings.HasPrefix(output, "{") {
			if begin = strings.Index(output, "\n{") + 1; begin == 0 {
				break
			}
		}
		output = output[begin:]
		into, decoder := new(T), json.NewDecoder(strings.NewReader(output))
		switch wrong := decoder.Decode(into); {
		case wrong != nil && !errors.As(wrong, new(*json.UnmarshalTypeError)):
			if found == nil {
				err = fmt.Errorf("its JSON is broken or was cut off: %w", wrong)
			}
			if errors.Is(wrong, io.ErrUnexpectedEOF) {
				output = ""
				continue
			}
			output = output[1:]
			continue
		case wrong != nil:
			err = fmt.Errorf("its JSON is broken: %w", wrong)
		case !result(into):
			if found == nil {
				err = errors.New(lacks)
			}
		case found != nil:
			return nil, errSeveral
		default:
			if key := twice(output[:decoder.InputOffset()]); key != "" {
				return nil, fmt.Errorf("an object of its JSON has %q twice, and which of the two counts is not known", clip(key))
			}
			found = into
		}
		output = output[decoder.InputOffset():]
	}
	if found == nil {
		return nil, err
	}
	return found, nil
}

// twice returns a key that occurs more than once in an object of a valid JSON document, or "" if there is none. Keys
// that differ only in case count as the same, because package json ignores case and takes the last of them.
func twice(document string) string {
	decoder := json.NewDecoder(strings.NewReader(document))
	type level struct {
		keys map[string]bool // the keys so far, if this is an object; nil for an array
		key  bool            // the next token is a key
	}
	var levels []level
	for {
		token, err := decoder.Token()
		if err != nil {
			return ""
		}
		var top *level
		if len(levels) > 0 {
			top = &levels[len(levels)-1]
		}
		if delim, is := token.(json.Delim); is && (delim == '}' || delim == ']') {
			levels = levels[:len(levels)-1]
			continue
		}
		if key, is := token.(string); is && top != nil && top.key {
			folded := strings.ToLower(key)
			if top.keys[folded] {
				return key
			}
			top.keys[folded], top.key = true, false
			continue
		}
		if top != nil && top.keys != nil {
			top.key = true // a key follows the value that begins with this token
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{map[string]bool{}, true})
		case json.Delim('['):
			levels = append(levels, level{})
		}
	}
}
