package clusterreport

import (
	"io"

	"tare/internal/kube/cluster"
	"tare/internal/lib/text"
)

func init() {
	register(Format{Name: "json", Help: "one JSON document, with its schema",
		Write: func(w io.Writer, c *cluster.Cluster, _ Options) error { return text.WriteJSON(w, c) }})
}
