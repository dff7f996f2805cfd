// Package designs has all designs of stores registered in whatever imports it.
package designs

import (
	// The designs.
	_ "tare/internal/subject/mesh/store/mapinmap"
	_ "tare/internal/subject/mesh/store/sized"
	_ "tare/internal/subject/mesh/store/snapshot"
	_ "tare/internal/subject/mesh/store/value"
)
