// Package schemas holds a JSON Schema (draft 2020-12) of each format that docs/formats.md describes. The schemas are
// generated from the Go types that are printed, by a test of package cli: go test ./internal/cli -run TestSchemas
// -update.
package schemas

import (
	"embed"
	"strings"
)

//go:embed *.json
var files embed.FS

// FileOf returns the name of the file with the schema of a format, such as "tare.run/v1".
func FileOf(format string) string { return strings.ReplaceAll(format, "/", ".") + ".json" }

// Of returns the JSON Schema of a format, or nil if there is none.
func Of(format string) []byte {
	text, err := files.ReadFile(FileOf(format))
	if err != nil {
		return nil
	}
	return text
}
