package analysis_test

import _ "tare/internal/all" // every guest, with its metrics
