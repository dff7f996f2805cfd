package record

import (
	"strings"

	"tare/internal/lib/lists"
)

// LevelName names one value of each factor, for tables: "connections 64, rate 1000".
func LevelName(level map[string]string) string {
	var parts []string
	for name, value := range lists.ByKey(level) {
		parts = append(parts, FactorName(name)+" "+value)
	}
	return strings.Join(parts, ", ")
}

// FactorName returns a factor's name as people write it: a setting of all arms ("arms.*.services") needs no path.
func FactorName(name string) string {
	return strings.TrimPrefix(strings.TrimPrefix(name, "arms."), "*.")
}
