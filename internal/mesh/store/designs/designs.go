// Package designs registers all store designs when it is imported.
package designs

import (
	// The designs.
	_ "tare/internal/mesh/store/mapinmap"
	_ "tare/internal/mesh/store/sized"
	_ "tare/internal/mesh/store/snapshot"
	_ "tare/internal/mesh/store/value"
)
