//go:build ignore

// Generate writes table.json from table.yaml: people read and write YAML, and reading JSON takes far less memory.
package main

import (
	"bytes"
	"encoding/json"
	"log"
	"os"

	"github.com/goccy/go-yaml"
)

func main() {
	text, err := os.ReadFile("table.yaml")
	if err != nil {
		log.Fatal(err)
	}
	compact, err := yaml.YAMLToJSON(text)
	if err != nil {
		log.Fatal(err)
	}
	var table bytes.Buffer
	if err := json.Indent(&table, compact, "", " "); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile("table.json", table.Bytes(), 0o644); err != nil {
		log.Fatal(err)
	}
}
