// Package designs has all designs of stores registered in whatever imports it.
package designs

import (
	// The designs.
	_ "tare/internal/store/mapinmap"
	_ "tare/internal/store/sized"
	_ "tare/internal/store/snapshot"
	_ "tare/internal/store/value"
)
