// Command grafana writes the dashboard of tare-agent to a file, as JSON that Grafana can import. The dashboard is built
// with the types of Grafana's own library. To regenerate tare.json in this directory, run
//
//	go generate ./deploy/grafana
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
)

//go:generate go run . tare.json

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./deploy/grafana FILE")
		os.Exit(2)
	}
	text, err := document()
	if err == nil {
		err = os.WriteFile(os.Args[1], text, 0o644)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "making the dashboard: %v\n", err)
		os.Exit(1)
	}
}

// document returns the dashboard as indented JSON.
func document() ([]byte, error) {
	d, err := build()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // people read the queries
	e.SetIndent("", "  ")
	if err := e.Encode(d); err != nil {
		return nil, fmt.Errorf("writing the dashboard: %w", err)
	}
	return b.Bytes(), nil
}
