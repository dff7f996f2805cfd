package clusterreport

import (
	"bytes"

	"tare/internal/kube/cluster"
	"tare/internal/lib/text"
)

func init() {
	register(Format{Name: "json", Help: "one JSON document, with its schema",
		Write: func(b *bytes.Buffer, c *cluster.Cluster, _ Options) error { return text.WriteJSON(b, c) }})
}
