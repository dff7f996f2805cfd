// Package schematest checks what Tare prints against the schemas that docs/schemas publishes, for tests.
package schematest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"

	"tare/docs/schemas"
)

// ErrNone is the error for a document that names no format.
var ErrNone = errors.New("it names no schema")

var (
	lock     sync.Mutex
	resolved = map[string]*jsonschema.Resolved{}
)

// Check checks a document against the schema of the format that it names. Fields that the schema lacks are errors here,
// though the schema itself allows them: what is printed must be published.
func Check(document []byte) error {
	var any map[string]any
	d := json.NewDecoder(bytes.NewReader(document))
	if err := d.Decode(&any); err != nil {
		return fmt.Errorf("it is no JSON object: %w", err)
	}
	format, ok := any["schema"].(string)
	if !ok {
		return ErrNone
	}
	schema, err := strict(format)
	if err != nil {
		return err
	}
	if err := schema.Validate(any); err != nil {
		return fmt.Errorf("by the schema of %s: %w", format, err)
	}
	return nil
}

// Lines checks each line of a file of documents against its schema.
func Lines(text []byte) error {
	for i, line := range bytes.Split(bytes.TrimSpace(text), []byte("\n")) {
		if err := Check(line); err != nil {
			return fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	return nil
}

// strict returns the published schema of a format, changed so that it rejects fields that it does not list.
func strict(format string) (*jsonschema.Resolved, error) {
	lock.Lock()
	defer lock.Unlock()
	if r := resolved[format]; r != nil {
		return r, nil
	}
	text := schemas.Of(format)
	if text == nil {
		return nil, fmt.Errorf("docs/schemas has no schema of %q", format)
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("docs/schemas/%s: %w", schemas.FileOf(format), err)
	}
	closed(&s)
	r, err := s.Resolve(nil)
	if err != nil {
		return nil, fmt.Errorf("docs/schemas/%s: %w", schemas.FileOf(format), err)
	}
	resolved[format] = r
	return r, nil
}

// closed makes each object of a schema that lists fields reject other fields.
func closed(s *jsonschema.Schema) {
	if s == nil {
		return
	}
	if len(s.Properties) > 0 {
		s.AdditionalProperties = &jsonschema.Schema{Not: &jsonschema.Schema{}}
	} else {
		closed(s.AdditionalProperties)
	}
	for _, p := range s.Properties {
		closed(p)
	}
	closed(s.Items)
}
