package cluster

import (
	"bytes"
	"encoding/json"
	"fmt"

	"tare/internal/lib/text"
)

// Bounds of a document.
const (
	maxBytes  = 1 << 30
	maxValues = 40 * MaxRows // objects and nulls: a small document can make a large account
)

// Parse reads a document of the schema tare.cluster/v1.
func Parse(data []byte) (*Cluster, error) {
	if len(data) > maxBytes || bytes.Count(data, []byte("{"))+bytes.Count(data, []byte("null")) > maxValues {
		return nil, fmt.Errorf("the account has more than %d bytes or %d parts", maxBytes, maxValues)
	}
	var c Cluster
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("this is no account of a cluster: %s", text.ClipLine(err.Error(), maxName))
	}
	if c.Schema != Schema {
		return nil, fmt.Errorf("this is no account of a cluster: its schema is %q", text.Clip(c.Schema))
	}
	return &c, nil
}
