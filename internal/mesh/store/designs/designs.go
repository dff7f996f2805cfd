// Package designs has all designs of stores registered in whatever imports it.
package designs

import (
	// The designs.
	_ "tare/internal/mesh/store/mapinmap"
	_ "tare/internal/mesh/store/sized"
	_ "tare/internal/mesh/store/snapshot"
	_ "tare/internal/mesh/store/value"
)
