package spec

import _ "tare/internal/all" // every guest, with its metrics
